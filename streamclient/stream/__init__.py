"""The Tablestore stream for Python: list, describe, iterate, read, and tables with a stream setting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamclient._lazy import loader

if TYPE_CHECKING:
    from streamclient.stream.api import (
        RecordPage,
        StreamApi,
        StreamDescription,
        StreamDetails,
        StreamSpecification,
        StreamStatus,
        StreamSummary,
    )
    from streamclient.stream.retry import ReadRetry
    from streamclient.stream.tables import TableDescription, TableOptionsInForce
    from streamclient.stream.tablestore import TablestoreStreamApi

__all__ = [
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
]

_HOMES = {
    "ReadRetry": "retry",
    "RecordPage": "api",
    "StreamApi": "api",
    "StreamDescription": "api",
    "StreamDetails": "api",
    "StreamSpecification": "api",
    "StreamStatus": "api",
    "StreamSummary": "api",
    "TableDescription": "tables",
    "TableOptionsInForce": "tables",
    "TablestoreStreamApi": "tablestore",
}
"""Public name to module; loaded when first used, because the values of a stream need no SDK and its operations do."""


__getattr__ = loader(__name__, _HOMES)
