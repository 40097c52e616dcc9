"""The official SDK as this package's commands and samples use it: which instance, which keys, and a client for it."""

from streamclient.tablestore.connect import Connection, connect
from streamclient.tablestore.integrity import Integrity, with_integrity
from streamclient.tablestore.limits import ConnectionLimits, with_limits

__all__ = ["Connection", "ConnectionLimits", "Integrity", "connect", "with_integrity", "with_limits"]
