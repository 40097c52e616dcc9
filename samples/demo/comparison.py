"""Compares, with Spark, what the fleet left in the lake with the table and with the stream's own history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from attrs import frozen
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from streamclient.spark import current_rows, read_changes
from streamclient.testing.deliveries import Delivery, ShardHistory, judge
from tablestore import INF_MAX, INF_MIN, Direction, OTSClient

KEY = ("customer", "order_id")
ATTRIBUTES = {
    "status": pa.string(),
    "amount": pa.float64(),
    "items": pa.int64(),
    "gift": pa.bool_(),
    "note": pa.string(),
    "courier": pa.string(),
    "revision": pa.int64(),
}
PAGE_ROWS = 1_000


@frozen
class Outcome:
    """What was counted; ``is_ok`` only if everything that must be zero is, and the sums agree."""

    acknowledged: int
    """Writes that the server acknowledged to the writer."""
    changes: int
    """Records in the stream."""
    delivered: int
    """Different changes that were handed to processors."""
    repeats: int
    """Changes handed out again, after the kill; at-least-once allows them, the lake must not show them."""
    lost: int
    """Changes of the stream that are not in the lake."""
    invented: int
    """Changes in the lake that are not in the stream."""
    out_of_order: int
    """Changes of a key delivered before an earlier one, or before their parent shard had ended, or misplaced in the
    lake."""
    duplicates_in_lake: int
    table_rows: int
    different_rows: int
    """Rows of the table that the lake's changes do not lead to, and the other way round."""

    @property
    def is_ok(self) -> bool:
        """Whether the lake is equal to the table, and every change is in it once and in order."""
        wrong = (self.lost, self.invented, self.out_of_order, self.duplicates_in_lake, self.different_rows)
        return not any(wrong) and self.acknowledged == self.changes == self.delivered > 0

    def last_line(self) -> str:
        """The demo's verdict."""
        verdict = "ok" if self.is_ok else "failed"
        return (
            f"demo: {verdict} changes={self.changes} delivered={self.delivered} lost={self.lost} "
            f"out_of_order={self.out_of_order} duplicates_in_lake={self.duplicates_in_lake}"
        )


def compare(
    spark: SparkSession,
    lake: Path,
    *,
    client: OTSClient,
    table: str,
    history: Sequence[ShardHistory],
    deliveries: Sequence[Delivery],
    acknowledged: int,
) -> Outcome:
    """Count everything that the last line of the demo states."""
    changes = read_changes(spark, lake).cache()
    identity = ["_shard_id", "_sequence", *KEY]
    counts = _count(_truth(spark, history), changes.select(identity), identity)
    table_rows, different_rows = _differences(_table(spark, client, table), current_rows(spark, lake))
    verdict = judge(history, deliveries)
    distinct = {(one.shard_id, key, sequence) for one in deliveries for key, sequence in one.records}
    return Outcome(
        acknowledged=acknowledged,
        changes=verdict.changes,
        delivered=len(distinct),
        repeats=verdict.delivered - len(distinct),
        lost=counts["lost"],
        invented=counts["invented"],
        out_of_order=len(verdict.out_of_order) + len(verdict.children_before_parents) + _misplaced(changes),
        duplicates_in_lake=counts["duplicates"],
        table_rows=table_rows,
        different_rows=different_rows,
    )


def _count(truth: DataFrame, stored: DataFrame, identity: list[str]) -> dict[str, int]:
    """Changes of the stream that the lake lacks, changes that it has in excess, and changes that nobody made."""
    in_lake = stored.groupBy(identity).agg(f.count("*").alias("stored"))
    in_stream = truth.withColumn("made", f.lit(1))
    both = in_stream.join(in_lake, identity, "full_outer").select(
        f.sum(f.when(f.col("stored").isNull(), 1).otherwise(0)).alias("lost"),
        f.sum(f.when(f.col("made").isNull(), f.col("stored")).otherwise(0)).alias("invented"),
        f.sum(f.coalesce(f.col("stored") - 1, f.lit(0))).alias("duplicates"),
    )
    return {name: int(number or 0) for name, number in both.first().asDict().items()}


def _truth(spark: SparkSession, history: Sequence[ShardHistory]) -> DataFrame:
    """Identity of every record in the stream, read without the workers."""
    shards, sequences, customers, orders = [], [], [], []
    for shard in history:
        for record in shard.records:
            info = record.sequence_info
            shards.append(shard.shard.shard_id)
            sequences.append(f"{info.epoch:010d}/{info.timestamp_micros:020d}/{info.row_index:010d}")
            customers.append(record.key["customer"])
            orders.append(record.key["order_id"])
    columns = {"_shard_id": shards, "_sequence": sequences, "customer": customers, "order_id": orders}
    return spark.createDataFrame(pa.table(columns))


def _misplaced(changes: DataFrame) -> int:
    """Changes whose writer's number is smaller than that of an earlier change of the same key."""
    by_key = Window.partitionBy(*KEY).orderBy("_sequence")
    numbered = changes.filter("revision is not null").withColumn("before", f.lag("revision").over(by_key))
    return int(numbered.filter("before > revision").count())


def _table(spark: SparkSession, client: OTSClient, table: str) -> DataFrame:
    columns: dict[str, list[Any]] = {name: [] for name in (*KEY, *ATTRIBUTES)}
    for key, cells in _scan(client, table):
        present = {**dict(key), **{name: value for name, value, _ in cells}}
        for name, values in columns.items():
            values.append(present.get(name))
    types = {"customer": pa.string(), "order_id": pa.int64(), **ATTRIBUTES}
    arrays = [pa.array(columns[name], types[name]) for name in columns]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, names=list(columns)))


def _scan(client: OTSClient, table: str) -> Iterator[tuple[Any, Any]]:
    start = [(name, INF_MIN) for name in KEY]
    end = [(name, INF_MAX) for name in KEY]
    while start:
        _, start, rows, _ = client.get_range(table, Direction.FORWARD, start, end, limit=PAGE_ROWS, max_version=1)
        for row in rows:
            yield row.primary_key, row.attribute_columns


def _differences(table: DataFrame, lake: DataFrame) -> tuple[int, int]:
    """Rows of the table, and rows that are not the same on both sides, counted in one pass over their outer join."""
    left = table.select(*KEY, f.struct(*ATTRIBUTES).alias("in_table"))
    right = lake.select(*KEY, f.struct(*ATTRIBUTES).alias("in_lake"))
    joined = left.join(right, list(KEY), "full_outer").select(
        f.sum(f.col("in_table").isNotNull().cast("int")).alias("rows"),
        f.sum((~f.col("in_table").eqNullSafe(f.col("in_lake"))).cast("int")).alias("different"),
    )
    found = joined.first()
    return int(found["rows"] or 0), int(found["different"] or 0)
