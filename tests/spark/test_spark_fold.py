"""Changes folded into the rows that they lead to, and into all states that rows have had."""

from __future__ import annotations

import re
from typing import Any

import pytest
from spark_helpers import Run, StoredShard, delete, delete_cell, put, put_cell, update

from streamclient.destinations.rows.change_rows import change_rows
from streamclient.destinations.rows.column_names import original_name
from streamclient.errors import ConfigurationError
from streamclient.spark import BatchContext, SparkConfig, SparkRecordProcessorFactory, fold_changes, row_history
from streamclient.spark.processor.arrow import to_frame
from streamclient.spark.spark_session import private_copy
from tests.patience import FOREVER_MILLIS

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NEVER = SparkConfig(max_age_millis=FOREVER_MILLIS)


def test_folded_changes_are_the_rows_that_they_lead_to(spark: Any) -> None:
    """Versions decide, not the order of writes; what a column cannot hold stays beside it."""
    shard = StoredShard(
        "s1",
        [
            put(1, 1, a=1, b="x"),
            update(2, 1, put_cell("a", 5, 2), put_cell("a", "text", 9)),
            update(3, 1, put_cell("a", 4, 3), delete_cell("b")),
            put(4, 2, a=1),
            delete(5, 2),
            update(6, 3, delete_cell("a")),
            update(7, 4, put_cell("a", 1, 1), put_cell("a", 2, 2)),
            update(8, 4, delete_cell("a", 2)),
        ],
    )
    found: list[Any] = []

    def sink(frame: Any, context: BatchContext) -> None:
        twice = frame.union(frame)
        found.append(fold_changes(twice, context.primary_key).orderBy("pk").collect())
        found.append(fold_changes(twice, context.primary_key, max_versions=3).orderBy("pk").collect())

    with SparkRecordProcessorFactory(sink, session=spark, config=NEVER) as factory:
        run = Run(factory, shard)
        run.read(8)
        run.stop()

    assert [(row["pk"], row["a"], row["b"], row["_row_index"]) for row in found[0]] == [
        (1, None, None, 0),
        (4, None, None, 0),
    ]
    assert found[0][0]["_unfit"]["a"].asDict() == {"type": "STRING", "value": "text"}
    assert [(row["pk"], row["a"]) for row in found[1]] == [(1, None), (4, 1)]


def test_the_history_of_rows_has_each_state_and_from_when_to_when(spark: Any) -> None:
    changes = [
        put(1, 1, a=1, b="x"),
        update(2, 1, put_cell("a", 5, 2), delete_cell("b")),
        delete(3, 1),
        put(4, 1, b="again"),
        update(5, 2, delete_cell("a")),
        put(6, 3, _sequence="s", _events="e", _valid_to="v"),
    ]
    shard, found = StoredShard("s1", changes), []

    def sink(frame: Any, context: BatchContext) -> None:
        found.extend(row_history(frame.union(frame), context.primary_key).orderBy("pk", "_valid_from").collect())
        found.extend(fold_changes(frame, context.primary_key).where("pk = 3").collect())

    with SparkRecordProcessorFactory(sink, session=spark, config=NEVER) as factory:
        run = Run(factory, shard)
        run.read(6)
        run.stop()

    assert [(row["pk"], row["a"], row["b"]) for row in found[:3]] == [(1, 1, "x"), (1, 5, None), (1, None, "again")]
    times = [(row["_valid_from"], row["_valid_to"]) for row in found[:3]]
    assert times[0][1] == times[1][0] < times[1][1] < times[2][0]
    assert times[2][1] is None
    for row in found[3:]:
        assert row["pk"] == 3
        values = {original_name(name): value for name, value in row.asDict().items() if value is not None}
        assert {"_sequence": "s", "_events": "e"}.items() <= values.items()
        assert "v" in row.asDict().values()
    assert len(found) == 5


def test_a_thousand_columns_are_folded_in_partitions_of_any_size(spark: Any) -> None:
    names = [f"column {number}" for number in range(1_000)]
    records = [put(number, number % 50, **dict.fromkeys(names, number)) for number in range(1, 201)]
    rows = change_rows(records, shard="s1", number=1)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "7")
    try:
        frame = to_frame(private_copy(spark), rows)
        for fold, states in ((fold_changes, 50), (row_history, 200)):
            folded = fold(frame, ["pk"]).selectExpr("pk", *(f"`{name}`" for name in names)).collect()
            assert len(folded) == states
            assert {tuple(set(row[1:])) for row in folded} == {(number,) for number in range(201 - states, 201)}
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def test_keys_that_differ_only_beside_their_columns_are_different_rows(spark: Any) -> None:
    """A destination may hold no key of some kind in its column: null with the exact value beside it."""
    frame = to_frame(private_copy(spark), change_rows([put(1, 1, a=1), put(2, 2, a=2)], shard="s1", number=1))
    beside = "map('pk', named_struct('type', 'STRING', 'value', concat('key ', a)))"
    others = [name for name in frame.columns if name not in {"pk", "_unfit"}]
    changes = frame.selectExpr("cast(null as bigint) as pk", *others, f"{beside} as _unfit")

    rows = fold_changes(changes, ["pk"]).orderBy("a").collect()

    assert [(row["a"], row["_unfit"]["pk"]["value"]) for row in rows] == [(1, "key 1"), (2, "key 2")]


@pytest.mark.parametrize("fold", [fold_changes, row_history])
@pytest.mark.parametrize(
    ("key", "text"),
    [
        ([], "primary_key must be a sequence of one or more names of key columns, not []"),
        ("pk", "primary_key must be a sequence of one or more names of key columns, not 'pk'"),
        (iter(["pk"]), "primary_key must be a sequence of one or more names of key columns, not <list_iterator"),
        (["pk", "PK"], "primary_key names 'PK', and the changes have the columns ['pk', 'v']"),
    ],
    ids=["none", "text", "iterator", "unknown"],
)
def test_what_is_no_key_of_the_changes_is_refused(spark: Any, fold: Any, key: Any, text: str) -> None:
    """Folded by it, all rows would become one."""
    with pytest.raises(ConfigurationError, match=re.escape(text)):
        fold(spark.createDataFrame([(1, 2)], ["pk", "v"]), key)


def test_more_versions_than_a_table_can_have_are_refused(spark: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_versions must be a whole number from 1 to 2147483647, not 4294"):
        fold_changes(spark.createDataFrame([(1, 2)], ["pk", "v"]), ["pk"], max_versions=2**32)
