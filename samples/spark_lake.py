"""Every change of a table into a lake of Parquet files, through Spark.

Start ``streamclient server`` in another terminal, then ``python samples/spark_lake.py /tmp/lake``. It makes a table,
writes some changes, lets a worker bring them into the lake, and compares the lake's rows with the table.
"""

import sys
import threading

from pyspark.sql import DataFrame
from streamclient import ClientConfig, StreamConfig, Worker
from streamclient.spark import (
    BatchContext,
    FileSink,
    SparkConfig,
    SparkRecordProcessorFactory,
    current_rows,
    local_session,
    read_changes,
)
from streamclient.stream import StreamSpecification, TablestoreStreamApi
from streamclient.tablestore import connect
from tablestore import (
    INF_MAX,
    INF_MIN,
    CapacityUnit,
    Condition,
    Direction,
    OTSClient,
    ReservedThroughput,
    Row,
    RowExistenceExpectation,
    TableMeta,
    TableOptions,
)

TABLE = "spark_orders"
ANY_STATE = Condition(RowExistenceExpectation.IGNORE)


def make_table(client: OTSClient) -> None:
    TablestoreStreamApi(client).create_table(
        TableMeta(TABLE, [("customer", "STRING"), ("order_id", "INTEGER")]),
        TableOptions(),
        ReservedThroughput(CapacityUnit(0, 0)),
        stream=StreamSpecification(enable_stream=True, expiration_time_hours=24),
    )


def write_changes(client: OTSClient) -> int:
    """Twenty orders; every second one is paid and loses its note, every fifth one is deleted."""
    changes = 0
    for number in range(20):
        key = [("customer", f"customer-{number % 4}"), ("order_id", number)]
        client.put_row(TABLE, Row(key, [("amount", number * 1.5), ("note", "new")]), ANY_STATE)
        changes += 1
        if number % 2 == 0:
            client.update_row(TABLE, Row(key, {"put": [("paid", True)], "delete_all": ["note"]}), ANY_STATE)
            changes += 1
        if number % 5 == 0:
            client.delete_row(TABLE, Row(key), ANY_STATE)
            changes += 1
    return changes


def table_rows(client: OTSClient) -> list[dict[str, object]]:
    start = [("customer", INF_MIN), ("order_id", INF_MIN)]
    end = [("customer", INF_MAX), ("order_id", INF_MAX)]
    _, _, rows, _ = client.get_range(TABLE, Direction.FORWARD, start, end, max_version=1)
    return [{**dict(row.primary_key), **{name: value for name, value, _ in row.attribute_columns}} for row in rows]


class Progress:
    """A sink may be any callable; this one passes on to the lake and counts what has arrived."""

    def __init__(self, lake: str, expected: int) -> None:
        self.sink = FileSink(lake)
        self.missing = expected
        self.is_complete = threading.Event()

    def __call__(self, frame: DataFrame, context: BatchContext) -> None:
        self.sink(frame, context)
        self.missing -= context.record_count
        print(f"a batch of {context.record_count} changes is in the lake")
        if self.missing <= 0:
            self.is_complete.set()


def main(lake: str) -> None:
    client = connect()  # to what TABLESTORE_ENDPOINT and its like name, or else to the local server
    make_table(client)
    progress = Progress(lake, write_changes(client))
    spark = local_session("spark-lake")
    definition = TablestoreStreamApi(client).describe_table(TABLE).definition
    config = StreamConfig(client=client, data_table_name=TABLE, status_table_name=f"{TABLE}_status")
    options = SparkConfig(max_age_millis=1_000)
    with (
        SparkRecordProcessorFactory(progress, session=spark, table=definition, config=options) as factory,
        Worker("spark-worker", ClientConfig(), config, factory) as worker,
    ):
        worker.wait(120, until=progress.is_complete.is_set)
    read_changes(spark, lake).orderBy("_sequence").select("_operation", "customer", "order_id", "paid").show(5)
    columns = ("customer", "order_id", "amount", "note", "paid")
    left = {tuple(row.get(name) for name in columns) for row in table_rows(client)}
    right = {tuple(row[name] for name in columns) for row in current_rows(spark, lake).collect()}
    print("lake and table are equal:", left == right)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
