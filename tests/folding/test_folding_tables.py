"""Tables of changes folded by source, against a model of the table that they came from."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamclient.destinations.folding.merged_tables import fold_table, folded_batches, history_table
from streamclient.destinations.rows.change_rows import UNFIT, change_rows
from streamclient.destinations.rows.column_names import original_name
from streamclient.destinations.rows.column_types import shown, type_of, value_of
from streamclient.records import ColumnOperation, ColumnType, RecordColumn, RecordType, SequenceInfo, StreamRecord
from tests.folding.table_model import STEP, TableModel, writes

DECLARED = {"id": ColumnType.INTEGER, "a": ColumnType.DOUBLE}


def without_order(record: StreamRecord) -> StreamRecord:
    """A table keeps the cells of a change, not their order: what it deletes goes before what it puts."""
    puts = {(one.name, one.timestamp_millis): one for one in record.columns if one.operation is ColumnOperation.PUT}
    deletions = [one for one in record.columns if one.operation is not ColumnOperation.PUT]
    return StreamRecord(record.record_type, record.primary_key, (*deletions, *puts.values()), record.sequence_info)


def sorted_rows(records: Sequence[StreamRecord]) -> pa.Table:
    return in_order(change_rows(records, shard="s", number=1, declared=DECLARED))


def in_order(table: pa.Table) -> pa.Table:
    order = [(name, "ascending") for name in ("id", "_epoch", "_timestamp", "_row_index")]
    return table.take(pa.compute.sort_indices(table, sort_keys=order))


def twice(table: pa.Table, count: int) -> pa.Table:
    """With the first changes once more."""
    return in_order(pa.concat_tables([table, table.slice(0, count)]))


def newest(rows: dict[Any, Any], declared: dict[str, ColumnType]) -> dict[int, dict[str, Any]]:
    """What the columns show of each row, and what stands beside them."""
    found = {}
    for ((_, key),), row in rows.items():
        values = {name: versions[max(versions)] for name, versions in row.items()}
        columns = {name: shown(value, declared[name]) for name, value in values.items()}
        beside = {name: value for name, value in values.items() if type_of(value) is not declared[name]}
        found[key] = {
            "shown": {name: repr(value) for name, value in columns.items() if value is not None},
            "beside": {name: repr(value) for name, value in beside.items()},
        }
    return found


def read(table: pa.Table) -> list[tuple[int, dict[str, Any]]]:
    found = []
    attributes = table.column_names[1 : table.column_names.index(UNFIT)]
    for row in table.to_pylist():
        values = {original_name(name): repr(row[name]) for name in attributes if row[name] is not None}
        beside = {name: repr(value_of(one["type"], one["value"])) for name, one in row[UNFIT]}
        found.append((row["id"], {"shown": values, "beside": beside}))
    return found


def types_of(table: pa.Table) -> dict[str, ColumnType]:
    kinds = {pa.int64(): "INTEGER", pa.float64(): "DOUBLE", pa.bool_(): "BOOLEAN", pa.string(): "STRING"}
    return {
        original_name(one.name): ColumnType(kinds.get(one.type, "BINARY"))
        for one in table.schema
        if not one.name.startswith("_") or original_name(one.name) == "_version"
    }


@given(writes(), st.sampled_from([1, 1, 2, 3]), st.integers(0, 12))
def test_a_folded_table_is_the_table_that_its_changes_came_from(
    written: list[StreamRecord], versions: int, repeated: int
) -> None:
    records = [without_order(one) for one in written]
    table = sorted_rows(records)
    types = types_of(table)

    rows = fold_table(twice(table, repeated), ["id"], versions)

    assert dict(read(rows)) == newest(TableModel.after(records, versions).rows, types)
    assert rows.num_rows == len(set(rows.column("id").to_pylist()))


@given(writes(), st.sampled_from([1, 2]), st.integers(0, 12))
def test_a_history_has_the_row_after_each_of_its_changes(
    written: list[StreamRecord], versions: int, repeated: int
) -> None:
    records = [without_order(one) for one in written]
    table = sorted_rows(records)
    types, expected = types_of(table), []
    for key in sorted({record.primary_key for record in records}):
        own = [record for record in records if record.primary_key == key]
        times = [record.sequence_info.timestamp_micros for record in own]
        for count, (since, until) in enumerate(zip(times, [*times[1:], None], strict=True), 1):
            for row in newest(TableModel.after(own[:count], versions).rows, types).values():
                expected.append((key[0][1], row, since, until))

    states = history_table(twice(table, repeated), ["id"], versions)

    times = [states.column(name).cast(pa.int64()).to_pylist() for name in ("_valid_from", "_valid_to")]
    assert [(*one, since, until) for one, since, until in zip(read(states), *times, strict=True)] == expected


@given(writes(), st.lists(st.integers(1, 4), max_size=12), st.sampled_from([1, 500, 5_000, 10**9]))
def test_batches_give_the_same_rows_wherever_they_are_cut(
    written: list[StreamRecord], sizes: list[int], chunk_bytes: int
) -> None:
    table = sorted_rows([without_order(one) for one in written])
    batches, start = [], 0
    for size in [*sizes, table.num_rows]:
        batches += table.slice(start, size).combine_chunks().to_batches()
        start += size

    found = list(folded_batches(batches, fold_table, ["id"], 1, chunk_bytes))

    whole = fold_table(table, ["id"], 1)
    assert pa.Table.from_batches(found, whole.schema).sort_by("id").to_pylist() == whole.sort_by("id").to_pylist()


def put(number: int, key: int, **values: Any) -> StreamRecord:
    cells = tuple(RecordColumn(name, ColumnOperation.PUT, value, number) for name, value in values.items())
    return StreamRecord(RecordType.PUT, (("id", key),), cells, SequenceInfo(0, number * STEP, 0))


def test_a_column_that_became_another_type_is_folded_as_any_other() -> None:
    table = sorted_rows([put(1, 1, a=1.5, b="x"), put(2, 2, a=2.5), put(3, 1, a=3.5)])
    prices = pa.array([Decimal("1.50"), Decimal("3.50"), Decimal("2.50")], pa.decimal128(10, 2))
    table = table.set_column(table.column_names.index("a"), "a", prices).append_column("mine", pa.array([[1], [2], []]))

    rows = fold_table(table, ["id"], 1)

    assert rows.select(["id", "a", "b", "mine"]).to_pylist() == [
        {"id": 1, "a": Decimal("3.50"), "b": None, "mine": None},
        {"id": 2, "a": Decimal("2.50"), "b": None, "mine": None},
    ]
    assert rows.schema.field("a").type == pa.decimal128(10, 2)


def test_keys_that_differ_only_beside_their_columns_are_different_rows() -> None:
    table = sorted_rows([put(1, 1, a=1.0), put(2, 1, a=2.0), put(3, 1, a=3.0)])
    beside = [*([("id", {"type": "STRING", "value": text})] for text in ("x", "y")), []]
    table = table.set_column(0, "id", pa.array([None, None, 1], pa.int64()))
    table = table.set_column(table.column_names.index(UNFIT), UNFIT, pa.array(beside, table.schema.field(UNFIT).type))
    table = table.append_column("_key_beside", pa.array(["x", "y", None]))

    rows = fold_table(table, ["id", "_key_beside"], 1)

    assert rows.column("a").to_pylist() == [1.0, 2.0, 3.0]
    assert rows.column(UNFIT).to_pylist() == beside
    assert "_key_beside" not in rows.column_names


def test_the_version_behind_a_deleted_one_shows_with_its_type() -> None:
    """It stands in no column of the changes, but as text."""
    cells = [RecordColumn("a", ColumnOperation.PUT, value, version) for version, value in enumerate(["x", 2, 3.5])]
    changes = [StreamRecord(RecordType.PUT, (("id", 1),), tuple(cells), SequenceInfo(0, STEP, 0))]
    expected = [
        {"shown": {"a": "3.5"}, "beside": {}},
        {"shown": {"a": "2.0"}, "beside": {"a": "2"}},
        {"shown": {}, "beside": {"a": "'x'"}},
        {"shown": {}, "beside": {}},
    ]
    for deleted, row in zip((None, 2, 1, 0), expected, strict=True):
        if deleted is not None:
            cell = RecordColumn("a", ColumnOperation.DELETE_ONE_VERSION, None, deleted)
            info = SequenceInfo(0, (len(changes) + 1) * STEP, 0)
            changes.append(StreamRecord(RecordType.UPDATE, (("id", 1),), (cell,), info))

        assert read(fold_table(sorted_rows(changes), ["id"], 3)) == [(1, row)]


@pytest.mark.parametrize("versions", [1, 2])
def test_a_cell_without_a_version_is_the_oldest(versions: int) -> None:
    def written(number: int, *cells: RecordColumn) -> StreamRecord:
        return StreamRecord(RecordType.UPDATE, (("id", 1),), cells, SequenceInfo(0, number * STEP, 0))

    unversioned = written(2, *(RecordColumn(name, ColumnOperation.PUT, 2.5) for name in "ab"))
    changes = sorted_rows([written(1, RecordColumn("a", ColumnOperation.PUT, 1.5, 1)), unversioned])

    assert read(fold_table(changes, ["id"], versions)) == [(1, {"shown": {"a": "1.5", "b": "2.5"}, "beside": {}})]


def test_no_changes_leave_no_rows() -> None:
    nothing = sorted_rows([put(1, 1, a=1.0)]).slice(0, 0)

    assert fold_table(nothing, ["id"], 1).num_rows == 0
    assert history_table(nothing, ["id"], 1).num_rows == 0
    assert list(folded_batches([], fold_table, ["id"], 1)) == []


def test_a_thousand_columns_are_folded_as_few_are() -> None:
    names = [f"column {number}" for number in range(1_000)]
    records = [put(number, number % 3, **dict.fromkeys(names, number)) for number in range(1, 10)]

    rows = fold_table(sorted_rows(records), ["id"], 1)

    assert [rows.column(name).to_pylist() for name in names] == [[9, 7, 8]] * 1_000
