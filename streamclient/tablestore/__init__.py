"""The official SDK as this package's commands and samples use it: which instance, which keys, and a client for it."""

from streamclient.tablestore.connect import Connection, connect

__all__ = ["Connection", "connect"]
