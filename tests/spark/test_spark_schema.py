"""Rows of batches, their columns and types: everything before Spark, without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from spark_helpers import change, delete_cell, put, put_cell, update

from streamclient.destinations import Commit
from streamclient.destinations.rows.column_layout import ChangeColumns
from streamclient.errors import ConfigurationError
from streamclient.records import ColumnType, RecordType, SequenceInfo, StreamRecord
from streamclient.spark import SparkConfig
from streamclient.spark.processor.arrow import build_rows, frame_columns, schema_types
from streamclient.spark.processor.context import BatchContext, ShardRange


def part(shard: str, *records: StreamRecord) -> tuple[Commit, ChangeColumns]:
    changes = ChangeColumns.of_records(records)
    values: dict[str, Any] = {"application": "default", "epoch": 1, "start": "a", "end": "b", "content": "c"}
    return Commit.after(None, shard=shard, count=changes.count, **values), changes


def table(
    *parts: tuple[Commit, ChangeColumns], columns: Any = None, declared: Mapping[str, ColumnType] | None = None
) -> Any:
    return build_rows(parts, columns, declared or {})


def values_of(rows: Any, *names: str) -> Sequence[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows.to_pylist()]


def test_a_column_has_one_type_in_all_shards_of_a_batch_and_loses_no_value() -> None:
    rows = table(part("s1", put(1, 1, v=7, w="x")), part("s2", put(1, 2, v="7"), put(2, 3, v=2.5, Name=1, name=2)))

    assert values_of(rows, "pk", "v", "w", "_shard_id") == [
        (1, 7, "x", "s1"),
        (2, None, None, "s2"),
        (3, None, None, "s2"),
    ]
    assert [row["_unfit"] for row in rows.to_pylist()] == [
        [],
        [("v", {"type": "STRING", "value": "7"})],
        [("v", {"type": "DOUBLE", "value": "2.5"})],
    ]
    assert rows.column_names[:3] == ["pk", "v", "w"]
    assert rows.column_names[5] == "_operation", "added columns stand behind those of the source"


def test_declared_columns_and_those_of_the_destination_keep_their_types() -> None:
    declared = {"v": ColumnType.DOUBLE, "late": ColumnType.BOOLEAN}
    first = table(part("s1", put(1, 1, v=7)), declared=declared)
    second = table(part("s1", put(2, 1, v="x", late=1)), columns=first.schema)

    assert values_of(first, "v", "late") == [(7.0, None)]
    assert values_of(second, "v", "late") == [(None, None)]
    assert str(second.schema.field("v").type) == "double"


def test_key_columns_come_first_in_key_order() -> None:
    record = StreamRecord(RecordType.DELETE, (("k2", 1), ("k1", "x")), (), SequenceInfo(0, 1, 0))
    rows = table(part("s1", record), declared={"a": ColumnType.STRING})
    columns = frame_columns(rows.schema, ("k2", "k1"))
    assert [column.name for column in columns] == ["k2", "k1", "a"]
    assert BatchContext((), columns).primary_key == ("k2", "k1")


def test_deletes_are_told_apart_from_nulls() -> None:
    rows = table(
        part(
            "s1",
            change(1, 1, put_cell("a", "new", 7), put_cell("a", "old", 5), put_cell("b", 1, 7)),
            update(2, 1, delete_cell("a"), delete_cell("b", 7), delete_cell("b", 5)),
            change(3, 1, kind=RecordType.DELETE),
        )
    )
    shown = ("a", "b", "_versions", "_deleted_columns", "_deleted_versions", "_older_versions")
    assert values_of(rows, *shown) == [
        ("new", 1, [("a", 7), ("b", 7)], [], [], [{"column": "a", "version": 5, "type": "STRING", "value": "old"}]),
        (None, None, [], ["a"], [("b", [5, 7])], []),
        (None, None, [], [], [], []),
    ]


def test_output_key_depends_on_shard_and_start_but_not_on_the_end() -> None:
    def key(shard: str = "s", stream: str = "t", start: str = "a", end: str = "b") -> str:
        return ShardRange(shard, stream, "tenancy", start, end, 1, None, None).output_key

    assert key() == key(end="c")
    assert len({key(), key(shard="x"), key(stream="x"), key(start="x"), key(shard="st", stream="")}) == 5


def test_schema_with_a_type_that_tablestore_lacks_is_refused() -> None:
    from pyspark.sql.types import IntegerType, LongType, StructField, StructType

    assert schema_types(StructType([StructField("a", LongType())])) == {"a": ColumnType.INTEGER}
    with pytest.raises(ConfigurationError, match="'a' has type int; Tablestore stores bigint"):
        schema_types(StructType([StructField("a", IntegerType())]))
    with pytest.raises(ConfigurationError, match="must be a StructType or a mapping"):
        schema_types(["a"])


@pytest.mark.parametrize(
    ("settings_", "text"),
    [
        ({"max_records": 0}, "max_records must be a whole number above 0, not 0"),
        ({"max_age_millis": 1.5}, "max_age_millis must be a whole number"),
        ({"max_age_millis": 2**63 - 1}, "max_age_millis must be a whole number from 1 to 1000000000000, not 9223"),
        ({"max_wait_millis": 10**400}, "max_wait_millis must be a whole number from 1 to 1000000000000, not 1000"),
        ({"max_bytes": 2, "max_buffered_bytes": 1}, "max_bytes=2 must not be above max_buffered_bytes=1"),
    ],
)
def test_foolish_settings_are_refused_by_name(settings_: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        SparkConfig(**settings_)
