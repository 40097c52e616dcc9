"""The laws of folding, over all interleavings of copying, changes, cuts and repeats, against a model of the table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from streamclient.destinations.folding.fold import copied, empty_rows, fold, types_of
from streamclient.destinations.folding.folded_batches import ChangeBatch, ShardChanges
from streamclient.destinations.folding.row_changes import TableRule, cells_of, expired
from streamclient.records import ColumnOperation, ColumnType, RecordColumn, RecordType, SequenceInfo, StreamRecord
from tests.folding.table_model import KEYS, STEP, TableModel, typed, writes


class MirrorUnderTest:
    """A mirror as its destination keeps it, and the table that it may have to read again."""

    def __init__(self, rule: TableRule) -> None:
        self.rule = rule
        self.rows = empty_rows(rule)
        self.doubts = 0

    def copy(self, records: list[StreamRecord], read_at: int) -> None:
        self.rows = self.joined(self.rows, copied(records, read_at, self.rows.schema, self.rule))

    def take(self, parts: list[tuple[str, list[StreamRecord]]], table: TableModel, now: int) -> None:
        batch = ChangeBatch.of([ShardChanges.of(*part) for part in parts])
        keys = [dict(record.primary_key)["id"] for _, records in parts for record in records]
        marks = pa.array([one in keys for one in self.rows.column("id").to_pylist()], pa.bool_())
        folded = fold(self.rows.filter(marks), batch, self.rule)
        kept = self.rows.filter(pa.compute.invert(marks))
        self.rows = self.joined(kept, folded.rows)
        if folded.in_doubt:
            self.doubts += 1
            again = table.read([(("id", key),) for (key,) in folded.in_doubt])
            self.copy(again, now)

    def joined(self, left: pa.Table, right: pa.Table) -> pa.Table:
        return pa.concat_tables([left, right], promote_options="default")

    def cells(self) -> dict[Any, Any]:
        return typed({(("id", one.key[0]),): one.cells for one in cells_of(self.rows, self.rule.key)})


@given(st.data())
def test_a_mirror_equals_the_table_after_any_copy_and_any_cuts(data: st.DataObject) -> None:
    records = data.draw(writes())
    versions = data.draw(st.sampled_from([1, 1, 2, 3]))
    mirror = MirrorUnderTest(TableRule(("id",), versions, declared={"id": ColumnType.INTEGER, "a": ColumnType.INTEGER}))
    for name in data.draw(st.sets(st.sampled_from(["b", "B", "others"]), max_size=2)):
        # Another program has added a column, perhaps with a name that the table comes to use.
        kind = data.draw(st.sampled_from([pa.date32(), pa.int32(), pa.decimal128(9, 2), pa.list_(pa.string())]))
        mirror.rows = mirror.rows.append_column(name, pa.nulls(0, kind))
    places = st.integers(0, len(records))
    first = data.draw(places)
    for key in KEYS:
        # Each row is copied at a moment of its own; changes are read from before the first of them.
        at = data.draw(st.integers(first, len(records)))
        mirror.copy(TableModel.after(records[:at], versions).read([(key,)]), at * STEP)

    start = first
    while start < len(records):
        end = data.draw(st.integers(start + 1, len(records)))
        now = data.draw(st.integers(end, len(records)))
        part = [("shard", records[start:end])]
        mirror.take(part, TableModel.after(records[:now], versions), now * STEP)
        start = end

    assert mirror.cells() == typed(TableModel.after(records, versions).rows)


def put(number: int, key: int = 1, **columns: Any) -> StreamRecord:
    cells = tuple(RecordColumn(name, ColumnOperation.PUT, value, number) for name, value in columns.items())
    return StreamRecord(RecordType.PUT, (("id", key),), cells, SequenceInfo(0, number * STEP, 0))


def update(number: int, *cells: RecordColumn, key: int = 1) -> StreamRecord:
    return StreamRecord(RecordType.UPDATE, (("id", key),), cells, SequenceInfo(0, number * STEP, 0))


DELETE_ALL = ColumnOperation.DELETE_ALL_VERSION
RULE = TableRule(("id",), declared={"id": ColumnType.INTEGER})


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us", tz="UTC"), pa.int32(), pa.list_(pa.int64())])
@pytest.mark.parametrize("max_versions", [1, 2], ids=["by columns", "cell by cell"])
def test_values_in_the_columns_of_others_are_no_cells(kind: Any, max_versions: int) -> None:
    """A change of a source column that is called like one stands beside the columns, with its type."""
    rule = evolve(RULE, max_versions=max_versions)
    mirror, table = MirrorUnderTest(rule), TableModel(max_versions)
    mirror.take([("shard", [put(1, a=1), put(2, key=2, a=2)])], table, 0)
    value = [1] if kind == pa.list_(pa.int64()) else 1
    mirror.rows = mirror.rows.append_column("theirs", pa.array([value, value], kind))
    theirs = [RecordColumn("theirs", ColumnOperation.PUT, given, 3) for given in (7, "text")]
    changes = [update(3, theirs[0]), update(4, theirs[1], key=2), update(5, RecordColumn("a", DELETE_ALL), key=2)]
    mirror.take([("shard", changes)], table, 0)

    assert mirror.rows.schema.field("theirs").type == kind
    assert mirror.cells() == typed(
        {(("id", 1),): {"a": {1: 1}, "theirs": {3: 7}}, (("id", 2),): {"theirs": {3: "text"}}}
    )


def test_what_expires_is_told_from_the_columns_of_others() -> None:
    mirror = MirrorUnderTest(RULE)
    mirror.rows = mirror.rows.append_column("theirs", pa.nulls(0, pa.date32()))
    mirror.take([("shard", [put(1, a=1, theirs=2), put(9, key=2, a=1, theirs=2)])], TableModel(), 0)
    mirror.rows = mirror.rows.set_column(
        mirror.rows.column_names.index("theirs"), "theirs", pa.array([1, 2], pa.date32())
    )
    left = expired(mirror.rows, 5, RULE, types_of(mirror.rows, RULE))

    assert "theirs" not in left.column_names
    assert [row.cells for row in cells_of(left, RULE.key)] == [{"a": {9: 1}, "theirs": {9: 2}}]


def test_old_and_repeated_changes_of_a_shard_lose() -> None:
    mirror = MirrorUnderTest(RULE)
    table = TableModel()
    changes = [put(1, a=1), update(2, RecordColumn("a", ColumnOperation.PUT, 2, 9)), put(3, a=3)]
    for repeated in (changes, changes[:2], changes[1:2], changes):
        mirror.take([("shard", repeated)], table, 0)

        assert mirror.cells() == {(("id", 1),): {("a", 3): ("int", "3")}}


def test_a_child_shard_counts_from_its_own_sequence() -> None:
    """Clocks of servers differ: a child's change may have an earlier time than its parent's last one."""
    mirror = MirrorUnderTest(RULE)
    mirror.take([("parent", [put(5, a=1)])], TableModel(), 0)
    mirror.take([("child", [put(4, a=2)])], TableModel(), 0)

    assert mirror.cells() == {(("id", 1),): {("a", 4): ("int", "2")}}


def test_a_single_version_deleted_while_its_row_was_copied_has_the_row_read_again() -> None:
    """The table held 30, was given 20, which is older, and then lost 30: it held nothing, and then 10."""
    changes = [
        update(1, RecordColumn("a", ColumnOperation.PUT, "twenty", 20)),
        update(2, RecordColumn("a", ColumnOperation.DELETE_ONE_VERSION, None, 30)),
        update(3, RecordColumn("a", ColumnOperation.PUT, "ten", 10)),
    ]
    table = TableModel()
    table.rows = {(("id", 1),): {"a": {30: "thirty"}}}
    for change in changes:
        table.write(change)
    mirror = MirrorUnderTest(RULE)
    mirror.copy(table.read([(("id", 1),)]), 3 * STEP)
    mirror.take([("shard", changes)], table, 3 * STEP)

    assert mirror.doubts == 1
    assert mirror.cells() == {(("id", 1),): {("a", 10): ("str", "'ten'")}}


@pytest.mark.parametrize("max_versions", [1, 2], ids=["by column", "cell by cell"])
def test_a_key_that_stands_twice_is_read_again_and_gives_no_value_to_its_neighbours(max_versions: int) -> None:
    rule = evolve(RULE, max_versions=max_versions)
    there = [put(1, key, a=f"a{key}", b=f"b{key}") for key in range(1, 7)]
    present = fold(empty_rows(rule), ChangeBatch.of([ShardChanges.of("shard", there)]), rule).rows
    doubled = pa.concat_tables([present.slice(0, 2), present.slice(1, 3), present.slice(3)])  # 2 and 4
    changes = [update(9, RecordColumn("b", ColumnOperation.PUT, f"new{key}", 9_000), key=key) for key in range(1, 8)]
    found = fold(doubled, ChangeBatch.of([ShardChanges.of("shard", changes)]), rule)
    values = {
        row.key: {name: max(cells.items())[1] for name, cells in row.cells.items()}
        for row in cells_of(found.rows, rule.key)
    }

    assert values == {(key,): {"a": f"a{key}", "b": f"new{key}"} for key in (1, 3, 5, 6)} | {(7,): {"b": "new7"}}
    assert sorted(found.doubled) == sorted(found.in_doubt) == [(2,), (4,)]


@pytest.mark.parametrize("columns", [1, 1_000])
def test_many_columns_fold_as_few_do(columns: int) -> None:
    names = [f"column {number}" for number in range(columns)]
    mirror = MirrorUnderTest(RULE)
    mirror.take([("s", [put(1, key, **dict.fromkeys(names, key)) for key in (1, 2, 3)])], TableModel(), 0)
    changed = [update(2, RecordColumn(names[-1], ColumnOperation.PUT, "drift", 7), key=1), put(3, 2)]
    mirror.take([("s", changed)], TableModel(), 0)

    found = mirror.cells()
    assert len(found[(("id", 3),)]) == columns
    assert found[(("id", 2),)] == {}
    assert found[(("id", 1),)] == {(name, 1): ("int", "1") for name in names[:-1]} | {
        (names[-1], 7): ("str", "'drift'")
    }
