"""Change records as frozen values.

A record is the trace that one write to the table leaves in the table's stream. Only the codec knows how a record is
laid out in memory. Other code reads the attributes.
"""

from __future__ import annotations

import base64
import binascii
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from operator import attrgetter
from typing import Any, TypeVar

from attrs import fields, frozen

from streamclient.base.row_models import row_of
from streamclient.errors import ConfigurationError

_Class = TypeVar("_Class", bound=type)
_Row = TypeVar("_Row")


NATIVE: Any = None
"""The compiled codec, or ``None`` if it is not in use. The choice is made once, when this module is imported, because
the compiled codec provides the storage of the classes below."""

if os.environ.get("STREAMCLIENT_PURE_PYTHON", "") in ("", "0"):
    try:
        from streamclient.wire import _native

        NATIVE = _native
    except ImportError:  # this Python has no compiled codec
        pass


class _Unmade:
    """The raw cells of a record whose columns were not read yet, and the function that makes the columns."""

    __slots__ = ("cells", "make")

    def __init__(self, make: Callable[[Any], tuple[Any, ...]], cells: Any) -> None:
        self.make = make
        self.cells = cells


class _OnDemand:
    """The descriptor of ``StreamRecord.columns``: it makes the columns of a record when they are first read."""

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
    """Return ``attrs_class`` with the compiled codec's storage for objects, if that codec is in use.

    The codec fills objects from a page, and makes their columns on demand. Everything that attrs added to the class
    stays; only the slots change. The garbage collector does not track these objects, because they hold plain values,
    which cannot refer back to them.
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
"""The key columns of a row as (name, value), in the table's key order."""

ColumnValue = int | float | bool | str | bytes
"""The values of an attribute column: INTEGER, DOUBLE, BOOLEAN, STRING, BINARY."""


def readable_position(text: str) -> str:
    """Format a position for logs and screens: ``TRIM_HORIZON``, ``SHARD_END``, or the numbers of an iterator.

    An iterator names its stream, its shard and a position in the shard. Every log line names stream and shard anyway,
    and only the service knows the meaning of the position. So the result is short: ``iterator 0/40`` for the local
    server, four numbers for the real service. A long text of any other form is cut to its last characters.
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
"""The largest number of characters of a position that is shown unchanged. Iterators of a service are longer."""

_LAYOUTS = {16: struct.Struct("<QQ"), 28: struct.Struct("<qqiq")}
"""The layouts of known positions inside iterators, by their length in bytes: 16 for the local server, and 28 for the
only documented form of the real service. Positions of other lengths are shown as hex."""


class RecordType(Enum):
    """The kind of change to the row (Java: ``StreamRecord.RecordType``)."""

    PUT = "PUT"
    """The whole row was replaced by the columns of this record."""

    UPDATE = "UPDATE"
    """The columns of this record changed; all other columns kept their values."""

    DELETE = "DELETE"
    """The row was deleted. The record has no columns."""


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
@frozen
class SequenceInfo:
    """The position of a record in its shard, ordered by (epoch, timestamp, row index).

    Never compare it across shards.
    """

    epoch: int
    timestamp_micros: int
    """The time of the write in microseconds since 1970, by the clock of the server that accepted it."""
    row_index: int
    """The number of the record among the records with the same epoch and timestamp. One request may write several."""

    def __str__(self) -> str:
        return f"{self.epoch}/{self.timestamp_micros}/{self.row_index}"

    # The comparisons that attrs would make cost ten times as much, and each page needs at least one.

    def __lt__(self, other: object) -> bool:
        return _parts(self) < _parts(other) if isinstance(other, SequenceInfo) else NotImplemented

    def __le__(self, other: object) -> bool:
        return _parts(self) <= _parts(other) if isinstance(other, SequenceInfo) else NotImplemented

    def __gt__(self, other: object) -> bool:
        return _parts(self) > _parts(other) if isinstance(other, SequenceInfo) else NotImplemented

    def __ge__(self, other: object) -> bool:
        return _parts(self) >= _parts(other) if isinstance(other, SequenceInfo) else NotImplemented


_parts: Callable[[SequenceInfo], tuple[int, int, int]] = attrgetter("epoch", "timestamp_micros", "row_index")


@_compact
@frozen
class RecordColumn:
    """One cell of a record: a value that the change put into a column, or a deletion in a column."""

    name: str
    operation: ColumnOperation
    value: ColumnValue | None = None
    """The new value for ``PUT``; ``None`` for both kinds of deletion. A stored value is never ``None``."""
    timestamp_millis: int | None = None
    """The cell's version in milliseconds; ``None`` for ``DELETE_ALL_VERSION``."""

    def __str__(self) -> str:
        # A column name may be any text, with line ends and equals signs. A name that is not an identifier is shown as a
        # literal.
        name = self.name if self.name.isidentifier() else repr(self.name)
        version = "" if self.timestamp_millis is None else f"@{self.timestamp_millis}"
        if self.operation is ColumnOperation.PUT:
            return f"{name}={self.value!r}{version}"
        return f"{name} {self.operation.value}{version}"


def _kept_values(cells: Sequence[RecordColumn]) -> dict[str, ColumnValue]:
    """Return the values of a row, by column name, after ``cells`` were applied in order to an empty row.

    Each column keeps only its greatest version; a put replaces an equal version. A table that keeps one version per
    cell applies a change by the same rule. ``destinations.folding.row_changes`` uses that rule, too.
    """
    put = ColumnOperation.PUT
    values: dict[str, Any] = {cell.name: cell.value for cell in cells if cell.operation is put}
    if len(values) == len(cells):  # the usual case: each cell puts a value into a different column
        return values
    kept: dict[str, RecordColumn] = {}
    for cell in cells:
        known = kept.get(cell.name)
        if cell.operation is put:
            if known is None or _version(cell) >= _version(known):
                kept[cell.name] = cell
        elif known is not None and (
            cell.operation is ColumnOperation.DELETE_ALL_VERSION or _version(cell) == _version(known)
        ):
            del kept[cell.name]
    return {name: cell.value for name, cell in kept.items() if cell.value is not None}


def _version(cell: RecordColumn) -> int:
    return -1 if cell.timestamp_millis is None else cell.timestamp_millis


@_compact
@frozen
class StreamRecord:
    """One change of one row, as the stream delivers it.

    ``record["amount"]`` is the value of a key column, or the value that this change put. If the change put several
    versions of a column, the newest counts. If the record has no value for the name, the access raises ``KeyError``;
    ``"amount" in record`` tells whether the record has a value. Iteration yields the names of the key columns, then the
    names of the other columns. A column that this change deleted is not in the record; ``removed`` names the column.

    A record is not a ``Mapping``: it has no length and is always true. Usable from any thread.
    """

    record_type: RecordType
    primary_key: PrimaryKey
    columns: tuple[RecordColumn, ...] = ()
    """The cells that this change wrote or deleted. A column may occur more than once, with different versions."""
    sequence_info: SequenceInfo = SequenceInfo(0, 0, 0)
    original_columns: tuple[RecordColumn, ...] | None = None
    """The previous cells of the stream's origin columns; ``None`` if the stream does not deliver such cells."""

    @property
    def key(self) -> dict[str, KeyValue]:
        """The primary key as a new dictionary at each access."""
        return dict(self.primary_key)

    def apply_to(self, row: Mapping[str, ColumnValue] | None) -> dict[str, ColumnValue] | None:
        """Return the row after this change: a new dictionary of its key columns and attributes, by name.

        ``row`` is the row before this change; ``None`` stands for an absent row. This method does not change ``row``.
        To build a table from its changes:
        ``table[record.primary_key] = record.apply_to(table.get(record.primary_key))``.

        PUT replaces the whole row. UPDATE sets and removes columns, and creates an absent row if it sets a column.
        DELETE returns ``None``.

        The dictionary holds one version of each column: the newest that this record writes. The dictionary is the
        whole row if the table keeps one version per cell and its writers leave versions to the service, as is usual.
        Otherwise two things differ from the table. First, a write of an *older* version counts as the newest. Second,
        ``DELETE_ONE_VERSION`` removes the column, although the table may keep another version of it.
        """
        if self.is_delete:
            return None
        before: Mapping[str, ColumnValue] = {} if row is None or self.record_type is RecordType.PUT else row
        puts = any(column.operation is ColumnOperation.PUT for column in self.columns)
        if row is None and self.record_type is RecordType.UPDATE and not puts:
            return None
        after: dict[str, ColumnValue] = {**self.key, **before}
        kept = _kept_values(self.columns)
        for name in dict.fromkeys(column.name for column in self.columns):
            if name in kept:
                after[name] = kept[name]
            else:
                after.pop(name, None)
        return after

    def __getitem__(self, name: str, /) -> Any:
        value = self._found(name)
        if value is None:
            did = "removed" if name in self.removed else "did not put"
            raise KeyError(f"{self._title()} {did} a column {name!r}; get({name!r}) returns None instead")
        return value

    def __contains__(self, name: object, /) -> bool:
        return self._found(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def keys(self) -> tuple[str, ...]:
        """Return the names of the key columns, then those of the columns that this change put."""
        return tuple(self.values)

    def get(self, name: str, default: Any = None, /) -> Any:
        """Return ``record[name]``, or ``default`` if the record has no such value. A value is never ``None``."""
        value = self._found(name)
        return default if value is None else value

    @property
    def values(self) -> dict[str, ColumnValue]:
        """The key and the values that this change put, by name, as a new dictionary at each access.

        After a PUT they are the whole row; after an UPDATE the key and the columns that the change put; after a DELETE
        the key alone.
        """
        found: dict[str, ColumnValue] = dict(self.primary_key)
        for name, value in _kept_values(self.columns).items():
            found.setdefault(name, value)  # the service refuses a column with the name of a key column
        return found

    @property
    def removed(self) -> tuple[str, ...]:
        """The names of the columns of which this change deleted one version or all, and for which it put no value.

        A PUT also removes every column that it does not put, and a DELETE removes all columns; those names are not
        included.
        """
        kept = _kept_values(self.columns)
        return tuple(dict.fromkeys(column.name for column in self.columns if column.name not in kept))

    @property
    def is_delete(self) -> bool:
        """Whether this change deleted the row."""
        return self.record_type is RecordType.DELETE

    @property
    def before(self) -> dict[str, ColumnValue] | None:
        """The previous values of the stream's origin columns, by name, as a new dictionary at each access.

        A column that had no value is missing. The result is ``None`` if the stream has no origin columns, or if the row
        was new or had none of these columns.
        """
        return None if self.original_columns is None else _kept_values(self.original_columns)

    def to(self, model: type[_Row]) -> _Row:
        """Return ``values`` as an object of the class ``model``.

        ``model`` is a dataclass, an attrs class, a pydantic model or a ``TypedDict``. Its fields take the values of the
        same names. Other columns are ignored, and a field without a value takes its default. A field of a plain type
        takes only values of that type, but a ``float`` takes an integer that it can hold exactly. A field of another
        class, such as ``Decimal`` or an ``Enum``, gets the object that the class makes of the value. An attrs converter
        and a pydantic model follow their own rules.

        Raises:
            UnfitValueError: a value does not fit its field, or a field without a default has no value. The message
                names the key, the column, the expected type and the value.
            ConfigurationError: this change deleted the row, so it has no values; or ``model`` is another kind of
                object, or names types that cannot be found.
            Exception: the class itself raised it, as in ``__post_init__``.
        """
        if self.is_delete:
            raise ConfigurationError(
                f"{self._title()} has no values for {getattr(model, '__name__', model)}: look at is_delete before to()"
            )
        return row_of(model, self.values, self._title)

    def _found(self, name: object) -> ColumnValue | None:
        for key_name, key_value in self.primary_key:
            if key_name == name:
                return key_value
        found = None
        for column in self.columns:
            if column.name == name:
                if found is not None:
                    return _kept_values(self.columns).get(column.name)
                found = column
        return None if found is None else found.value

    def _title(self) -> str:
        return f"{self._kind_and_key()} at {self.sequence_info}"

    def _kind_and_key(self) -> str:
        key = ", ".join(f"{name}={value!r}" for name, value in self.primary_key)
        return f"{self.record_type.value} {{{key}}}"

    def __str__(self) -> str:
        return f"{self._kind_and_key()} [{', '.join(map(str, self.columns))}] at {self.sequence_info}"


def record_of_cells(
    record_type: RecordType,
    primary_key: PrimaryKey,
    cells: Any,
    sequence_info: SequenceInfo,
    original_columns: tuple[RecordColumn, ...] | None,
    *,
    make: Callable[[Any], tuple[RecordColumn, ...]],
) -> StreamRecord:
    """Return a record that makes its columns from ``cells`` by ``make`` when the columns are first read.

    If the record has the storage of the compiled codec, the columns are made immediately.
    """
    if NATIVE is not None:
        return StreamRecord(record_type, primary_key, make(cells), sequence_info, original_columns)
    record = _new_record(StreamRecord)
    for_type, for_key, for_columns, for_sequence, for_originals = _SLOTS  # twice as fast as the constructor
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

    A page makes its record objects on demand. This function asks the page for the position alone, without making a
    record.
    """
    find: Callable[[int], SequenceInfo] | None = getattr(records, "sequence_info", None)
    return records[index].sequence_info if find is None else find(index)
