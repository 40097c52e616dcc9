"""Frames of the Tablestore protocol, shared by client and server: messages, rows, signatures, errors.

Nothing here knows whether it runs in a client or in a server, opens a connection, or keeps state between calls.
"""
