"""Rows and cells on the wire, in requests, responses and stream records."""

from __future__ import annotations

from enum import Enum, IntEnum

from attrs import frozen

from streamclient.records import ColumnValue, KeyValue, SequenceInfo


class KeyBound(Enum):
    """The placeholders in a key: the ends of a range, or a value that the service generates."""

    INF_MIN = 0x09
    INF_MAX = 0x0A
    AUTO_INCREMENT = 0x0B


class CellOperation(IntEnum):
    """The operation of a cell on its column. The numbers are the values of tag 06, which is absent for ``PUT``."""

    PUT = 0
    DELETE_ALL_VERSIONS = 1
    DELETE_ONE_VERSION = 3
    INCREMENT = 4


@frozen
class Cell:
    """One attribute cell."""

    name: str
    value: ColumnValue | KeyBound | None
    """The value; ``None`` if the cell has no value, as for deletions."""
    operation: CellOperation = CellOperation.PUT
    timestamp_millis: int | None = None


@frozen
class Row:
    """One row of a frame."""

    primary_key: tuple[tuple[str, KeyValue | KeyBound], ...]
    cells: tuple[Cell, ...] = ()
    delete_marker: bool = False
    """Whether the row carries the mark "delete this row", which occurs in requests and stream records."""
    sequence: SequenceInfo | None = None
    """The sequence information, which only rows of stream records have."""
