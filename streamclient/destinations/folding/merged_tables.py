"""The fold of a table of changes, for example a part of a Spark frame, with columns of any type.

The fold does not use the values of cells. It uses their *sources*: the source of a cell is the index of the change that
put the cell. At the end, each column takes its values by these indexes. So the fold needs no conversion for a column
that a user has turned into decimals. The older versions of a cell are not in the cell's column, but in the list
``_older_versions``. The sources of older versions are the numbers after the indexes of all changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from attrs import define, frozen

from streamclient.destinations.destination_packages import compute, pyarrow
from streamclient.destinations.folding.fold import empty_rows, fold
from streamclient.destinations.folding.folded_batches import ChangeBatch
from streamclient.destinations.folding.row_changes import RowCells, TableRule
from streamclient.destinations.folding.versions import as_lists, versions_by_name, whole
from streamclient.destinations.rows.change_rows import (
    DELETED_COLUMNS,
    DELETED_VERSIONS,
    EPOCH,
    OLDER_VERSIONS,
    OPERATION,
    RESERVED,
    ROW_INDEX,
    TIMESTAMP,
    UNFIT,
    VALID_FROM,
    VALID_TO,
    VERSIONS,
)
from streamclient.destinations.rows.column_layout import (
    NO_VERSION,
    Cell,
    Cells,
    ChangeColumns,
    Column,
    column_type,
    counted,
    integers,
    version_number,
)
from streamclient.destinations.rows.column_names import original_name
from streamclient.destinations.rows.column_types import fits, shown, value_of
from streamclient.records import (
    ColumnOperation,
    ColumnType,
    ColumnValue,
    RecordColumn,
    RecordType,
    SequenceInfo,
    StreamRecord,
)

if TYPE_CHECKING:
    from pyarrow import Array, RecordBatch, Table

SEQUENCE = (EPOCH, TIMESTAMP, ROW_INDEX)

CHUNK_BYTES = 64 * 2**20
"""The number of bytes of changes that are folded together. It is large enough for work on whole columns, and far below
the memory of a Spark executor."""

_SOURCE = ColumnType.INTEGER
"""The column type of sources, which the fold uses instead of the values of cells."""

Fold = Callable[["Table", Sequence[str], int], "Table"]


def fold_table(changes: Table, key: Sequence[str], max_versions: int) -> Table:
    """Return the rows that result from ``changes``.

    Each row has its key, its attributes, ``_unfit``, and the sequence of its last change. ``changes`` has the layout of
    ``change_rows``. It must be sorted by key, then by sequence, and must have all changes of each key. A change that
    occurs twice counts once. ``key`` names the columns that identify rows. If one of them has a name in ``RESERVED``,
    for example ``_shard_id``, the result lacks this column.
    """
    work = _Changes.of(changes, key, max_versions)
    rows = fold(empty_rows(work.rule), work.batch, work.rule).rows
    stored = {original_name(name): name for name in rows.column_names if name not in RESERVED}
    numbers = whole(rows.column(stored.pop(work.rule.key[0])))
    sources = {name: whole(rows.column(column)) for name, column in stored.items()}
    return work.shown(work.last_places.take(numbers), sources)


def history_table(changes: Table, key: Sequence[str], max_versions: int) -> Table:
    """Return all states that each row has had, each with the times when the state began and ended.

    The arguments, and the other columns of the result, are the same as in ``fold_table``.
    """
    pa, pc = pyarrow(), compute()
    work = _Changes.of(changes, key, max_versions)
    places: list[int] = []
    sources: dict[str, list[Any]] = {name: [] for name in work.attributes}
    row, records = RowCells(()), work.batch.records
    for place, is_first in enumerate(work.is_first.to_pylist()):
        if is_first:
            row = RowCells(())
        row.apply(records[place], "", work.rule)
        if row.exists:
            places.append(place)
            for name, found in sources.items():
                versions = row.cells.get(name)
                found.append(versions[max(versions)] if versions else None)
    states, times = integers(places), whole(work.table.column(TIMESTAMP))
    made = work.shown(states, {name: pa.array(found, pa.int64()) for name, found in sources.items()})
    following = pc.if_else(pc.is_in(states, value_set=work.last_places), None, pc.add(states, 1))
    return made.append_column(VALID_FROM, times.take(states)).append_column(VALID_TO, times.take(following))


def folded_batches(
    changes: Iterable[RecordBatch], make: Fold, key: Sequence[str], max_versions: int, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[RecordBatch]:
    """Divide ``changes``, which are sorted by key, into groups, and yield the result of ``make`` for each group.

    A group has all changes of its keys. It has about ``chunk_bytes``, or one key if the changes of this key are larger.
    """
    pa, pc = pyarrow(), compute()
    waiting: list[Any] = []
    enough = chunk_bytes
    for batch in changes:
        waiting.append(batch)
        if sum(piece.nbytes for piece in waiting) < enough:
            continue
        table = pa.Table.from_batches(waiting)
        cut = pc.indices_nonzero(_differs(table, key))[-1].as_py()
        # If one key fills all batches that were read, look for its end only after their size has doubled.
        enough = chunk_bytes if cut else 2 * enough
        if cut:
            yield from make(table.slice(0, cut), key, max_versions).to_batches()
            waiting = table.slice(cut).to_batches()
    if waiting:
        yield from make(pa.Table.from_batches(waiting), key, max_versions).to_batches()


def _differs(table: Table, names: Sequence[str]) -> Array:
    """Return an array with true for each row that differs from the previous row in a column of ``names``.

    The first row is always true.
    """
    pa, pc = pyarrow(), compute()
    found = pa.repeat(pa.scalar(False), max(0, table.num_rows - 1))
    for name in names:
        values = whole(table.column(name))
        this, before = values[1:], values[:-1]
        is_other = pc.or_(pc.xor(this.is_null(), before.is_null()), pc.fill_null(pc.not_equal(this, before), False))
        found = pc.or_(found, is_other)
    return pa.concat_arrays([pa.repeat(pa.scalar(True), min(1, table.num_rows)), found])


@define(slots=False)
class _Changes:
    """Sorted changes without repeats, in the forms that the fold needs.

    The *place* of a change is its index in ``table``. The rows that the changes make are numbered in the order of keys.
    """

    table: Table
    key: Sequence[str]
    rule: TableRule
    """The ``TableRule`` for ``fold``. Its key is a single column, which has the numbers of the rows."""
    is_first: Array
    """For each change, in order, whether it is the first change of its key."""

    @classmethod
    def of(cls, changes: Table, key: Sequence[str], max_versions: int) -> _Changes:
        once = changes.filter(_differs(changes, [*key, *SEQUENCE]))
        name = original_name(key[0])
        return cls(once, key, TableRule((name,), max_versions, declared={name: _SOURCE}), _differs(once, key))

    @property
    def count(self) -> int:
        """The number of changes in ``table``."""
        return int(self.table.num_rows)

    @cached_property
    def numbers(self) -> Array:
        """For each change, in order, the number of the row that it changes."""
        return compute().subtract(compute().cumulative_sum(self.is_first.cast(pyarrow().int64())), 1)

    @cached_property
    def last_places(self) -> Array:
        """The index of the last change of each row, in the order of the rows."""
        is_last = pyarrow().concat_arrays([self.is_first[1:], self.is_first[: min(1, self.count)]])
        return compute().indices_nonzero(is_last).cast(pyarrow().int64())

    @cached_property
    def attributes(self) -> dict[str, str]:
        """The stored name of each column outside the key, by the column's name in the source table.

        The maps in change rows use the names of the source table.
        """
        names = [name for name in self.table.column_names if name not in RESERVED and name not in self.key]
        return {original_name(name): name for name in names}

    @cached_property
    def batch(self) -> ChangeBatch:
        """The changes as an argument of ``fold``, with sources instead of values."""
        pa = pyarrow()
        return ChangeBatch(self._columns, _Records(self), pa.repeat(pa.scalar(""), self.count))

    @cached_property
    def sequences(self) -> tuple[Array, Array, Array]:
        """The sequences of all changes, as three columns: epochs, timestamps in microseconds, and row indexes."""
        epochs, stamps, indexes = (whole(self.table.column(name)).cast(pyarrow().int64()) for name in SEQUENCE)
        return epochs, stamps, indexes

    @cached_property
    def operations(self) -> Array:
        """The operation of each change: PUT, UPDATE or DELETE."""
        return whole(self.table.column(OPERATION)).cast(pyarrow().string())

    @cached_property
    def versions(self) -> Array:
        """The versions of the columns that each change puts, as one map for each change."""
        return whole(self.table.column(VERSIONS))

    @cached_property
    def deletions(self) -> dict[int, list[RecordColumn]]:
        """The cells that delete a whole column or single versions, by the index of their change."""
        found: dict[int, list[RecordColumn]] = {}
        for place, name in self._entries(DELETED_COLUMNS):
            cell = RecordColumn(name, ColumnOperation.DELETE_ALL_VERSION)
            found.setdefault(place, []).append(cell)
        for place, (name, versions) in self._entries(DELETED_VERSIONS):
            cells = [RecordColumn(name, ColumnOperation.DELETE_ONE_VERSION, None, version) for version in versions]
            found.setdefault(place, []).extend(cells)
        return dict(sorted(found.items()))

    @cached_property
    def _columns(self) -> ChangeColumns:
        pc = compute()
        puts = {
            name: Cells(places, pc.fill_null(versions, NO_VERSION))
            for name, (places, versions) in versions_by_name(self.versions).items()
        }
        values: dict[Column, Cells] = {
            ("value", name, _SOURCE): Cells(cells.places, cells.places) for name, cells in puts.items()
        }
        values["key", self.rule.key[0], _SOURCE] = Cells(counted(self.count), self.numbers)
        deleted: dict[str, list[int]] = {}
        lists: dict[tuple[str, str], list[Cell]] = {}
        for place, cells in self.deletions.items():
            for cell in cells:
                if cell.operation is ColumnOperation.DELETE_ALL_VERSION:
                    deleted.setdefault(cell.name, []).append(place)
                else:
                    entry = (place, version_number(cell.timestamp_millis), "")
                    lists.setdefault(("deleted version", cell.name), []).append(entry)
        return ChangeColumns(
            count=self.count,
            key=self.rule.key,
            operations=self.operations,
            sequences=self.sequences,
            values=values,
            versions=puts,
            deleted={name: integers(places) for name, places in deleted.items()},
            lists=lists,
            originals=integers(()),
        )

    def _entries(self, name: str) -> list[tuple[int, Any]]:
        """Return all entries of ``name``, a column of lists or maps, each with the place of its change."""
        column = whole(self.table.column(name))
        places = compute().indices_nonzero(compute().list_value_length(as_lists(column)))
        found = zip(places.to_pylist(), column.take(places).to_pylist(), strict=True)
        return [(place, entry) for place, entries in found for entry in entries]

    # --- versions outside the columns -------------------------------------------------------------------------------

    @cached_property
    def older(self) -> dict[str, list[Mapping[str, Any]]]:
        """The older versions of the cells of each column, by column name; empty if the table keeps one version.

        In each column, the sources of these versions are ``count``, ``count + 1``, and so on.
        """
        found: dict[str, list[Mapping[str, Any]]] = {}
        for _, entry in self._older_entries:
            found.setdefault(entry["column"], []).append(entry)
        return found

    @cached_property
    def older_cells(self) -> dict[int, list[RecordColumn]]:
        """The older versions of each change as cells with sources instead of values, by the change's index."""
        found: dict[int, list[RecordColumn]] = {}
        sources: dict[str, int] = {}
        for place, entry in self._older_entries:
            name = entry["column"]
            source = sources.setdefault(name, self.count)
            sources[name] += 1
            found.setdefault(place, []).append(RecordColumn(name, ColumnOperation.PUT, source, entry["version"]))
        return found

    @cached_property
    def _older_entries(self) -> list[tuple[int, Any]]:
        return self._entries(OLDER_VERSIONS) if self.rule.max_versions > 1 else []

    # --- back from sources to values --------------------------------------------------------------------------------

    def shown(self, places: Array, sources: Mapping[str, Array]) -> Table:
        """Return a row for the change at each of ``places``: its key, its sequence, and the values at ``sources``."""
        pa, table = pyarrow(), self.table
        keys = {original_name(name): name for name in self.key if name not in RESERVED}
        all_sources = dict.fromkeys(keys, places) | {
            name: sources.get(name, pa.nulls(len(places), pa.int64())) for name in self.attributes
        }
        unfit = self._unfit
        entries: dict[int, list[tuple[str, Any]]] = {}
        for name in sorted(unfit.keys() & all_sources.keys()):
            for row, source in enumerate(all_sources[name].to_pylist()):
                if source in unfit[name]:
                    entries.setdefault(row, []).append((name, unfit[name][source]))
        columns = keys | self.attributes
        arrays = {columns[name]: self._values(name, columns[name]).take(found) for name, found in all_sources.items()}
        kind = table.schema.field(UNFIT).type
        arrays[UNFIT] = pa.array([entries.get(row, ()) for row in range(len(places))], kind)
        arrays |= {name: whole(table.column(name)).take(places) for name in SEQUENCE}
        return pa.table(arrays)

    @cached_property
    def _unfit(self) -> dict[str, dict[int, Any]]:
        """The values that do not fit their columns, by column name and then by source."""
        found: dict[str, dict[int, Any]] = {}
        for place, (name, typed) in self._entries(UNFIT):
            found.setdefault(name, {})[place] = typed
        for name, entries in self.older.items():
            kind = self._kind(name)
            for source, entry in enumerate(entries, self.count):
                if kind is None or not fits(_value(entry), kind):
                    found.setdefault(name, {})[source] = {"type": entry["type"], "value": entry["value"]}
        return found

    def _values(self, name: str, column: str) -> Array:
        """Return all values of the column ``name``, which is stored as ``column``, in the order of their sources.

        The values that changes put come first, then the older versions.
        """
        pa, kind = pyarrow(), self._kind(name)
        values = whole(self.table.column(column))
        if name not in self.older:
            return values
        older = [None if kind is None else shown(_value(entry), kind) for entry in self.older[name]]
        return pa.concat_arrays([values, pa.array(older, values.type)])

    def _kind(self, name: str) -> ColumnType | None:
        """Return the Tablestore type of column ``name``; ``None`` if a user has given the column another type."""
        return column_type(self.table.schema.field(self.attributes[name]).type) if name in self.attributes else None


def _value(entry: Mapping[str, Any]) -> ColumnValue:
    return value_of(entry["type"], entry["value"])


@frozen
class _Records(Sequence[StreamRecord]):
    """The changes as records. In place of its value, a put has the index of its change, which has the value."""

    changes: _Changes

    def __len__(self) -> int:
        return self.changes.count

    def __getitem__(self, place: Any) -> Any:
        changes = self.changes
        puts = changes.versions[place].as_py() or ()
        return StreamRecord(
            RecordType(changes.operations[place].as_py()),
            ((changes.rule.key[0], changes.numbers[place].as_py()),),
            (
                # A change row does not keep the order of the change's cells. Deletions come first here, so that they do
                # not delete what the same change puts. If the change first put a cell and then deleted it, this is
                # wrong: the row shows the cell, and the table does not have it.
                *changes.deletions.get(place, ()),
                *(RecordColumn(name, ColumnOperation.PUT, place, version) for name, version in puts),
                *changes.older_cells.get(place, ()),
            ),
            SequenceInfo(*(numbers[place].as_py() for numbers in changes.sequences)),
        )
