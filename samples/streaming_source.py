"""Stream a table's changes into Parquet, read its rows with ``spark.read``, and write a frame into a table.

The program starts a local Tablestore for itself, and creates a table. It reads the table's stream in three runs of one
query; after the first run the shard splits. In the end it copies the rows of the table into another table.
"""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

try:
    from pyspark.sql import SparkSession
except ModuleNotFoundError as missing:
    sys.exit(f'{missing}: run  pip install ".[spark,server]"  where streamclient was installed from')
from streamclient.server import LocalTablestore
from streamclient.spark import TablestoreDataSource, local_session
from streamclient.tablestore import StreamSpecification, TablestoreStreamApi
from tablestore import (
    CapacityUnit,
    Condition,
    OTSClient,
    ReservedThroughput,
    Row,
    RowExistenceExpectation,
    TableMeta,
    TableOptions,
)

KEY = [("customer", "STRING"), ("order_id", "INTEGER")]
COLUMNS = """customer string, order_id bigint, status string, amount double, _operation string,
_unfit map<string, struct<type: string, value: string>>"""
ANY_STATE = Condition(RowExistenceExpectation.IGNORE)


def make_tables(client: OTSClient) -> None:
    api = TablestoreStreamApi(client)
    stream = StreamSpecification(enable_stream=True, expiration_time_hours=24)
    for name in ("orders", "orders_copy"):
        api.create_table(TableMeta(name, KEY), TableOptions(), ReservedThroughput(CapacityUnit(0, 0)), stream=stream)


def write_orders(client: OTSClient, first: int, count: int) -> None:
    """Write ``count`` orders. Every third order has a text as its amount, and every fourth order is deleted."""
    for number in range(first, first + count):
        key = [("customer", f"customer-{number % 3}"), ("order_id", number)]
        amount = f"{number} euros" if number % 3 == 2 else number * 1.5
        client.put_row("orders", Row(key, [("status", "new"), ("amount", amount)]), ANY_STATE)
        if number % 4 == 3:
            client.delete_row("orders", Row(key), ANY_STATE)


def catch_up(spark: SparkSession, connection: Mapping[str, str], lake: Path) -> None:
    """Read all new changes in batches of four. Spark's checkpoint stores the position for the next run."""
    changes = spark.readStream.format("tablestore").options(**connection, table="orders", maxOffsetsPerTrigger="4")
    writer = changes.schema(COLUMNS).load().writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(lake / "checkpoint")).trigger(availableNow=True)
    query = writer.start(str(lake / "changes"))
    query.awaitTermination()
    sizes = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
    print("changes by batch:", sizes)


def main() -> None:
    with LocalTablestore() as local, tempfile.TemporaryDirectory() as scratch:
        client = local.client()
        make_tables(client)
        spark = local_session("source")
        spark.dataSource.register(TablestoreDataSource)
        connection = {
            "endpoint": local.endpoint,
            "instance": local.instance,
            "accessKeyId": local.access_key_id,
            "accessKeySecret": local.access_key_secret,
        }
        lake = Path(scratch)
        write_orders(client, 0, 4)
        catch_up(spark, connection, lake)
        local.split("orders")
        write_orders(client, 4, 4)
        catch_up(spark, connection, lake)
        catch_up(spark, connection, lake)

        frame = spark.read.parquet(str(lake / "changes"))
        frame.orderBy("order_id", "_operation").show(truncate=False)

        orders = spark.read.format("tablestore").options(**connection, table="orders").load()
        copied = orders.select("customer", "order_id", "status", "amount")
        copied.write.format("tablestore").options(**connection, table="orders_copy").mode("append").save()
        copy = spark.read.format("tablestore").options(**connection, table="orders_copy").load()
        copy.orderBy("order_id").select("customer", "order_id", "amount").show()
        spark.stop()


if __name__ == "__main__":
    main()
