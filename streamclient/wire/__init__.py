"""Frames of the Tablestore protocol, shared by client and server: messages, rows, signatures, errors.

This code is the same for a client and a server. It opens no connection, and keeps no state.
"""
