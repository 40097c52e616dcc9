"""The changes of a shard as columns, from which a commit's digest and its rows are computed.

Records are sorted by sequence, and records with equal sequences by key (``in_order``). Each cell has a *place*: the
index of its record in this order. The columns are made from records or from pages of a stream. From records, Python
handles every cell once. From pages (``page_columns``), whole columns are used unchanged, and Python handles only the
few cells that need a decision.
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
"""The number for a cell without a version. A version is a number of milliseconds since 1970."""

Cell = tuple[int, int, str]
"""A cell as its place, its version, and its value as text by ``typed_text``."""

Column = tuple[str, str, ColumnType]
"""The name of one column's values of one type, in three parts: ``key`` or ``value``, the column's name, the type."""


@define
class Cells:
    """Cells of one column: their places, which ascend, and their values or (in ``ChangeColumns.versions``) versions."""

    places: Array
    values: Array


@define(slots=False)
class ChangeColumns:
    """The changes of one shard as columns, in the order of ``in_order``.

    ``of_records`` or ``columns_of_pages`` makes such an object. Callers must not modify it.
    """

    count: int
    key: tuple[str, ...]
    """The names of the key columns, in the order in which the first record has them."""
    operations: Array
    sequences: tuple[Array, Array, Array]
    """The records' sequences, as three columns: epochs, timestamps in microseconds, and row indexes."""
    values: Mapping[Column, Cells]
    versions: Mapping[str, Cells]
    deleted: Mapping[str, Array]
    """For the name of each deleted column, the places of the records that delete all versions of this column."""
    lists: Mapping[tuple[str, str], Sequence[Cell]]
    """All other cells, by kind (``older``, ``original`` or ``deleted version``) and column name. Each list is sorted by
    place, then by version, then by text."""
    originals: Array
    """The places of the records that have a list of previous values, even an empty list."""

    @classmethod
    def of_records(cls, records: Iterable[StreamRecord]) -> ChangeColumns:
        """Sort ``records``, and convert them to columns."""
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
        """The places of all records: 0, 1, and so on below ``count``."""
        return counted(self.count)

    def spread(self, cells: Cells) -> Array:
        """Return an array for all records, with the values of ``cells`` at their places, and null elsewhere."""
        if len(cells.places) == self.count:
            return cells.values
        return cells.values.take(compute().index_in(self.everywhere, value_set=cells.places))


def as_columns(changes: Iterable[StreamRecord] | ChangeColumns) -> ChangeColumns:
    """Convert ``changes`` to columns. If they are columns already, return them unchanged."""
    return changes if isinstance(changes, ChangeColumns) else ChangeColumns.of_records(changes)


# --- order ------------------------------------------------------------------------------------------------------------


def in_order(records: Sequence[StreamRecord]) -> list[StreamRecord]:
    """Return ``records`` sorted by sequence, and records with equal sequences by key. A digest needs this order."""
    infos = [record.sequence_info for record in records]
    numbers = [(info.epoch, info.timestamp_micros, info.row_index) for info in infos]
    if all(first < second for first, second in pairwise(numbers)):
        return list(records)
    order = sorted(range(len(records)), key=numbers.__getitem__)
    if any(numbers[first] == numbers[second] for first, second in pairwise(order)):
        order.sort(key=lambda place: (numbers[place], key_order(records[place].primary_key)))
    return [records[place] for place in order]


def key_order(key: PrimaryKey) -> tuple[tuple[str, str, str], ...]:
    """Return a sort key for the primary key of a record, by which records with equal sequences are sorted."""
    return tuple((name, type_of(value).value, text_of(value)) for name, value in key)


def split_cells(columns: Iterable[RecordColumn]) -> tuple[dict[str, RecordColumn], list[RecordColumn]]:
    """Return two groups of the cells that a record puts: the cells with the columns' values, and all other cells.

    The first group has one cell for each column, by the column's name. If the record puts several cells into one
    column, the greatest of them by ``cell_order`` has the column's value, and the others are in the second group. The
    second group is sorted by column name and then by ``cell_order``.
    """
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
    """Return a sort key for several cells of one column in one record. The greatest cell has the column's value."""
    return version_number(cell.timestamp_millis), typed_text(cell.value)


def version_number(version: int | None) -> int:
    """Return ``version``, or ``NO_VERSION`` for ``None``."""
    return NO_VERSION if version is None else version


def typed_text(value: ColumnValue | None) -> str:
    """Return a value's type and text as one string, such as ``INTEGER:5``; an empty string for ``None``."""
    return "" if value is None else f"{type_of(value).value}:{text_of(value)}"


# --- making columns ---------------------------------------------------------------------------------------------------


def integers(values: Iterable[int]) -> Array:
    """Make an Arrow array of 64-bit integers from ``values``."""
    numbers = values if isinstance(values, array) else array("q", values)
    pa = pyarrow()
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def counted(count: int) -> Array:
    """Make an Arrow array of the numbers from 0 to ``count`` - 1."""
    pa = pyarrow()
    return compute().cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count), start=-1)


def arrow_type(column: ColumnType) -> DataType:
    """Return the Arrow type in which values of the Tablestore type ``column`` are stored."""
    return _arrow_types()[column]


def column_type(kind: DataType) -> ColumnType | None:
    """Return the Tablestore type whose values are stored in the Arrow type ``kind``, or ``None``."""
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
    """A collector that takes the cells of changes, singly or as parts of columns, and makes ``ChangeColumns`` of them.

    In successive calls of the same method, the places must ascend.
    """

    _parts: dict[Column, list[Cells]] = field(factory=dict)
    _version_parts: dict[str, list[Cells]] = field(factory=dict)
    _values: dict[tuple[str, str], tuple[array[int], list[ColumnValue]]] = field(factory=dict)
    _versions: dict[str, tuple[array[int], array[int]]] = field(factory=dict)
    _deleted: dict[str, list[int]] = field(factory=dict)
    _lists: dict[tuple[str, str], list[Cell]] = field(factory=dict)
    _originals: list[int] = field(factory=list)

    def add(self, place: int, record: StreamRecord) -> None:
        """Add all cells of the record at ``place``."""
        for name, value in record.primary_key:
            self._value("key", name, place, value)
        self.cells(place, record.columns)
        if record.original_columns is not None:
            self.original(place, record.original_columns)

    def cells(self, place: int, columns: Sequence[RecordColumn]) -> None:
        """Add cells of the record at ``place``.

        If the record has several cells of one column, pass all of them in one call.
        """
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
        """Add ``cells``, which the row had before the change of the record at ``place``; ``cells`` may be empty."""
        self._originals.append(place)
        self._list("original", place, cells)

    def part(self, column: Column, cells: Cells) -> None:
        """Add several ``cells`` of ``column`` together. Their values must not be null."""
        if len(cells.places):
            self._parts.setdefault(column, []).append(cells)

    def version_part(self, name: str, cells: Cells) -> None:
        """Add the versions of several cells of the column ``name`` together; ``cells.values`` are the versions."""
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
        """Make the columns of ``count`` records from all cells that were added.

        ``operations`` and ``sequences`` must have the records in the order of the result. If the places at which the
        cells were added are in another order, pass ``ranks``. For the record whose cells were added with the place
        ``p``, ``ranks[p]`` is the record's place in the result.
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
    """Join ``parts`` of one column, so that the places ascend.

    If ``ranks`` is given, ``ranks[p]`` replaces each place ``p``, as in ``Collector.finish``.
    """
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
