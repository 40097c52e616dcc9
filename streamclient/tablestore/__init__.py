"""Tablestore through the official SDK: an instance, its keys and limits, and stream operations that the SDK lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamclient.base._lazy import loader

if TYPE_CHECKING:
    from streamclient.tablestore.connection_limits import ConnectionLimits, with_limits
    from streamclient.tablestore.instance import Connection, connect
    from streamclient.tablestore.integrity import Integrity, with_integrity
    from streamclient.tablestore.read_retry import ReadRetry
    from streamclient.tablestore.stream_api import (
        RecordPage,
        StreamApi,
        StreamDescription,
        StreamDetails,
        StreamSpecification,
        StreamStatus,
        StreamSummary,
    )
    from streamclient.tablestore.stream_operations import TablestoreStreamApi
    from streamclient.tablestore.stream_tables import TableDescription, TableOptionsInForce

__all__ = [
    "Connection",
    "ConnectionLimits",
    "Integrity",
    "ReadRetry",
    "RecordPage",
    "StreamApi",
    "StreamDescription",
    "StreamDetails",
    "StreamSpecification",
    "StreamStatus",
    "StreamSummary",
    "TableDescription",
    "TableOptionsInForce",
    "TablestoreStreamApi",
    "connect",
    "with_integrity",
    "with_limits",
]

_HOMES = {
    "Connection": "instance",
    "ConnectionLimits": "connection_limits",
    "Integrity": "integrity",
    "ReadRetry": "read_retry",
    "RecordPage": "stream_api",
    "StreamApi": "stream_api",
    "StreamDescription": "stream_api",
    "StreamDetails": "stream_api",
    "StreamSpecification": "stream_api",
    "StreamStatus": "stream_api",
    "StreamSummary": "stream_api",
    "TableDescription": "stream_tables",
    "TableOptionsInForce": "stream_tables",
    "TablestoreStreamApi": "stream_operations",
    "connect": "instance",
    "with_integrity": "integrity",
    "with_limits": "connection_limits",
}
"""Each public name with the module that defines it. A module is loaded at the first use of one of its names, because
only some of the modules need the SDK."""


__getattr__ = loader(__name__, _HOMES)
