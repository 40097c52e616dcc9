"""Frames of the Tablestore protocol, shared by client and server: messages, rows, signatures, errors.

This code does not know whether it runs in a client or in a server, opens no connection, and keeps no state.
"""
