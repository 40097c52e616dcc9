"""Store every change of a table in a Delta table exactly once, with one more column that Spark computes.

Start ``streamclient server`` in another terminal, then ``python samples/spark_lake.py``. The program creates a table,
writes some changes, and lets a worker store them in the lake. It then compares the rows that result from the changes in
the lake with the rows of the table. The lake is the folder ``lake``, or the folder that the argument names.
"""

import sys

try:
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as f
except ModuleNotFoundError as missing:
    sys.exit(f'{missing}: run  pip install ".[spark,delta]"  where streamclient was installed from')
from streamclient import ClientConfig, ColumnType, StreamClientError, StreamConfig, Worker
from streamclient.destinations import DeltaDestination, read_delta, verify
from streamclient.spark import (
    BatchContext,
    SparkConfig,
    SparkRecordProcessorFactory,
    fold_changes,
    local_session,
)
from streamclient.tablestore import StreamSpecification, TablestoreStreamApi, connect
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
RELIED_ON = {"amount": ColumnType.DOUBLE}
"""The columns that ``with_tax`` needs in each batch, even if no change of the batch sets them."""


def make_table(client: OTSClient) -> None:
    TablestoreStreamApi(client).create_table(
        TableMeta(TABLE, [("customer", "STRING"), ("order_id", "INTEGER")]),
        TableOptions(),
        ReservedThroughput(CapacityUnit(0, 0)),
        stream=StreamSpecification(enable_stream=True, expiration_time_hours=24),
    )


def write_changes(client: OTSClient) -> int:
    """Write twenty orders; return the number of changes.

    Every second order is paid and loses its note. Every fifth order is deleted.
    """
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


def with_tax(frame: DataFrame, context: BatchContext) -> DataFrame:
    """Add a column to a batch. The returned frame is stored together with the commits in ``context.commits``."""
    print(f"a batch of {context.record_count} changes, of {len(context.commits)} shard")
    return frame.withColumn("with_tax", f.round(f.col("amount") * 1.13, 2))


def main(lake: str = "lake") -> None:
    client = connect()  # connects to the instance in the TABLESTORE_... variables, or to a local server
    make_table(client)
    expected = write_changes(client)
    spark = local_session("spark-lake")
    destination = DeltaDestination(lake)
    definition = TablestoreStreamApi(client).describe_table(TABLE).definition
    config = StreamConfig(client=client, data_table_name=TABLE, status_table_name=f"{TABLE}_status")
    options = SparkConfig(max_age_millis=1_000)
    with (
        SparkRecordProcessorFactory(
            destination, with_tax, session=spark, table=definition, schema=RELIED_ON, config=options
        ) as factory,
        Worker("spark-worker", ClientConfig(), config, factory) as worker,
    ):
        reader = destination.another()  # two threads must not use one destination object at the same time
        worker.wait(600, until=lambda: sum(one.count for entry in reader.log() for one in entry.commits) == expected)
    changes = read_delta(spark, lake)
    order = ("_epoch", "_timestamp", "_row_index")
    changes.orderBy(*order).select("_operation", "customer", "order_id", "amount", "with_tax", "paid").show(5)
    columns = ("customer", "order_id", "amount", "note", "paid")
    left = {tuple(row.get(name) for name in columns) for row in table_rows(client)}
    rows = fold_changes(changes, ["customer", "order_id"])
    right = {tuple(row[name] for name in columns) for row in rows.collect()}
    print("lake and table are equal:", left == right)
    print(verify(destination))
    spark.stop()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except StreamClientError as error:  # the text says in one sentence what is wrong
        sys.exit(str(error))
