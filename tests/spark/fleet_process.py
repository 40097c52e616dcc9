"""A worker of a fleet, with a Spark session of its own on a cluster: its batches go through executors into a lake.

It prints ``started``, ``batch ...`` for each batch that Spark has transformed, and ``stopped``; a line on its standard
input ends it in order.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from streamclient import ClientConfig, StreamConfig, Worker
from streamclient.destinations import DeltaDestination
from streamclient.spark import BatchContext, SparkConfig, SparkRecordProcessorFactory
from streamclient.tablestore import Connection

LEASE_SECONDS = 4.0


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    builder = SparkSession.builder.master(given["master"]).appName(given["name"])
    for name, value in given["conf"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()

    def in_executors(frame: DataFrame, context: BatchContext) -> DataFrame:
        directory = f.udf(lambda key: os.getcwd(), "string")
        say(f"batch of {context.record_count}")
        return frame.withColumns({"directory": directory("pk"), "worker": f.lit(given["name"])})

    client = Connection(**given["local"]).client()
    stream = StreamConfig(client=client, data_table_name=given["table"], status_table_name="status")
    with (
        SparkRecordProcessorFactory(
            DeltaDestination(given["lake"], answer_seconds=60.0),
            in_executors,
            session=spark,
            config=SparkConfig(max_age_millis=200),
        ) as factory,
        Worker(given["name"], ClientConfig.for_lease(LEASE_SECONDS), stream, factory),
    ):
        say("started")
        sys.stdin.readline()
    spark.stop()
    say("stopped")


def say(text: str) -> None:
    os.write(sys.stdout.fileno(), f"{text}\n".encode())  # whole lines, whichever threads say them


if __name__ == "__main__":
    main()
