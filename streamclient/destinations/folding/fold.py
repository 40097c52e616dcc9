"""The application of changes to the rows of a mirror, for whole columns together ("fold").

The fold keeps these laws. The rules for a single row are in ``row_changes``.

1. *Order.* The changes of one key are applied in the order of their shard, and the changes of a child shard after the
   changes of its parents. The chains of commits allow no other order. If a change comes from the shard of the row's
   last change, and its sequence is not above the row's sequence, the change is old or repeated. The fold ignores such a
   change.
2. *Copy and changes.* A row that was copied from the table already contains all changes up to the time of the copy. The
   mirror's reading of changes begins before that time, so the mirror applies some changes a second time. The result is
   the same row: a column keeps the greatest versions that were put, and a second put of a version does not change which
   versions are the greatest. If a change emptied the row or the column, no earlier change matters. So a copied row is
   right when all changes up to the time of the copy are applied. Until then the row may be newer than the mirror's
   position.
3. *Doubt.* Only the deletion of a single version breaks law 2. If a put and the deletion of its version are applied a
   second time, the put may displace an older version, because a column keeps a limited number of versions. The table
   still has this older version. So a row is in doubt after such a deletion, if the copied row may already contain the
   deletion. This is possible if the time of the deletion is not later than ``_read_at``, with a margin for differing
   clocks. A row in doubt is read from the table again, and law 2 then holds for the row. A row is also in doubt if its
   key occurs more than once, which another writer can cause.
4. *Column by column.* If a column keeps one version, and no single version is deleted, the column has the value of its
   greatest version since the column was last emptied. Among several puts of that version, the last one counts. This
   module computes these values for all rows together. All other rows are folded cell by cell, by ``row_changes``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from attrs import define, evolve, field, frozen

from streamclient.destinations.destination_packages import compute, pyarrow
from streamclient.destinations.folding.folded_batches import ChangeBatch, ShardChanges
from streamclient.destinations.folding.row_changes import (
    OWN,
    RowCells,
    TableRule,
    beside_others,
    cells_of,
    own_types,
    table_of,
    without_others,
)
from streamclient.destinations.folding.versions import CellVersions, whole
from streamclient.destinations.rows.change_rows import (
    EPOCH,
    KEY,
    OLDER_VERSIONS,
    READ_AT,
    RESERVED,
    ROW_INDEX,
    SHARD,
    TIMESTAMP,
    UNFIT,
    ByPlace,
    column_values,
    settle_types,
    values_by_name,
)
from streamclient.destinations.rows.column_layout import Cells, arrow_type, integers
from streamclient.destinations.rows.column_names import stored_names
from streamclient.records import ColumnType, RecordType, SequenceInfo, StreamRecord

if TYPE_CHECKING:
    from pyarrow import Array, Schema, Table


@frozen
class Folded:
    """The rows that ``fold`` returns, and the keys of rows that it cannot compute."""

    rows: Table
    """The rows after the changes, in the layout of a mirror's rows, without the columns of other programs."""
    in_doubt: tuple[tuple[Any, ...], ...] = ()
    """The keys of rows whose content is unknown. ``rows`` lacks these rows. The caller must read them from the source
    table."""
    doubled: tuple[tuple[Any, ...], ...] = ()
    """The keys of ``in_doubt`` that several rows of the mirror have, so that the right row is unknown."""


def fold(present: Table, batch: ChangeBatch, rule: TableRule) -> Folded:
    """Apply the changes of ``batch`` to ``present``, the mirror's rows whose keys occur in the batch."""
    if batch.is_empty:
        return Folded(present)
    names = _Names.of(present, batch, rule)
    doubled: tuple[tuple[Any, ...], ...] = ()
    work = _Fold(with_keys(without_others(present, rule.key), rule), batch, rule, names)
    if work.has_doubles:
        own, doubled = without_doubles(work.present, rule)
        work = _Fold(own, batch, rule, names)
    alone = work.to_be_folded_alone()
    whole = work.rows(alone)
    if work.late:
        alone |= work.late
        whole = work.rows(alone)
    one_by_one = work.rows_alone(alone)
    doubts = tuple(row.key for row in one_by_one if row.exists and row.is_in_doubt and row.key not in doubled)
    sure = [row for row in one_by_one if not row.is_in_doubt]
    rows = beside_others(_united(whole, table_of(sure, rule.key, names.types, names.stored)), present.schema)
    return Folded(_without_keys(rows, doubled, rule), (*doubts, *doubled), doubled)


def without_doubles(present: Table, rule: TableRule) -> tuple[Table, tuple[tuple[Any, ...], ...]]:
    """Return the rows of ``present`` whose keys no other row has, and the keys that several rows have."""
    names = stored_keys(rule)
    placed = present.select(names).append_column(KEY, integers(range(present.num_rows)))
    found = placed.group_by(names, use_threads=False).aggregate([(KEY, "count"), (KEY, "min")])
    is_single = compute().equal(found.column(f"{KEY}_count"), 1)
    twice = found.filter(compute().invert(is_single)).select(names)
    places = whole(found.column(f"{KEY}_min")).filter(whole(is_single))
    return present.take(places), tuple(zip(*(column.to_pylist() for column in twice.columns), strict=True))


def _without_keys(rows: Table, keys: Collection[tuple[Any, ...]], rule: TableRule) -> Table:
    if not keys:
        return rows
    found = zip(*(rows.column(name).to_pylist() for name in stored_keys(rule)), strict=True)
    return rows.filter(pyarrow().array([key not in keys for key in found], pyarrow().bool_()))


def copied(records: Sequence[StreamRecord], read_at_micros: int, columns: Schema, rule: TableRule) -> Table:
    """Turn rows that were read from the source table into rows of a mirror that has the columns ``columns``.

    ``records`` has each row as a record of type PUT. ``read_at_micros`` is the time when the rows were read.
    """
    pa = pyarrow()
    placed = [
        evolve(record, sequence_info=SequenceInfo(0, read_at_micros, place)) for place, record in enumerate(records)
    ]
    rows = fold(columns.empty_table(), ChangeBatch.of([ShardChanges.of("", placed)]), rule).rows
    types = own_types()
    empty = {name: pa.nulls(rows.num_rows, types[name]) for name in (EPOCH, TIMESTAMP, ROW_INDEX, SHARD)}
    empty[READ_AT] = pa.repeat(pa.scalar(read_at_micros, types[READ_AT]), rows.num_rows)
    for name, array in empty.items():
        rows = rows.set_column(rows.column_names.index(name), name, array)
    return rows


def empty_rows(rule: TableRule) -> Table:
    """Return a table without rows that has the columns of a new mirror: key, declared columns, and ``OWN``."""
    pa = pyarrow()
    names = stored_names(rule.key, [], RESERVED)
    names |= stored_names(rule.declared, names.values(), RESERVED)
    own = [(names[name], arrow_type(rule.declared[name])) for name in dict.fromkeys((*rule.key, *rule.declared))]
    return pa.schema([*own, *own_types().items()]).empty_table()


def stored_keys(rule: TableRule) -> list[str]:
    """Return the names of the key columns in the mirror, in the order of the key."""
    names = stored_names(rule.key, [], RESERVED)
    return [names[name] for name in rule.key]


@frozen
class _Names:
    """The stored name and the type of each column of the fold's result, each by the name in the source table."""

    stored: dict[str, str]
    types: dict[str, ColumnType]

    @classmethod
    def of(cls, present: Table, batch: ChangeBatch, rule: TableRule) -> _Names:
        types = settle_types(values_by_name(batch.changes), present.schema, rule.declared)
        for name, kind in _types_beside(present):
            types.setdefault(name, kind)
        return cls(stored_names(types, present.column_names, RESERVED), types)


def _types_beside(rows: Table) -> list[tuple[str, ColumnType]]:
    """Return the column and the type of each value in ``_unfit``, the map of values that do not fit their columns.

    A destination with a limited number of columns has some columns only in this map.
    """
    found = rows.column(UNFIT).drop_null().to_pylist() if UNFIT in rows.column_names else []
    return [(name, ColumnType(held["type"])) for pairs in found for name, held in pairs]


def types_of(rows: Table, rule: TableRule) -> dict[str, ColumnType]:
    """Return the Tablestore type of each column of a mirror's rows, by the column's name in the source table."""
    types = settle_types({}, rows.schema, rule.declared)
    for name, kind in _types_beside(rows):
        types.setdefault(name, kind)
    return types


def with_keys(present: Table, rule: TableRule) -> Table:
    """Return a mirror's rows with all key values in the key columns.

    A destination may keep a key value in the map of values that do not fit their columns. This function moves such a
    value into its key column.
    """
    pa = pyarrow()
    present = present.combine_chunks()
    for name, stored in zip(rule.key, stored_keys(rule), strict=True):
        if present.num_rows and present.column(stored).null_count:
            keys = [row.key[rule.key.index(name)] for row in cells_of(present, rule.key)]
            place = present.column_names.index(stored)
            present = present.set_column(place, stored, pa.array(keys, present.schema.field(stored).type))
    return present


def _united(left: Table, right: Table) -> Table:
    if not right.num_rows:
        return left
    return pyarrow().concat_tables([left, right.select(left.column_names)])


@define(slots=False)
class _Fold:
    """One fold of the changes ``batch`` into the rows ``present``.

    The fold numbers the rows: first the rows in ``present``, by their index, then the new rows.

    The *place* of a change is its index in ``batch``. The *source* of a cell's value says where the value is. A source
    below ``count`` is the number of the present row that has the cell. A source from ``count`` on is ``count`` plus the
    place of the change that put the cell.
    """

    present: Table
    batch: ChangeBatch
    rule: TableRule
    names: _Names
    late: set[int] = field(factory=set)

    @property
    def count(self) -> int:
        """The number of rows in ``present``."""
        return int(self.present.num_rows)

    @cached_property
    def all_numbers(self) -> Array:
        """The row numbers of the rows in ``present``, followed by the row numbers of the changes.

        Rows and changes with the same key have the same row number.
        """
        pa, pc = pyarrow(), compute()
        codes = integers([0]).take(pa.repeat(pa.scalar(0), self.count + self.batch.changes.count))
        for name in self.rule.key:
            there = whole(self.present.column(self.names.stored[name]))
            both = pa.concat_arrays([there, self.batch.key_columns[name].cast(there.type)]).dictionary_encode()
            size = len(both.dictionary) + 1
            codes = pc.add(pc.multiply(codes, size), both.indices.cast(pa.int64()))
            codes = codes.dictionary_encode().indices.cast(pa.int64())
        return codes

    @property
    def has_doubles(self) -> bool:
        """Whether several rows in ``present`` have the same key.

        If so, their row numbers differ from their indexes, and the fold would give rows the values of other rows.
        """
        last = compute().max(self.all_numbers.slice(0, self.count)).as_py()
        return self.count > 0 and last != self.count - 1

    @cached_property
    def numbers(self) -> Array:
        """For each change, in order, the number of the row that it changes."""
        return self.all_numbers.slice(self.count)

    @cached_property
    def rows_count(self) -> int:
        """The count of all rows: the rows in ``present`` and the new rows."""
        last = compute().max(self.all_numbers).as_py()
        return 0 if last is None else last + 1

    @cached_property
    def every_row(self) -> Array:
        """The row numbers of all rows: 0, 1, and so on below ``rows_count``."""
        return integers(range(self.rows_count))

    @cached_property
    def is_news(self) -> Array:
        """For each change, in order, whether it is missing in its row, so that it must be applied."""
        pc = compute()
        there = pc.if_else(pc.less(self.numbers, self.count), self.numbers, None)

        def known(name: str) -> Array:
            return whole(self.present.column(name)).take(there)

        epochs, stamps, indexes = self.batch.changes.sequences
        known_stamps = known(TIMESTAMP).cast(pyarrow().int64())
        later = pc.or_(
            pc.greater(epochs, known(EPOCH)),
            pc.and_(
                pc.equal(epochs, known(EPOCH)),
                pc.or_(
                    pc.greater(stamps, known_stamps),
                    pc.and_(pc.equal(stamps, known_stamps), pc.greater(indexes, known(ROW_INDEX))),
                ),
            ),
        )
        return pc.or_(pc.fill_null(later, True), pc.not_equal(pc.fill_null(known(SHARD), ""), self.batch.shards))

    # --- rows that are folded cell by cell --------------------------------------------------------------------------

    def to_be_folded_alone(self) -> set[int]:
        """Return the row numbers of the rows that must be folded cell by cell, by law 4 of this module."""
        pc, changes = compute(), self.batch.changes
        if self.rule.max_versions > 1:
            return set(pc.unique(self.numbers).to_pylist())
        places = {place for (kind, _), cells in changes.lists.items() if kind != "original" for place, _, _ in cells}
        for name, emptied in changes.deleted.items():
            if name in changes.versions:
                # One record both puts a value into this column and empties the column. ``ChangeColumns`` does not keep
                # the order of the two.
                both = pc.is_in(emptied, value_set=changes.versions[name].places)
                places.update(emptied.filter(both).to_pylist())
        # An update without a put may remove the row's last cell. The expiry of a row without cells depends on the time
        # of its last write, which only `RowCells` knows. If the table has a time to live, the row may even have expired
        # before any change without a put.
        is_quiet = pc.equal(changes.operations, RecordType.UPDATE.value)
        if self.rule.ttl_millis is not None:
            is_quiet = pc.not_equal(changes.operations, RecordType.DELETE.value)
        places.update(pc.indices_nonzero(pc.and_(is_quiet, pc.invert(self._puts))).to_pylist())
        alone = set(self.numbers.take(integers(sorted(places))).to_pylist())
        has_older = whole(self.present.column(OLDER_VERSIONS)).is_valid()
        return alone | set(pc.indices_nonzero(has_older).to_pylist())

    @cached_property
    def _puts(self) -> Array:
        """For each change, in order, whether it puts at least one cell."""
        pa, pc, changes = pyarrow(), compute(), self.batch.changes
        parts = [cells.places for cells in changes.versions.values()]
        places = pc.unique(pa.concat_arrays(parts)) if parts else integers(())
        return pc.is_in(changes.everywhere, value_set=places)

    def rows_alone(self, numbers: set[int]) -> list[RowCells]:
        """Fold the rows with the row numbers ``numbers`` cell by cell, and return them."""
        if not numbers:
            return []
        pc = compute()
        wanted = pc.is_in(self.numbers, value_set=integers(sorted(numbers)))
        places = pc.indices_nonzero(wanted).to_pylist()
        there = integers(sorted(number for number in numbers if number < self.count))
        rows = dict(zip(there.to_pylist(), cells_of(self.present.take(there), self.rule.key), strict=True))
        shards, of_row = self.batch.shards.to_pylist(), self.numbers.to_pylist()
        for place in places:
            record = self.batch.records[place]
            key = dict(record.primary_key)
            row = rows.setdefault(of_row[place], RowCells(tuple(key[name] for name in self.rule.key)))
            row.apply(record, shards[place], self.rule)
        return list(rows.values())

    # --- rows that are folded by columns ----------------------------------------------------------------------------

    def rows(self, alone: set[int]) -> Table:
        """Fold all rows by whole columns, and return them, except the rows with the row numbers ``alone``."""
        pa, pc = pyarrow(), compute()
        excluded = integers(sorted(alone))
        taken = pc.and_(self.is_news, pc.invert(pc.is_in(self.numbers, value_set=excluded)))
        considered = pc.if_else(taken, self.numbers, None)
        operations, places = self.batch.changes.operations, self.batch.changes.everywhere
        resets = pc.and_(taken, pc.not_equal(operations, RecordType.UPDATE.value))
        reset_at = self._greatest(considered.filter(resets), places.filter(resets))
        since_reset = pc.greater_equal(places, pc.fill_null(reset_at, -1).take(self.numbers))
        self._considered = pc.if_else(since_reset, considered, None)
        is_there = pc.less(self.every_row, self.count)
        self._kept = pc.if_else(pc.and_(is_there, reset_at.is_null()), self.every_row, None)
        is_put = pc.fill_null(pc.equal(operations.take(reset_at), RecordType.PUT.value), False)
        exists = pc.or_(self._kept.is_valid(), is_put)
        exists = pc.or_(exists, self._is_made_by_update(exists))
        exists = pc.and_(exists, pc.invert(pc.is_in(self.every_row, value_set=excluded)))
        last = self._greatest(considered.filter(taken), places.filter(taken))
        return self._assembled(pc.indices_nonzero(exists).cast(pa.int64()), last)

    def _is_made_by_update(self, exists: Array) -> Array:
        pc = compute()
        absent = pc.invert(exists)
        of_absent = pc.fill_null(absent.take(self._considered), False)
        if not of_absent.true_count:
            return of_absent.slice(0, 0) if not self.rows_count else pc.and_(exists, False)
        makers = self._considered.filter(pc.and_(of_absent, self._puts))
        return pc.is_in(self.every_row, value_set=makers)

    def _greatest(self, numbers: Array, places: Array) -> Array:
        """Return, for each row of the fold, the place of its last change among the changes at ``places``.

        ``numbers`` has the row number of each of these changes. The result is null for a row without such a change.
        """
        pa = pyarrow()
        found = pa.table({"row": numbers, "place": places}).group_by("row", use_threads=False)
        last = found.aggregate([("place", "max")])
        return self._spread(whole(last.column("row")), whole(last.column("place_max")))

    def _spread(self, numbers: Array, values: Array) -> Array:
        """Return an array for all rows, with ``values`` at the row numbers ``numbers``, and null for all other rows.

        ``numbers`` must not have a row number twice.
        """
        return values.take(compute().index_in(self.every_row, value_set=numbers))

    def _assembled(self, result: Array, last: Array) -> Table:
        """Return a table of the rows with the numbers ``result``; ``last`` has the place of each row's last change."""
        pa, pc = pyarrow(), compute()
        kept = self._kept.take(result)
        versions = CellVersions(self.present, self._kept, result)
        unfit: ByPlace = {}
        arrays: dict[str, Any] = {}
        sources: dict[str, Array] = {}
        cells = values_by_name(self.batch.changes)
        for name, kind in self.names.types.items():
            stored = self.names.stored[name]
            there = whole(self.present.column(stored)) if stored in self.present.column_names else None
            if name in self.rule.key:
                source = pc.coalesce(pc.add(last, self.count), self.every_row).take(result)
            elif name in self.batch.changes.versions or name in self.batch.changes.deleted:
                source = self._sources_of(name, there, versions).take(result)
                sources[name] = source
            else:
                source = kept
            beside: ByPlace = {}
            if name in cells:
                changed = column_values(self.batch.changes, name, cells[name], kind, beside)
            else:
                changed = pa.nulls(self.batch.changes.count, arrow_type(kind))
            before = pa.nulls(self.count, arrow_type(kind)) if there is None else there
            arrays[stored] = pa.concat_arrays([before, whole(changed)]).take(source)
            for place, entries in beside.items():
                unfit.setdefault(place, []).extend(entries)
        written = pc.divide(whole(self.batch.changes.sequences[1]).cast(pa.int64()), 1_000)
        arrays |= versions.finish(kept, sources, written.take(last.take(result)))
        arrays[UNFIT] = self._unfit(unfit, kept, sources)
        arrays[OLDER_VERSIONS] = pa.nulls(len(result), own_types()[OLDER_VERSIONS])
        arrays |= self._sequences(result, last)
        arrays[READ_AT] = whole(self.present.column(READ_AT)).take(kept)
        self.late = versions.late
        return pa.table({name: arrays[name] for name in (*self.names.stored.values(), *OWN)})

    def _sources_of(self, name: str, there: Array | None, versions: CellVersions) -> Array:
        """Return the source of each row's value in column ``name`` (see ``_Fold``); null for a row without a value.

        ``there`` has the column's values in the present rows. The versions of values that changes put are added to
        ``versions``.
        """
        pa, pc, changes = pyarrow(), compute(), self.batch.changes
        cells = changes.versions.get(name) or Cells(integers(()), integers(()))
        rows, places, numbers = self._considered.take(cells.places), cells.places, cells.values
        if rows.null_count:
            is_counted = rows.is_valid()
            rows, places, numbers = rows.filter(is_counted), places.filter(is_counted), numbers.filter(is_counted)
        before = self._kept
        if name in changes.deleted:
            emptied = changes.deleted[name]
            of_rows = self._considered.take(emptied)
            emptied_at = self._greatest(of_rows.drop_null(), emptied.filter(of_rows.is_valid()))
            before = pc.if_else(emptied_at.is_null(), before, None)
            is_after = pc.greater(places, pc.fill_null(emptied_at, -1).take(rows))
            rows, places, numbers = rows.filter(is_after), places.filter(is_after), numbers.filter(is_after)
        if pc.count_distinct(rows).as_py() < len(rows):
            table = pa.table({"row": rows, "version": numbers, "place": places})
            order = pc.sort_indices(table, sort_keys=[(each, "ascending") for each in table.column_names])
            rows, places, numbers = rows.take(order), places.take(order), numbers.take(order)
            is_last = pa.concat_arrays([pc.not_equal(rows[1:], rows[:-1]), pa.array([True])])
            rows, places, numbers = rows.filter(is_last), places.filter(is_last), numbers.filter(is_last)
        old = versions.there(name, there)
        if old is not None:
            wins = pc.fill_null(pc.greater_equal(numbers, old.take(before.take(rows))), True)
            if wins.false_count:
                rows, places, numbers = rows.filter(wins), places.filter(wins), numbers.filter(wins)
        versions.put(name, rows, numbers)
        return pc.coalesce(self._spread(rows, pc.add(places, self.count)), before)

    def _unfit(self, changed: ByPlace, kept: Array, sources: Mapping[str, Array]) -> Array:
        """Return the maps of the column ``_unfit``: each row's values that do not fit their columns.

        ``changed`` has the unfit values that changes put. ``sources`` has the sources of each changed column's values,
        and ``kept`` those of all other columns. Unfit values are few, so this method handles them one by one.
        """
        pa = pyarrow()
        kind = own_types()[UNFIT]
        found: dict[str, dict[int, Any]] = {}
        for place, entries in changed.items():
            for name, value in entries:
                found.setdefault(name, {})[self.count + place] = value
        there = whole(self.present.column(UNFIT))
        for place, pairs in enumerate(there.to_pylist() if there.null_count < len(there) else ()):
            for name, value in pairs or ():
                found.setdefault(name, {})[place] = value
        made: dict[int, list[Any]] = {}
        for name in sorted(found):
            for row, source in enumerate(sources.get(name, kept).to_pylist()):
                if source in found[name]:
                    made.setdefault(row, []).append((name, found[name][source]))
        if not made:
            return pa.nulls(len(kept), kind)
        return pa.array([made.get(row) for row in range(len(kept))], kind)

    def _sequences(self, result: Array, last: Array) -> dict[str, Array]:
        pa, pc = pyarrow(), compute()
        types = own_types()
        source = pc.coalesce(pc.add(last, self.count), self.every_row).take(result)
        changed = dict(
            zip((EPOCH, TIMESTAMP, ROW_INDEX, SHARD), (*self.batch.changes.sequences, self.batch.shards), strict=True)
        )
        return {
            name: pa.concat_arrays([whole(self.present.column(name)), array.cast(types[name])]).take(source)
            for name, array in changed.items()
        }
