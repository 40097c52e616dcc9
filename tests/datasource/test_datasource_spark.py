"""The data source in the Spark of this process: traps of Python data sources, and restarts of a query."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tablestore import (
    CapacityUnit,
    Condition,
    ReservedThroughput,
    Row,
    RowExistenceExpectation,
    TableMeta,
    TableOptions,
)

from streamclient.server import LocalTablestore
from streamclient.spark import TablestoreDataSource
from streamclient.spark.source import data_source
from streamclient.tablestore import StreamSpecification, TablestoreStreamApi
from streamclient.tunnel import TunnelClient, TunnelType
from tests.datasource.drill import frame_options
from tests.patience import with_planners

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ANYTHING = Condition(RowExistenceExpectation.IGNORE)
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def streaming(spark: Any) -> Any:
    """The session that runs, with the source."""
    spark.dataSource.register(TablestoreDataSource)
    # Whether a name is that of a Python data source, Spark asks the thread's active session, which may be an older one.
    spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)
    return spark


class Orders:
    """A table with a stream."""

    def __init__(self, local: LocalTablestore) -> None:
        self.local, self.client, self.written = local, local.client(), 0
        for name, stream in (
            ("orders", StreamSpecification(enable_stream=True, expiration_time_hours=24)),
            ("copy", None),
        ):
            TablestoreStreamApi(self.client).create_table(
                TableMeta(name, [("customer", "STRING"), ("id", "INTEGER")]),
                TableOptions(),
                ReservedThroughput(CapacityUnit(0, 0)),
                stream=stream,
            )

    def write(self, count: int) -> None:
        for _ in range(count):
            key = [("customer", f"c{self.written % 5}"), ("id", self.written)]
            self.client.put_row("orders", Row(key, [("amount", self.written), ("status", "new")]), ANYTHING)
            self.written += 1

    def options(self, table: str = "orders", **more: str) -> dict[str, str]:
        return frame_options(self.local, table) | more


@pytest.fixture
def orders(local: LocalTablestore) -> Orders:
    return Orders(local)


def ended(writer: Any) -> Any:
    """A query, when it is over."""

    def run() -> Any:
        query = writer.start()
        query.awaitTermination()
        return query

    return with_planners(run)


def ids(frame: Any) -> list[int]:
    return sorted(row["id"] for row in frame.select("id").collect())


@pytest.fixture
def pushing(streaming: Any) -> Iterator[Any]:
    """The same session, which hands filters over."""
    streaming.conf.set(PUSHDOWN, "true")
    yield streaming
    streaming.conf.set(PUSHDOWN, "false")


def test_a_frame_is_narrowed_by_its_filter_if_it_says_so(pushing: Any, orders: Orders) -> None:
    """A frame for each filter, as Spark keeps one reader for each frame."""
    orders.write(30)
    orders.local.split("orders")

    def load(**more: str) -> Any:
        return pushing.read.format("tablestore").options(**orders.options(**more)).load()

    def found(condition: str, **more: str) -> tuple[list[int], int]:
        frame = load(**more)
        assert frame.columns == ["customer", "id", "amount", "status", "_unfit"]
        orders.local.reset_requests()
        rows = ids(frame.where(condition))
        return rows, sum(one.rows_read for one in orders.local.requests() if one.operation == "GetRange")

    few = "customer = 'c3' and id > 10"
    assert found(few) == ([13, 18, 23, 28], 30)
    assert found(few, pushFilters="true") == ([13, 18, 23, 28], 4), "only what the filters take"
    assert found("customer > 'c3' and customer < 'c2'", pushFilters="true") == ([], 0), "no range is left"
    each = [load(pushFilters="true").where(f"customer = 'c{one}'").groupBy("customer").count() for one in (1, 2, 1)]
    assert [tuple(row) for row in each[0].union(each[1]).union(each[2]).collect()] == [("c1", 6), ("c2", 6), ("c1", 6)]

    pushing.conf.set(PUSHDOWN, "false")
    with pytest.raises(Exception, match=f"filter pushdown is disabled because configuration '{PUSHDOWN}' is false"):
        found(few, pushFilters="true")


def test_a_frame_that_is_used_again_has_all_of_its_rows(pushing: Any, orders: Orders) -> None:
    """By other filters, by none, twice in one query, and as a view: what one of them wants is nothing to the others."""
    from pyspark.sql.functions import expr

    orders.write(30)
    reader = pushing.read.format("tablestore").options(**orders.options())
    frame = reader.schema("customer string, id bigint").load()
    frame.createOrReplaceTempView("orders_view")
    ones, twos = frame.where("customer = 'c1'"), frame.where("customer = 'c2'")

    assert ids(ones) == list(range(1, 30, 5))
    assert ids(frame) == list(range(30)), "as if nobody had filtered it"
    assert ids(ones.union(twos)) == sorted([*range(1, 30, 5), *range(2, 30, 5)])
    assert ids(frame.exceptAll(ones)) == [one for one in range(30) if one % 5 != 1]
    assert ones.alias("one").join(twos.alias("two"), on=expr("one.id = two.id - 1")).count() == 6
    counts = "select (select count(*) from orders_view where customer = 'c1'), (select count(*) from orders_view)"
    assert tuple(pushing.sql(counts).first()) == (6, 30)


def test_a_query_goes_on_from_its_checkpoint_while_shards_split(streaming: Any, orders: Orders, tmp_path: Path) -> None:
    """From the stream into a table: limits, lag, the end at what is there now, and the same rows in both tables."""
    changes = streaming.readStream.format("tablestore").options(
        **orders.options(layout="changes", maxOffsetsPerTrigger="20")
    )
    progress = []

    def catch_up() -> None:
        frame = changes.load().select("customer", "id", "amount", "status")
        writer = frame.writeStream.format("tablestore").options(**orders.options("copy"))
        query = ended(writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True))
        progress.extend(json.loads(one.json) for one in query.recentProgress)

    orders.write(50)
    catch_up()
    orders.local.split("orders")
    orders.write(25)
    catch_up()
    copied = streaming.read.format("tablestore").options(**orders.options("copy")).load()
    rows = [one["numInputRows"] for one in progress if one["numInputRows"]]
    lags = [one["sources"][0]["latestOffset"] for one in progress if one["numInputRows"]]

    assert ids(copied) == list(range(75))
    assert rows == [20, 20, 10, 20, 5], "each change once, and no batch above the limit"
    assert lags[0]["lagMillis"] > 0
    assert (lags[-1]["lagMillis"], lags[-1]["records"]) == (0, 75)


def test_columns_that_are_named_are_read_without_the_rest(streaming: Any, orders: Orders, tmp_path: Path) -> None:
    """As values alone. A column that is declared NOT NULL must have one: Spark looks for no null in it."""
    from pyspark.errors import StreamingQueryException

    orders.write(3)
    orders.client.delete_row("orders", Row([("customer", "c1"), ("id", 1)]), ANYTHING)
    changes = streaming.readStream.format("tablestore").options(**orders.options())
    frame = changes.schema("status string, id bigint NOT NULL, amount bigint, _operation string").load()
    ended(frame.writeStream.format("memory").queryName("named").trigger(availableNow=True))

    assert [tuple(row) for row in streaming.table("named").collect()] == [
        ("new", 0, 0, "PUT"),
        ("new", 1, 1, "PUT"),
        ("new", 2, 2, "PUT"),
        (None, 1, None, "DELETE"),
    ]
    strict = changes.schema("id bigint, amount bigint NOT NULL").load().writeStream.format("noop")
    with pytest.raises(StreamingQueryException, match="column 'amount' is declared NOT NULL and the change"):
        ended(strict.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True))


@pytest.mark.parametrize("work", ["stream", "rows", "writer", "stream writer"])
def test_no_collection_walks_through_what_was_imported(
    work: str, streaming: Any, orders: Orders, tmp_path: Path
) -> None:
    """On executors, where Spark collects after each task."""
    found = tmp_path / "frozen"

    def watched(done: Callable[[], Any]) -> Any:
        """In an executor's process, of which another test may have been the first."""
        gc.unfreeze()
        data_source._freeze_imports.cache_clear()
        result = done()
        found.write_text(str(gc.get_freeze_count()))
        return result

    class WatchedChanges(data_source.ChangeStreamReader):
        def read(self, partition: Any) -> Any:
            return watched(lambda: iter(list(data_source.ChangeStreamReader.read(self, partition))))

    class WatchedRows(data_source.TableReader):
        def read(self, partition: Any) -> Any:
            return watched(lambda: iter(list(data_source.TableReader.read(self, partition))))

    class WatchedWriter(data_source.TableWriter):
        def write(self, iterator: Any) -> Any:
            return watched(lambda: data_source.TableWriter.write(self, iterator))

    class WatchedStreamWriter(data_source.TableStreamWriter):
        def write(self, iterator: Any) -> Any:
            return watched(lambda: data_source.TableStreamWriter.write(self, iterator))

    class WatchedDataSource(TablestoreDataSource):
        @classmethod
        def name(cls) -> str:
            return "watched"

        def streamReader(self, schema: Any) -> Any:  # noqa: N802
            return WatchedChanges(self._options, self.service(), self._arrow(schema))

        def reader(self, schema: Any) -> Any:
            return WatchedRows(super().reader(schema).plan)

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return WatchedWriter(super().writer(schema, overwrite).rows)

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
            return WatchedStreamWriter(super().streamWriter(schema, overwrite).rows)

    streaming.dataSource.register(WatchedDataSource)
    orders.write(1)
    columns = "customer string, id bigint"
    reads, writes = ("tablestore", "watched") if "writer" in work else ("watched", "tablestore")
    changes = streaming.readStream.format(reads).options(**orders.options()).schema(columns).load()
    rows = streaming.read.format(reads).options(**orders.options()).schema(columns).load()
    checkpoint, copy = str(tmp_path / "checkpoint"), orders.options("copy")
    if "stream" in work:
        query = changes.writeStream.format(writes).options(**copy).option("checkpointLocation", checkpoint)
        ended(query.trigger(availableNow=True))
    else:
        rows.write.format(writes).options(**copy).mode("append").save()

    copied = streaming.read.format("tablestore").options(**copy).schema(columns).load()
    assert ids(copied) == [0]
    assert int(found.read_text()) > 10_000


def test_whoever_reads_elsewhere_collects_as_before(orders: Orders) -> None:
    """The driver's process is the user's."""
    from pyspark.sql.types import LongType, StructField, StructType

    orders.write(1)
    before = gc.get_freeze_count()
    reader = TablestoreDataSource(orders.options()).reader(StructType([StructField("id", LongType())]))
    assert [batch.num_rows for batch in reader.read(reader.partitions()[0])] == [1]
    assert gc.get_freeze_count() == before


def test_a_tunnel_gives_full_data_and_then_what_changed(streaming: Any, orders: Orders, tmp_path: Path) -> None:
    """To the end of what is there now, twice, with a split between; the tunnel is told how far Spark is."""
    orders.write(10)
    tunnels = TunnelClient(orders.client)
    tunnel = tunnels.create_tunnel("orders", "spark", TunnelType.BASE_AND_STREAM)
    given = orders.options(tunnelId=tunnel, layout="changes")
    seen: list[list[int]] = []

    def catch_up() -> None:
        seen.append([])
        changes = streaming.readStream.format("tablestore").options(**given).load()
        writer = changes.writeStream.foreachBatch(lambda frame, _: seen[-1].extend(ids(frame)))
        ended(writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True))

    catch_up()
    orders.local.split("orders")
    orders.write(5)
    catch_up()
    counts = [channel.record_count for channel in tunnels.describe_tunnel("orders", "spark").channels]

    assert seen == [list(range(10)), list(range(10, 15))]
    assert (counts[0], sum(counts) > 10) == (10, True), "of the full data, and of channels that were read to their ends"


def test_the_first_batch_is_repeated_as_it_was_logged(streaming: Any, orders: Orders, tmp_path: Path) -> None:
    """Spark does not store where the first batch begins; a restart that asked "latest" anew would lose its rows."""
    orders.write(10)
    from pyspark.errors import StreamingQueryException

    seen: list[list[int]] = []

    def run(starting: str, fails: bool) -> None:
        given = orders.options(startingOffsets=starting, maxOffsetsPerTrigger="4")

        def take(frame: Any, number: int) -> None:
            seen.append(ids(frame))
            if fails:
                raise ValueError("crash in the first batch")

        writer = streaming.readStream.format("tablestore").options(**given).load().writeStream.foreachBatch(take)
        with pytest.raises(StreamingQueryException, match="crash in the first batch") if fails else nullcontext():
            ended(writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True))

    run("earliest", fails=True)
    run("latest", fails=False)

    assert seen == [[0, 1, 2, 3], [0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_what_cannot_go_on_says_why(streaming: Any, orders: Orders, tmp_path: Path) -> None:
    """A schema of rows for a stream, a misspelt option, and records that were trimmed before they were read."""
    orders.write(10)

    def error_of(**more: str) -> str:
        try:
            frame = streaming.readStream.format("tablestore").options(**orders.options(**more)).load()
            writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
            ended(writer.trigger(availableNow=True))
        except Exception as error:
            return str(error)
        return ""

    assert "readStream without a schema needs the option layout=changes" in error_of()
    assert "did you mean maxOffsetsPerTrigger" in error_of(maxOffsetPerTrigger="5")
    assert error_of(startingOffsets="earliest") == ""
    orders.write(10)
    orders.local.trim("orders", keep_last=2)
    assert "were trimmed before they were read" in error_of(startingOffsets="earliest")
    assert error_of(startingOffsets="earliest", failOnDataLoss="false") == ""
