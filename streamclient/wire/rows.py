"""The classes of rows and cells in requests, responses and stream records."""

from __future__ import annotations

from enum import Enum, IntEnum

from attrs import frozen

from streamclient.records import ColumnValue, KeyValue, SequenceInfo


class KeyBound(Enum):
    """A placeholder for a value in a key: a bound of a key range, or a value that the service generates."""

    INF_MIN = 0x09
    INF_MAX = 0x0A
    AUTO_INCREMENT = 0x0B


class CellOperation(IntEnum):
    """The operation of a cell on its column, as PlainBuffer numbers it. ``PUT`` is written without a number."""

    PUT = 0
    DELETE_ALL_VERSIONS = 1
    DELETE_ONE_VERSION = 3
    INCREMENT = 4


@frozen
class Cell:
    """One cell of an attribute column: a put of a value, a deletion, or an increment."""

    name: str
    value: ColumnValue | KeyBound | None
    """The value of the cell; ``None`` for a deletion, which has no value."""
    operation: CellOperation = CellOperation.PUT
    timestamp_millis: int | None = None


@frozen
class Row:
    """One row of a request, a response or a stream record."""

    primary_key: tuple[tuple[str, KeyValue | KeyBound], ...]
    cells: tuple[Cell, ...] = ()
    delete_marker: bool = False
    """Whether the row has a delete marker. Requests and stream records that delete a row have one."""
    sequence: SequenceInfo | None = None
    """The sequence information, which only rows of stream records have."""
