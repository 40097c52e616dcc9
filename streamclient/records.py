"""Change records as frozen values.

A record is the trace that one write to the table leaves in the table's stream. Only the codec depends on the storage of
a record: other code reads the attributes below, never the layout.
"""

from __future__ import annotations

import base64
import binascii
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

from attrs import fields, frozen

_Class = TypeVar("_Class", bound=type)


NATIVE: Any = None
"""The compiled codec if it is in use, else ``None``. The choice is made once, at import, because the compiled codec
provides the storage of the classes below."""

if os.environ.get("STREAMCLIENT_PURE_PYTHON", "") in ("", "0"):
    try:
        from streamclient.wire import _native

        NATIVE = _native
    except ImportError:  # not built here
        pass


class _Unmade:
    """The raw cells of a record until its columns are read."""

    __slots__ = ("cells", "make")

    def __init__(self, make: Callable[[Any], tuple[Any, ...]], cells: Any) -> None:
        self.make = make
        self.cells = cells


class _OnDemand:
    """The slot of ``StreamRecord.columns`` as an attribute that makes the columns when they are first read."""

    def __init__(self, slot: Any) -> None:
        self._slot = slot

    def __get__(self, record: Any, owner: Any = None) -> Any:
        if record is None:
            return self
        columns = self._slot.__get__(record)
        if columns.__class__ is _Unmade:
            columns = columns.make(columns.cells)
            self._slot.__set__(record, columns)
        return columns

    def __set__(self, record: Any, columns: Any) -> None:
        self._slot.__set__(record, columns)

    def __delete__(self, record: Any) -> None:
        self._slot.__delete__(record)


def _setter(slot: Any) -> Any:
    return _setter(slot._slot) if isinstance(slot, _OnDemand) else slot.__set__


def _compact(attrs_class: _Class) -> _Class:
    """Return the class with the storage of the compiled codec, which fills it from a page and makes columns on demand.

    Everything that attrs made stays; only the slots change. The garbage collector does not track these objects: a page
    fills them with plain values, which cannot refer back to them.
    """
    made: Any = attrs_class
    if NATIVE is None:
        if attrs_class.__name__ == "StreamRecord":
            made.columns = _OnDemand(made.columns)
        return attrs_class
    stored: _Class = getattr(NATIVE, attrs_class.__name__)
    for name, value in vars(attrs_class).items():
        if name not in made.__slots__:
            setattr(stored, name, value)
    return stored


KeyValue = int | str | bytes
"""The values of a primary key column: INTEGER, STRING, BINARY."""

PrimaryKey = tuple[tuple[str, KeyValue], ...]
"""Key columns as (name, value), in the table's key order."""

ColumnValue = int | float | bool | str | bytes
"""The values of an attribute column: INTEGER, DOUBLE, BOOLEAN, STRING, BINARY."""


def readable_position(text: str) -> str:
    """Format a position for logs and screens: ``TRIM_HORIZON``, ``SHARD_END``, or the numbers of an iterator.

    An iterator names its stream, its shard and a position in the shard. Every log line names stream and shard anyway,
    and only the service knows the meaning of the position: the result is ``iterator 0/40`` for the local server and
    four numbers for the real service. Texts of another form are shown by their end.
    """
    try:
        data = base64.b64decode(text, validate=True)
        stream_end = 1 + data[0]
        shard_end = stream_end + 1 + data[stream_end]
        position_end = shard_end + 1 + data[shard_end]
    except (binascii.Error, ValueError, IndexError):
        is_name = text.isupper() or len(text) <= LONGEST_PLAIN_POSITION
        return text if is_name else f"iterator ...{text[-8:]}"
    position = data[shard_end + 1 : position_end]
    if position_end != len(data) - 1 or not position:
        return text if len(text) <= LONGEST_PLAIN_POSITION else f"iterator ...{text[-8:]}"
    layout = _LAYOUTS.get(len(position))
    numbers = position.hex() if layout is None else "/".join(str(number) for number in layout.unpack(position))
    return f"iterator {numbers}"


LONGEST_PLAIN_POSITION = 24
"""Texts of at most this length are not iterators of a service, and are shown as they are."""

_LAYOUTS = {16: struct.Struct("<QQ"), 28: struct.Struct("<qqiq")}
"""The layouts of the local server and of the only documented iterator of the real service; other lengths are shown as
hex."""


class RecordType(Enum):
    """The kind of change to the row (Java: ``StreamRecord.RecordType``)."""

    PUT = "PUT"
    """The whole row was replaced by the columns of this record."""

    UPDATE = "UPDATE"
    """The columns of this record changed; others kept their values."""

    DELETE = "DELETE"
    """The row was deleted; the record has no columns."""


class ColumnType(Enum):
    """The type of a column in the table definition."""

    INTEGER = "INTEGER"
    DOUBLE = "DOUBLE"
    BOOLEAN = "BOOLEAN"
    STRING = "STRING"
    BINARY = "BINARY"


class ColumnOperation(Enum):
    """The kind of change to one column (Java: ``RecordColumn.ColumnType``)."""

    PUT = "PUT"
    DELETE_ONE_VERSION = "DELETE_ONE_VERSION"
    DELETE_ALL_VERSION = "DELETE_ALL_VERSION"


@_compact
@frozen(order=True)
class SequenceInfo:
    """Position of a record in its shard, ordered by (epoch, timestamp, row index); never compare it across shards."""

    epoch: int
    timestamp_micros: int
    """The time of the write in microseconds since 1970, by the clock of the server that accepted it."""
    row_index: int
    """Position among the rows of one batch, which share epoch and timestamp."""

    def __str__(self) -> str:
        return f"{self.epoch}/{self.timestamp_micros}/{self.row_index}"


@_compact
@frozen
class RecordColumn:
    """One cell of a record."""

    name: str
    operation: ColumnOperation
    value: ColumnValue | None = None
    """The new value for ``PUT``; ``None`` for both kinds of deletion. A stored value is never ``None``."""
    timestamp_millis: int | None = None
    """The cell's version in milliseconds; ``None`` for ``DELETE_ALL_VERSION``."""

    def __str__(self) -> str:
        # A name may be any text, with line ends and equals signs: other names than identifiers are shown as literals.
        name = self.name if self.name.isidentifier() else repr(self.name)
        version = "" if self.timestamp_millis is None else f"@{self.timestamp_millis}"
        if self.operation is ColumnOperation.PUT:
            return f"{name}={self.value!r}{version}"
        return f"{name} {self.operation.value}{version}"


@_compact
@frozen
class StreamRecord:
    """One change of one row, as the stream delivers it."""

    record_type: RecordType
    primary_key: PrimaryKey
    columns: tuple[RecordColumn, ...] = ()
    """The cells that this change wrote or deleted; a column may occur more than once, with different versions."""
    sequence_info: SequenceInfo = SequenceInfo(0, 0, 0)
    original_columns: tuple[RecordColumn, ...] | None = None
    """The previous cells of the stream's origin columns; ``None`` if the stream delivers none."""

    @property
    def key(self) -> dict[str, KeyValue]:
        """The primary key as a new dictionary at each access."""
        return dict(self.primary_key)

    def apply_to(self, row: Mapping[str, ColumnValue] | None) -> dict[str, ColumnValue] | None:
        """Return the row after this change: a new dictionary of its key columns and attributes, by name.

        ``row`` is the row before this change, or ``None`` if it does not exist; it is not changed. To fold up a table,
        one key at a time: ``table[record.primary_key] = record.apply_to(table.get(record.primary_key))``.

        PUT replaces the whole row. UPDATE sets and removes columns, and creates an absent row if it sets a column.
        DELETE returns ``None``.

        The dictionary holds one version of each column: the newest that this record writes. It is the whole row if the
        table keeps one version per cell and its writers leave versions to the service, as is usual. Otherwise two
        things differ from the table: a write of an *older* version counts as the newest, and ``DELETE_ONE_VERSION``
        removes the column, although the table may keep another version of it.
        """
        if self.record_type is RecordType.DELETE:
            return None
        before: Mapping[str, ColumnValue] = {} if row is None or self.record_type is RecordType.PUT else row
        puts = any(column.operation is ColumnOperation.PUT for column in self.columns)
        if row is None and self.record_type is RecordType.UPDATE and not puts:
            return None
        after: dict[str, ColumnValue] = {**self.key, **before}
        for name in dict.fromkeys(column.name for column in self.columns):
            written = [column for column in self.columns if column.name == name and column.value is not None]
            if written:
                newest = max(
                    written, key=lambda column: -1 if column.timestamp_millis is None else column.timestamp_millis
                )
                after[name] = newest.value  # type: ignore[assignment]  # none of these is None
            else:
                after.pop(name, None)
        return after

    def __str__(self) -> str:
        key = ", ".join(f"{name}={value!r}" for name, value in self.primary_key)
        cells = ", ".join(str(column) for column in self.columns)
        return f"{self.record_type.value} {{{key}}} [{cells}] at {self.sequence_info}"


def record_of_cells(
    record_type: RecordType,
    primary_key: PrimaryKey,
    cells: Any,
    sequence_info: SequenceInfo,
    original_columns: tuple[RecordColumn, ...] | None,
    *,
    make: Callable[[Any], tuple[RecordColumn, ...]],
) -> StreamRecord:
    """Return a record whose columns ``make`` makes from ``cells`` on demand, which costs as much as reading the cells.

    The compiled codec makes columns in its own way, so with its storage they are made at once.
    """
    if NATIVE is not None:
        return StreamRecord(record_type, primary_key, make(cells), sequence_info, original_columns)
    record = _new_record(StreamRecord)
    for_type, for_key, for_columns, for_sequence, for_originals = _SLOTS  # the constructor's work in half of its time
    for_type(record, record_type)
    for_key(record, primary_key)
    for_columns(record, _Unmade(make, cells))
    for_sequence(record, sequence_info)
    for_originals(record, original_columns)
    return record


_new_record = StreamRecord.__new__
_SLOTS = tuple([_setter(getattr(StreamRecord, attribute.name)) for attribute in fields(StreamRecord)])


def place_of(records: Sequence[StreamRecord], index: int) -> SequenceInfo:
    """Return the position of the record at ``index``.

    The records of a page are made on demand; this function makes none of them.
    """
    find: Callable[[int], SequenceInfo] | None = getattr(records, "sequence_info", None)
    return records[index].sequence_info if find is None else find(index)
