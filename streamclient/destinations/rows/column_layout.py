"""Changes by column, made of records or of pages: the common source of a commit's digest and of its rows.

Each cell of a column has a *place*: the index of its record in the order of the digest. From records, every cell passes
through Python once. From the pages of a stream (``page_columns``) whole columns are used unchanged, and only the few
cells that need a decision pass through Python.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from attrs import define, field

from streamclient.destinations.destination_packages import compute, pyarrow
from streamclient.destinations.rows.column_types import text_of, type_of
from streamclient.records import ColumnOperation, ColumnType, ColumnValue, PrimaryKey, RecordColumn, StreamRecord

if TYPE_CHECKING:
    from pyarrow import Array, DataType

NO_VERSION = -(2**63)
"""The number that stands for an absent version. Real versions are milliseconds since 1970."""

Cell = tuple[int, int, str]
"""The place, the version, and the text that ``typed_text`` makes of the value."""

Column = tuple[str, str, ColumnType]
"""``key`` or ``value``, the name, and one type of its values."""


@define
class Cells:
    """Places in ascending order, each with a value; in ``ChangeColumns.versions`` each value is a version."""

    places: Array
    values: Array


@define(slots=False)
class ChangeColumns:
    """The changes of one shard by column, in the order of the digest. Immutable by convention.

    Make it with ``of_records`` or ``page_columns.columns_of_pages``.
    """

    count: int
    key: tuple[str, ...]
    """Names of the key columns of the first record, in key order."""
    operations: Array
    sequences: tuple[Array, Array, Array]
    """Epochs, timestamps in microseconds, row indexes."""
    values: Mapping[Column, Cells]
    versions: Mapping[str, Cells]
    deleted: Mapping[str, Array]
    """For each column name, the indexes of the records that delete all versions of that column."""
    lists: Mapping[tuple[str, str], Sequence[Cell]]
    """All other cells, by their kind (``older``, ``original`` or ``deleted version``) and column name; in ascending
    order."""
    originals: Array
    """Indexes of the records that carry previous values, an empty list of values included."""

    @classmethod
    def of_records(cls, records: Iterable[StreamRecord]) -> ChangeColumns:
        """Make the columns of records, which may come in any order."""
        ordered = in_order(list(records))
        collector = Collector()
        for place, record in enumerate(ordered):
            collector.add(place, record)
        sequences = [record.sequence_info for record in ordered]
        return collector.finish(
            len(ordered),
            tuple(name for name, _ in ordered[0].primary_key) if ordered else (),
            pyarrow().array([record.record_type.value for record in ordered], pyarrow().string()),
            (
                integers([sequence.epoch for sequence in sequences]),
                integers([sequence.timestamp_micros for sequence in sequences]),
                integers([sequence.row_index for sequence in sequences]),
            ),
        )

    @cached_property
    def everywhere(self) -> Array:
        """The indexes of all records, in ascending order."""
        return counted(self.count)

    def spread(self, cells: Cells) -> Array:
        """Return the values as a whole column: null for records without a value."""
        if len(cells.places) == self.count:
            return cells.values
        return cells.values.take(compute().index_in(self.everywhere, value_set=cells.places))


def as_columns(changes: Iterable[StreamRecord] | ChangeColumns) -> ChangeColumns:
    """Return the columns of records. If columns are given, return them unchanged."""
    return changes if isinstance(changes, ChangeColumns) else ChangeColumns.of_records(changes)


# --- order ------------------------------------------------------------------------------------------------------------


def in_order(records: Sequence[StreamRecord]) -> list[StreamRecord]:
    """Return the records in the order in which the digest takes them."""
    infos = [record.sequence_info for record in records]
    numbers = [(info.epoch, info.timestamp_micros, info.row_index) for info in infos]
    if all(first < second for first, second in pairwise(numbers)):
        return list(records)
    order = sorted(range(len(records)), key=numbers.__getitem__)
    if any(numbers[first] == numbers[second] for first, second in pairwise(order)):
        order.sort(key=lambda place: (numbers[place], key_order(records[place].primary_key)))
    return [records[place] for place in order]


def key_order(key: PrimaryKey) -> tuple[tuple[str, str, str], ...]:
    """Return the sort key for records with equal sequence."""
    return tuple((name, type_of(value).value, text_of(value)) for name, value in key)


def split_cells(columns: Iterable[RecordColumn]) -> tuple[dict[str, RecordColumn], list[RecordColumn]]:
    """Split the put cells of one record: each column's value, and the older cells in the order of name and version."""
    values: dict[str, RecordColumn] = {}
    older: list[RecordColumn] = []
    for cell in columns:
        if cell.operation is not ColumnOperation.PUT:
            continue
        known = values.setdefault(cell.name, cell)
        if known is cell:
            continue
        if cell_order(cell) > cell_order(known):
            values[cell.name] = cell
            older.append(known)
        else:
            older.append(cell)
    return values, sorted(older, key=lambda cell: (cell.name, cell_order(cell)))


def cell_order(cell: RecordColumn) -> tuple[int, str]:
    """Return the sort key for the cells of one column in one record."""
    return version_number(cell.timestamp_millis), typed_text(cell.value)


def version_number(version: int | None) -> int:
    """Return a version as a number. An absent version has a number, too."""
    return NO_VERSION if version is None else version


def typed_text(value: ColumnValue | None) -> str:
    """Return a value's type and its text as one string; an empty string for no value."""
    return "" if value is None else f"{type_of(value).value}:{text_of(value)}"


# --- making columns ---------------------------------------------------------------------------------------------------


def integers(values: Iterable[int]) -> Array:
    """Return an array of 64-bit numbers without nulls."""
    numbers = values if isinstance(values, array) else array("q", values)
    pa = pyarrow()
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def counted(count: int) -> Array:
    """Return the numbers from 0 up to, but not including, ``count``."""
    pa = pyarrow()
    return compute().cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count), start=-1)


def arrow_type(column: ColumnType) -> DataType:
    """Return the Arrow type for values of a column type."""
    return _arrow_types()[column]


def column_type(kind: DataType) -> ColumnType | None:
    """Return the column type for an Arrow type; ``None`` if it is not one of the five."""
    return next((column for column, own in _arrow_types().items() if own == kind), None)


@cache
def _arrow_types() -> dict[ColumnType, DataType]:
    pa = pyarrow()
    return {
        ColumnType.INTEGER: pa.int64(),
        ColumnType.DOUBLE: pa.float64(),
        ColumnType.BOOLEAN: pa.bool_(),
        ColumnType.STRING: pa.string(),
        ColumnType.BINARY: pa.binary(),
    }


@define
class Collector:
    """Collects cells: single cells, and parts of a column whose places ascend."""

    _parts: dict[Column, list[Cells]] = field(factory=dict)
    _version_parts: dict[str, list[Cells]] = field(factory=dict)
    _values: dict[tuple[str, str], tuple[array[int], list[ColumnValue]]] = field(factory=dict)
    _versions: dict[str, tuple[array[int], array[int]]] = field(factory=dict)
    _deleted: dict[str, list[int]] = field(factory=dict)
    _lists: dict[tuple[str, str], list[Cell]] = field(factory=dict)
    _originals: list[int] = field(factory=list)

    def add(self, place: int, record: StreamRecord) -> None:
        """Add all cells of a record. The calls of this and of all other methods must come with ascending places."""
        for name, value in record.primary_key:
            self._value("key", name, place, value)
        self.cells(place, record.columns)
        if record.original_columns is not None:
            self.original(place, record.original_columns)

    def cells(self, place: int, columns: Sequence[RecordColumn]) -> None:
        """Add cells of one record. For each column of these cells, the call includes all cells that the record has."""
        values, older = split_cells(columns)
        for name, cell in values.items():
            if cell.value is not None:
                self._value("value", name, place, cell.value)
            known = self._versions.get(name)
            if known is None:
                known = self._versions.setdefault(name, (array("q"), array("q")))
            known[0].append(place)
            known[1].append(version_number(cell.timestamp_millis))
        if len(values) == len(columns):
            return
        self._list("older", place, older)
        for cell in columns:
            if cell.operation is ColumnOperation.DELETE_ALL_VERSION:
                self._deleted.setdefault(cell.name, []).append(place)
            elif cell.operation is ColumnOperation.DELETE_ONE_VERSION:
                self._list("deleted version", place, (cell,))

    def original(self, place: int, cells: Iterable[RecordColumn]) -> None:
        """Add the previous cells of one record; ``cells`` may be empty."""
        self._originals.append(place)
        self._list("original", place, cells)

    def part(self, column: Column, cells: Cells) -> None:
        """Add a part of a column, without nulls."""
        if len(cells.places):
            self._parts.setdefault(column, []).append(cells)

    def version_part(self, name: str, cells: Cells) -> None:
        """Add the versions of a part of a column."""
        if len(cells.places):
            self._version_parts.setdefault(name, []).append(cells)

    def _value(self, kind: str, name: str, place: int, value: ColumnValue) -> None:
        known = self._values.get((kind, name))
        if known is None:
            known = self._values.setdefault((kind, name), (array("q"), []))
        known[0].append(place)
        known[1].append(value)

    def _list(self, kind: str, place: int, cells: Iterable[RecordColumn]) -> None:
        for cell in cells:
            entry = (place, version_number(cell.timestamp_millis), typed_text(cell.value))
            self._lists.setdefault((kind, cell.name), []).append(entry)

    def finish(
        self,
        count: int,
        key: tuple[str, ...],
        operations: Array,
        sequences: tuple[Array, Array, Array],
        ranks: Array | None = None,
    ) -> ChangeColumns:
        """Return the columns of ``count`` records.

        ``ranks[place]`` is the rank, in the order of the digest, of the record whose cells were added under ``place``.
        """
        for (kind, name), (places, values) in self._values.items():
            for value_type, cells in _by_type(places, values):
                self.part((kind, name, value_type), cells)
        for name, (places, versions) in self._versions.items():
            self.version_part(name, Cells(integers(places), integers(versions)))
        moved: Mapping[int, int] | Sequence[int] = range(count) if ranks is None else ranks.to_pylist()
        return ChangeColumns(
            count=count,
            key=key,
            operations=operations,
            sequences=sequences,
            values={column: _joined(parts, ranks) for column, parts in self._parts.items()},
            versions={name: _joined(parts, ranks) for name, parts in self._version_parts.items()},
            deleted={
                name: integers(sorted({moved[place] for place in places})) for name, places in self._deleted.items()
            },
            lists={
                column: sorted((moved[place], version, text) for place, version, text in cells)
                for column, cells in self._lists.items()
            },
            originals=integers(sorted(moved[place] for place in self._originals)),
        )


def _by_type(places: array[int], values: list[ColumnValue]) -> Iterator[tuple[ColumnType, Cells]]:
    pa = pyarrow()
    classes = list(dict.fromkeys(map(type, values)))
    for kind in classes:
        own = values if len(classes) == 1 else [value for value in values if type(value) is kind]
        where = places if len(classes) == 1 else [p for p, v in zip(places, values, strict=True) if type(v) is kind]
        value_type = type_of(own[0])
        yield value_type, Cells(integers(where), pa.array(own, arrow_type(value_type)))


def _joined(parts: Sequence[Cells], ranks: Array | None) -> Cells:
    """Join parts into one, with ascending places."""
    if len(parts) == 1 and ranks is None:
        return parts[0]
    pa = pyarrow()
    places = pa.concat_arrays([part.places for part in parts])
    values = pa.concat_arrays([part.values for part in parts])
    if ranks is not None:
        places = ranks.take(places)
    elif all(first.places[-1].as_py() < second.places[0].as_py() for first, second in pairwise(parts)):
        return Cells(places, values)
    order = compute().sort_indices(places)
    return Cells(places.take(order), values.take(order))
