"""One worker process of the demo: it reads shards, and stores their changes by Spark in a Delta table.

It differs from a production worker in two points. Its intervals are shorter, so that other workers soon take over the
shards of a killed worker. It also records each batch, so that the demo can check order and repeats afterwards.
"""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from streamclient import ClientConfig, IRecordProcessor, StreamConfig, TablestoreStreamApi, Worker
from streamclient.destinations import DeltaDestination
from streamclient.spark import BatchContext, SparkConfig, SparkRecordProcessorFactory, local_session
from streamclient.testing import DeliveryRecorder
from tablestore import OTSClient

QUICK = ClientConfig(
    lease_duration_millis=6_000,
    renewer_interval_millis=1_000,
    taker_interval_millis=1_000,
    sync_shard_interval_millis=2_000,
    shutdown_timeout_millis=30_000,
)

COMMIT_SECONDS = 4.0
"""The longest time, in seconds, for which a commit is tried. It is shorter than the lease duration."""

SHORT_LIVED_JAVA = {
    "spark.driver.memory": "700m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""Settings for a Java process that runs for a minute on two cores. They switch off its second compiler and its parallel
garbage collector. A worker in production needs both, so do not copy these settings."""


def with_totals(frame: DataFrame, context: BatchContext) -> DataFrame:
    """Add the column ``total``: the amount times the number of items."""
    return frame.withColumn("total", f.round(f.col("amount") * f.col("items"), 2))


def parse_arguments() -> argparse.Namespace:
    """Return the options that the demo gives to each worker on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = "endpoint access-key-id access-key-secret instance table status-table name lake lines ready"
    for name in names.split():
        parser.add_argument(f"--{name}", required=True)
    return parser.parse_args()


def main() -> None:
    """Run the worker until SIGTERM; then write the last batch, hand the leases over, and end."""
    options = parse_arguments()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    client = OTSClient(
        options.endpoint,
        options.access_key_id,
        options.access_key_secret,
        options.instance,
        logger_name="streamclient-demo",
    )
    session = local_session(f"demo-{options.name}", cores=1, **SHORT_LIVED_JAVA)
    Path(options.ready).touch()
    factory = SparkRecordProcessorFactory(
        DeltaDestination(options.lake, answer_seconds=COMMIT_SECONDS),
        with_totals,
        session=session,
        table=TablestoreStreamApi(client).describe_table(options.table).definition,
        config=SparkConfig(max_age_millis=2_500),
    )
    with Path(options.lines).open("a", encoding="utf-8") as lines:

        def processor() -> IRecordProcessor:
            return DeliveryRecorder(options.name, lines, factory.create_processor())

        config = StreamConfig(
            client=client, data_table_name=options.table, status_table_name=options.status_table, max_records=500
        )
        worker = Worker(options.name, QUICK, config, processor)
        with worker:
            worker.wait(until=stop.is_set)
    factory.close()
    session.stop()


if __name__ == "__main__":
    main()
