"""The formats of the Tablestore protocol: messages, rows, signatures, errors.

Clients and the local server share this code. The code opens no connection and has no state except caches.
"""
