"""Changes as values: folding them into rows, and positions that people can read."""

from __future__ import annotations

import base64
import operator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tablestore import (
    CapacityUnit,
    Condition,
    ReservedThroughput,
    Row,
    RowExistenceExpectation,
    TableMeta,
    TableOptions,
)

from streamclient.model import CheckpointPosition, Lease
from streamclient.records import (
    ColumnOperation,
    RecordColumn,
    RecordType,
    SequenceInfo,
    StreamRecord,
    readable_position,
)
from streamclient.server import LocalTablestore
from streamclient.tablestore import StreamSpecification, TablestoreStreamApi

KEY = (("id", "a"),)
ANY_STATE = Condition(RowExistenceExpectation.IGNORE)
PUT, UPDATE, DELETE = RecordType.PUT, RecordType.UPDATE, RecordType.DELETE
ALL, ONE = ColumnOperation.DELETE_ALL_VERSION, ColumnOperation.DELETE_ONE_VERSION


def put(name: str, value: Any, version: int | None = 1) -> RecordColumn:
    return RecordColumn(name, ColumnOperation.PUT, value, version)


PARTS = st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2))


@given(PARTS, PARTS)
def test_positions_are_ordered_by_epoch_then_time_then_row(
    one: tuple[int, int, int], other: tuple[int, int, int]
) -> None:
    first, second = SequenceInfo(*one), SequenceInfo(*other)

    assert (first < second, first <= second, first > second, first >= second, first == second) == (
        one < other,
        one <= other,
        one > other,
        one >= other,
        one == other,
    )


def test_a_position_is_not_compared_with_anything_else() -> None:
    position: Any = SequenceInfo(0, 1, 2)
    for compare in (operator.lt, operator.le, operator.gt, operator.ge):
        with pytest.raises(TypeError, match="not supported between instances"):
            compare(position, (0, 1, 2))


@pytest.mark.parametrize(
    ("kind", "columns", "before", "after"),
    [
        (PUT, (put("n", 1),), None, {"id": "a", "n": 1}),
        (PUT, (put("n", 1),), {"id": "a", "old": 0}, {"id": "a", "n": 1}),
        (UPDATE, (put("n", 2),), {"id": "a", "m": 1}, {"id": "a", "m": 1, "n": 2}),
        (UPDATE, (put("n", 2),), None, {"id": "a", "n": 2}),
        (UPDATE, (RecordColumn("n", ALL),), {"id": "a", "n": 1}, {"id": "a"}),
        (UPDATE, (RecordColumn("n", ONE, None, 7),), {"id": "a", "n": 1}, {"id": "a"}),
        (UPDATE, (RecordColumn("n", ALL),), None, None),
        (UPDATE, (RecordColumn("n", ALL), put("n", 3)), {"id": "a", "n": 1}, {"id": "a", "n": 3}),
        (UPDATE, (put("n", "new", 9), put("n", "old", 5)), None, {"id": "a", "n": "new"}),
        (UPDATE, (put("n", 0), put("b", False), put("t", "")), {"id": "a"}, {"id": "a", "n": 0, "b": False, "t": ""}),
        (DELETE, (), {"id": "a", "n": 1}, None),
        (DELETE, (), None, None),
    ],
)
def test_a_change_leaves_this_row(kind: RecordType, columns: Any, before: Any, after: Any) -> None:
    kept = None if before is None else dict(before)

    assert StreamRecord(kind, KEY, columns).apply_to(before) == after
    assert before == kept, "the row that was given is not changed"


WRITES = st.lists(
    st.tuples(st.sampled_from(["put", "update", "remove", "delete"]), st.sampled_from("ab"), st.sampled_from("xyz")),
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(WRITES)
def test_a_table_is_folded_up_from_its_changes(writes: list[tuple[str, str, str]]) -> None:
    """What the server keeps in the table is what its own stream leads to."""
    with LocalTablestore() as local:
        client = local.client()
        api = TablestoreStreamApi(client)
        api.create_table(
            TableMeta("t", [("id", "STRING")]),
            TableOptions(),
            ReservedThroughput(CapacityUnit(0, 0)),
            stream=StreamSpecification(enable_stream=True, expiration_time_hours=1),
        )
        for number, (kind, key, column) in enumerate(writes):
            row = [("id", key)]
            if kind == "put":
                client.put_row("t", Row(row, [(column, number)]), ANY_STATE)
            elif kind == "update":
                client.update_row("t", Row(row, {"put": [(column, number)]}), ANY_STATE)
            elif kind == "remove":
                client.update_row("t", Row(row, {"delete_all": [column]}), ANY_STATE)
            else:
                client.delete_row("t", Row(row), ANY_STATE)
        (stream,) = api.list_stream("t")
        (shard,) = api.describe_stream(stream.stream_id).shards
        table: dict[Any, Any] = {}
        for record in api.get_stream_record(api.get_shard_iterator(stream.stream_id, shard.shard_id)).records:
            table[record.primary_key] = record.apply_to(table.get(record.primary_key))
        for key in "ab":
            _, kept, _ = client.get_row("t", [("id", key)], max_version=1)
            expected = None if kept is None else {"id": key, **{each[0]: each[1] for each in kept.attribute_columns}}
            assert table.get((("id", key),)) == expected


# --- positions -----------------------------------------------------------------------------------------------------


def iterator(place: bytes) -> str:
    parts = b"".join(bytes((len(part),)) + part for part in (b"orders_1", b"shard-1", place))
    return base64.b64encode(parts + b"\x00").decode()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (CheckpointPosition.TRIM_HORIZON, "TRIM_HORIZON"),
        (CheckpointPosition.SHARD_END, "SHARD_END"),
        ("i7", "i7"),
        (iterator((0).to_bytes(8, "little") + (40).to_bytes(8, "little")), "iterator 0/40"),
        (
            iterator(b"".join(n.to_bytes(size, "little") for n, size in ((2, 8), (4297996704, 8), (1, 4), (9, 8)))),
            "iterator 2/4297996704/1/9",
        ),
        (iterator(b"\x01\xff"), "iterator 01ff"),
        ("not base64 at all, but rather long", "iterator ... rather long"[:12] + "her long"),
    ],
)
def test_a_position_is_readable(text: str, shown: str) -> None:
    assert readable_position(text) == shown


@given(st.text())
def test_any_text_has_a_readable_form(text: str) -> None:
    assert len(readable_position(text)) <= max(len(text), 30)


def test_a_lease_is_printed_with_a_readable_position(local: LocalTablestore) -> None:
    text = iterator((0).to_bytes(8, "little") + (3).to_bytes(8, "little"))

    assert (
        str(Lease("s1", "orders_1", owner="w", counter=4, checkpoint=text))
        == "s1 (owner w, counter 4, at iterator 0/3)"
    )
