"""The Tablestore stream for Python: list, describe, iterate, read, and tables with a stream setting."""

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
