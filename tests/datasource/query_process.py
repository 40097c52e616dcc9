"""A Spark driver with one query from a stream into Parquet, which is told by its standard input what to do, or killed.

It is told ``restart``, ``write`` (a frame into a table), ``transform`` (changes into a Delta table, through Spark) or
``stop``. It prints one line for each thing that a parent waits for: ``started``, ``batch ...``, ``written``,
``transformed``, ``stopped``, ``failed ...``.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

AGAIN = "again"
WRITTEN_ROWS = 200


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    spark = session(given)
    orders: SimpleQueue[str] = SimpleQueue()
    watch(spark, orders, given["not_started"])
    query = start(spark, given)
    threading.Thread(target=lambda: [orders.put(line.strip()) for line in sys.stdin], daemon=True).start()
    while (order := orders.get()) != "stop":
        if order in {AGAIN, "restart"}:
            query.stop()
            query = start(spark, given)
        else:
            {"write": write, "transform": transform}[order](spark, given)
    query.stop()
    spark.stop()
    say("stopped")


def say(text: str) -> None:
    os.write(sys.stdout.fileno(), f"{text}\n".encode())  # whole lines, whichever threads say them


def session(given: dict[str, Any]) -> Any:
    if given["zip"]:
        sys.path.insert(0, given["zip"])
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(given["master"]).appName("tablestore")
    for name, value in given["conf"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if given["zip"]:
        spark.sparkContext.addPyFile(given["zip"])
    if not given["is_found"]:
        from streamclient.spark import TablestoreDataSource

        spark.dataSource.register(TablestoreDataSource)
    return spark


def start(spark: Any, given: dict[str, Any]) -> Any:
    changes = spark.readStream.format("tablestore").options(**given["options"]).schema(given["schema"]).load()
    out = Path(given["out"])
    writer = changes.writeStream.format("parquet").option("checkpointLocation", str(out / "checkpoint"))
    query = writer.option("path", str(out / "changes")).start()
    say("started")
    return query


def watch(spark: Any, orders: SimpleQueue[str], not_started: str) -> None:
    """Say each batch and each failure; a query that only did not start in time is started again."""
    from pyspark.sql.streaming import StreamingQueryListener

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None: ...  # noqa: N802

        def onQueryIdle(self, event: Any) -> None: ...  # noqa: N802

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            say(f"batch {event.progress.batchId}: {event.progress.numInputRows} rows")

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            if event.exception is not None and not_started in event.exception:
                orders.put(AGAIN)
            elif event.exception is not None:
                say(f"failed {event.exception[:3000]!r}")

    spark.streams.addListener(Listener())


def write(spark: Any, given: dict[str, Any]) -> None:
    """So many rows into a table, by several tasks, and read back by others."""
    rows = spark.range(WRITTEN_ROWS, numPartitions=4).selectExpr("id as pk", "id * 2 as v", "concat('n', id) as n")
    rows.write.format("tablestore").options(**given["copy"]).mode("append").save()
    copied = spark.read.format("tablestore").options(**given["copy"]).load()
    found = copied.selectExpr("count(*)", "sum(v)", "count_if(n = concat('n', pk))").collect()[0]
    say(f"written {tuple(found)}")


def transform(spark: Any, given: dict[str, Any]) -> None:
    """Changes of one shard through a transform that runs in executors, into a Delta table."""
    sys.path.append(str(Path(__file__).resolve().parents[1] / "spark"))
    from pyspark.sql import functions as f
    from spark_helpers import Run, StoredShard

    from streamclient.destinations import DeltaDestination
    from streamclient.spark import SparkRecordProcessorFactory
    from streamclient.testing.contracts.destination_contract import change

    def in_executors(frame: Any, context: Any) -> Any:
        # An executor of a cluster has a directory of its own, below that of its worker.
        doubled, directory = f.udf(lambda v: v * 2, "bigint"), f.udf(lambda v: os.getcwd(), "string")
        return frame.select("id", doubled("v").alias("v"), directory("v").alias("directory"), "_shard_id")

    destination = DeltaDestination(str(Path(given["out"]) / "transformed"))
    with SparkRecordProcessorFactory(destination, in_executors, session=spark) as factory:
        run = Run(factory, StoredShard("shard", [change(number, v=number) for number in range(WRITTEN_ROWS)]))
        run.read(WRITTEN_ROWS)
        run.stop()
    stored = [row for table in destination.rows() for row in table.to_pylist()]
    is_elsewhere = all(Path(row["directory"]).parent.name.startswith("app-") for row in stored)
    say(f"transformed {(len(stored), sum(row['v'] for row in stored), is_elsewhere)}")


if __name__ == "__main__":
    main()
