"""The source over a tunnel of a local Tablestore: full data, changes, splits, and what is read again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from attrs import define, field
from tablestore import (
    BatchWriteRowRequest,
    CapacityUnit,
    Condition,
    DeleteRowItem,
    PutRowItem,
    ReservedThroughput,
    Row,
    RowExistenceExpectation,
    TableInBatchWriteRowItem,
    TableMeta,
    TableOptions,
)

from streamclient.base.times import MICROS_PER_HOUR, now_micros
from streamclient.errors import ConfigurationError, DependencyException, StreamClientException
from streamclient.server import FaultRule, LocalTablestore
from streamclient.server.fault_rules import Fail
from streamclient.spark.source.partition_reading import RangeReader, StreamService
from streamclient.spark.source.planner import StreamPlanner
from streamclient.spark.source.source_options import SourceOptions
from streamclient.spark.source.tunnel_planner import IDLE_MOVE_SECONDS, PlannedPages, TunnelPlanner, TunnelService
from streamclient.tablestore import Connection, StreamSpecification, TablestoreStreamApi
from streamclient.tunnel import ChannelStatus, TunnelClient, TunnelStage, TunnelType
from streamclient.tunnel.log_watch import LOOK_SECONDS
from streamclient.wire import schema
from streamclient.wire.page_parts import FINISHED
from tests.datasource.drill import frame_options
from tests.datasource.query import COLUMNS, AnyQuery, options
from tests.tunnel.tunnel_server import LOST, gateway

TABLE = "orders"
FULL_PAGE = 5_000
"""Rows in a page of full data."""

ANYTHING = Condition(RowExistenceExpectation.IGNORE)


class Orders:
    """A table that a tunnel is on, and its writer."""

    def __init__(self, local: LocalTablestore) -> None:
        self.local, self.client, self.written = local, local.client(), 0
        self.tunnels = TunnelClient(self.client)
        TablestoreStreamApi(self.client).create_table(
            TableMeta(TABLE, [("pk", "INTEGER")]),
            TableOptions(),
            ReservedThroughput(CapacityUnit(0, 0)),
            stream=StreamSpecification(enable_stream=True, expiration_time_hours=24),
        )

    def tunnel(self, kind: TunnelType = TunnelType.STREAM) -> str:
        return self.tunnels.create_tunnel(TABLE, kind.value, kind)

    def change(self, items: list[Any]) -> None:
        for start in range(0, len(items), 200):
            request = BatchWriteRowRequest()
            request.add(TableInBatchWriteRowItem(TABLE, items[start : start + 200]))
            assert self.client.batch_write_row(request).is_all_succeed()

    def write(self, count: int) -> None:
        numbers = range(self.written, self.written + count)
        self.put(*numbers)
        self.written += count

    def put(self, *keys: int, value: int = 1) -> None:
        self.change([PutRowItem(Row([("pk", key)], [("v", value)]), ANYTHING) for key in keys])

    def delete(self, *keys: int) -> None:
        self.change([DeleteRowItem(Row([("pk", key)]), ANYTHING) for key in keys])

    def described(self, kind: TunnelType = TunnelType.STREAM) -> Any:
        return self.tunnels.describe_tunnel(TABLE, kind.value)


@define(eq=False)
class TunnelQuery(AnyQuery):
    """Over a tunnel."""

    local: LocalTablestore
    tunnel_id: str
    options: SourceOptions = field(factory=options)
    endpoint: str = ""

    @property
    def service(self) -> TunnelService:
        given = frame_options(self.local, TABLE)
        connection = Connection(
            endpoint=self.endpoint or given["endpoint"],
            instance=given["instance"],
            access_key_id=given["accessKeyId"],
            access_key_secret=given["accessKeySecret"],
        )
        return TunnelService(connection, TABLE, self.tunnel_id)

    def new_planner(self) -> StreamPlanner:
        return TunnelPlanner.of(self.options, self.service, monotonic=self.tick)

    def reader(self) -> RangeReader:
        return RangeReader(PlannedPages(self.service), COLUMNS)


def stream_of(query: TunnelQuery) -> tuple[Any, Any]:
    """What the planner of a query over the table's stream asks."""
    service = StreamService(query.service.connection)
    return service.streams(), service.summary


@pytest.fixture
def orders(local: LocalTablestore) -> Iterator[Orders]:
    return Orders(local)  # type: ignore[return-value]


def test_full_data_comes_first_and_then_what_changed(orders: Orders) -> None:
    """Channels of changes open once Spark has passed the full data, which the tunnel is told with the next batch."""
    orders.write(FULL_PAGE * 2 + 50)
    query = TunnelQuery(orders.local, orders.tunnel(TunnelType.BASE_AND_STREAM))
    query.plan()
    assert orders.described(TunnelType.BASE_AND_STREAM).info.stage is TunnelStage.PROCESS_BASE_DATA
    query.run()
    orders.put(7, value=2)
    orders.delete(8)
    query.catch_up()

    full, *changes = query.output
    assert [row["pk"] for row in full] == list(range(orders.written)), "by key"
    assert {(row["_operation"], row["_epoch"], row["_row_index"]) for row in full} == {("PUT", 0, 0)}
    seen = [(row["pk"], row["_operation"], row["v"]) for rows in changes for row in rows]
    assert seen == [(7, "PUT", 2), (8, "DELETE", None)]
    assert orders.described(TunnelType.BASE_AND_STREAM).info.stage is TunnelStage.PROCESS_STREAM


def test_a_range_of_full_data_that_is_read_again_has_the_same_keys(orders: Orders) -> None:
    """Rows came and went since it was planned. Neither is one lost at its end, nor does one come twice."""
    orders.write(FULL_PAGE * 3)
    query = TunnelQuery(orders.local, orders.tunnel(TunnelType.BASE_DATA))
    query.plan(per_shard=1)
    lag = query.planner.lag()
    assert lag is not None
    assert (lag["lagMillis"], lag["shardsBehind"]) == (None, 1), "it is not known, and not none"
    orders.delete(3, 4, FULL_PAGE + 1)
    orders.put(-3, -2, -1)
    query.run()
    query.start()
    query.run()
    query.catch_up(per_shard=1)

    assert [len(rows) for rows in query.output] == [FULL_PAGE + 1, FULL_PAGE, FULL_PAGE - 1]
    assert query.keys() == sorted({-3, -2, -1, *range(orders.written)} - {3, 4, FULL_PAGE + 1})


def test_changes_are_the_same_each_time_they_are_read(orders: Orders) -> None:
    query = TunnelQuery(orders.local, orders.tunnel())
    orders.write(30)
    query.plan()
    orders.write(20)
    query.run()
    first = query.output[0]
    query.start()
    query.run()

    assert query.output[0] == first
    assert [row["pk"] for row in first] == list(range(30)), "of a page that has grown since"
    query.catch_up()
    assert query.keys() == list(range(50))


def test_splits_and_merges_need_nothing(orders: Orders) -> None:
    query = TunnelQuery(orders.local, orders.tunnel())
    for value in range(6):
        orders.put(*range(10), value=value)
        open_shards = [shard.shard_id for shard in orders.local.shards(TABLE) if shard.is_open]
        if len(open_shards) == 1:
            orders.local.split(TABLE, at=5)
        else:
            orders.local.merge(TABLE, *open_shards)
        query.catch_up()
    query.catch_up()

    for key in range(10):
        values = [row["v"] for rows in query.output for row in rows if row["pk"] == key]
        assert values == list(range(6)), "each once, in the order of its key"


def test_the_tunnel_knows_how_far_the_query_is(orders: Orders) -> None:
    """With the next batch, or when Spark commits; after a lost answer with the one behind it."""
    query = TunnelQuery(orders.local, orders.tunnel())
    orders.write(5)
    query.catch_up()
    counts = [channel.record_count for channel in orders.described().channels]
    orders.local.add_fault(FaultRule("tunnel/checkpoint", Fail("OTSTunnelServerUnavailable"), times=1))
    orders.write(5)
    query.catch_up()
    unanswered = [channel.record_count for channel in orders.described().channels]
    query.plan()

    assert (counts, unanswered) == ([5], [5])
    assert [channel.record_count for channel in orders.described().channels] == [10]
    orders.local.split(TABLE, at=3)
    query.catch_up()
    query.start()
    query.planner.committed(query.offset(len(query.log) - 1))
    by_status = sorted(channel.status.value for channel in orders.described().channels)
    assert by_status == ["OPEN", "OPEN", "TERMINATED"]


def test_two_queries_on_one_tunnel_are_told_apart(orders: Orders) -> None:
    """As soon as one has stored a checkpoint more than the other: the service takes a number that it has once more."""
    tunnel = orders.tunnel()
    first, second = TunnelQuery(orders.local, tunnel), TunnelQuery(orders.local, tunnel)
    for query in (first, second, second, second):
        orders.write(3)
        query.catch_up()
    orders.write(3)

    with pytest.raises(StreamClientException, match="has another consumer"):
        first.catch_up()


def test_what_is_no_tunnel_of_the_table_is_refused(orders: Orders) -> None:
    tunnel = orders.tunnel()
    with pytest.raises(ConfigurationError, match=f"has no tunnel 'other'; its tunnels are: {tunnel}"):
        TunnelQuery(orders.local, "other").plan()
    query = TunnelQuery(orders.local, tunnel)
    orders.write(1)
    query.catch_up()
    query.tunnel_id = orders.tunnel(TunnelType.BASE_AND_STREAM)
    query.start()
    with pytest.raises(ConfigurationError, match=f"the checkpoint is of {tunnel}"):
        query.plan()


@pytest.mark.parametrize("was_of_a_tunnel", [True, False], ids=["another tunnel", "the stream"])
def test_a_checkpoint_of_something_else_is_refused_before_the_tunnel_is_told_anything(
    was_of_a_tunnel: bool, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Channels of two tunnels may have one id: what is told of the one would be skipped by readers of the other."""
    query = TunnelQuery(orders.local, orders.tunnel())
    given = orders.tunnels.create_tunnel(TABLE, "given", TunnelType.STREAM)
    orders.write(5)
    if was_of_a_tunnel:
        query.catch_up()
    else:
        monkeypatch.setattr(query, "planner", StreamPlanner(options(table=TABLE), *stream_of(query)))
        assert query.plan()
    query.tunnel_id = given
    query.start()
    before = orders.tunnels.describe_tunnel(TABLE, "given")
    end = query.offset(len(query.log) - 1)
    for use in (lambda: query.planner.latest(end, None, None), lambda: query.planner.committed(end)):
        with pytest.raises(ConfigurationError, match=rf"the checkpoint is of .*, and the option tunnelId says {given}"):
            use()
    assert orders.tunnels.describe_tunnel(TABLE, "given") == before

    fresh = TunnelQuery(orders.local, given)
    fresh.catch_up()
    assert {row["pk"] for rows in fresh.output for row in rows} == set(range(5))


def test_channels_without_records_make_no_batches(orders: Orders) -> None:
    """Each empty read gives another token. Now and then it is taken over, so that none grows old."""
    query = TunnelQuery(orders.local, orders.tunnel())
    orders.write(3)
    query.catch_up()
    batches = len(query.log)
    assert [query.plan() for _ in range(3)] == [False] * 3
    lag = query.planner.lag()
    assert lag is not None
    assert (lag["lagMillis"], lag["shardsBehind"]) == (0, 0), "read up, though its token moves"
    query.clock += IDLE_MOVE_SECONDS
    assert [query.plan() for _ in range(3)] == [True, False, False]

    query.run()
    assert query.output[batches:] == [[]]


def test_what_is_there_now_is_full_data_and_changes(orders: Orders) -> None:
    """``Trigger.AvailableNow`` waits for the channels that open behind the full data, and not for what comes later."""
    orders.write(10)
    query = TunnelQuery(orders.local, orders.tunnel(TunnelType.BASE_AND_STREAM))
    orders.put(3, value=5)
    query.planner.stop_at_present()
    query.catch_up()
    assert [(row["pk"], row["v"]) for rows in query.output[1:] for row in rows] == [(3, 5)]

    orders.put(4, value=6)
    assert not query.plan(), "the channel was read to its end before"
    query.start()
    query.planner.stop_at_present()
    query.catch_up()
    assert [row["pk"] for rows in query.output[1:] for row in rows] == [3, 4]


def test_limits_take_whole_pages(orders: Orders) -> None:
    query = TunnelQuery(orders.local, orders.tunnel())
    orders.write(2_500)
    query.catch_up(per_shard=1_500)

    assert [len(rows) for rows in query.output] == [1_000, 1_500]


def test_a_log_that_is_gone_ends_the_query(orders: Orders) -> None:
    query = TunnelQuery(orders.local, orders.tunnel())
    orders.write(20)
    query.plan()
    orders.write(20)
    orders.local.trim(TABLE, keep_last=2)

    with pytest.raises(StreamClientException, match="were trimmed after they were planned"):
        query.run()
    with pytest.raises(StreamClientException, match=r"past retention|were trimmed before"):
        query.plan()


@define(eq=False)
class LaterQuery(TunnelQuery):
    """With a clock that goes ahead with the server's."""

    passed_hours: int = 0

    def new_planner(self) -> StreamPlanner:
        def later() -> int:
            return now_micros() + self.passed_hours * MICROS_PER_HOUR

        return TunnelPlanner.of(self.options, self.service, monotonic=self.tick, now_micros=later)

    def passes(self, hours: int) -> None:
        self.local.advance_clock(hours * 3_600)
        self.passed_hours += hours

    def suspected(self) -> int:
        lag = self.planner.lag()
        assert lag is not None
        suspected: int = lag["suspectedLosses"]
        return suspected


def told_of_losses(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "may have lost records" in record.getMessage()]


@pytest.mark.parametrize(
    ("is_restarted", "is_busy"),
    [(True, False), (False, False), (True, True)],
    ids=["a restarted query", "a query that stood still", "a restarted query of a busy service"],
)
def test_records_that_the_service_skipped_are_suspected_once(
    is_restarted: bool, is_busy: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """At the beginning by the position, and at the first page by the gap before it. A busy service is asked again."""
    with LocalTablestore(tunnels_skip_lost_log=True) as local:
        orders = Orders(local)
        query = LaterQuery(local, orders.tunnel())
        orders.write(1)
        query.catch_up()
        orders.write(1)  # which is skipped
        query.passes(hours=25)
        orders.write(1)
        if is_busy:
            local.add_fault(FaultRule("DescribeTable", Fail("OTSServerBusy"), times=1))
        if is_restarted:
            query.start()
        with caplog.at_level("WARNING", "streamclient"):
            query.catch_up()
            query.clock += LOOK_SECONDS
            orders.write(1)
            query.catch_up()

    assert query.keys() == [0, 2, 3]
    told = told_of_losses(caplog)
    assert [f"tunnel {query.tunnel_id}: channel " in text for text in told] == [True] * len(told)
    assert all("the table keeps records for 1 d" in text for text in told)
    assert [" the next record is of " in text for text in told] == ([False, True] if is_restarted else [True])
    assert query.suspected() == len(told)


@pytest.mark.parametrize("is_restarted", [True, False])
def test_a_query_that_was_read_up_suspects_nothing_after_a_quiet_time(
    is_restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The last record is older than the retention, and a later read has found nothing after it."""
    with LocalTablestore(tunnels_skip_lost_log=True) as local:
        orders = Orders(local)
        query = LaterQuery(local, orders.tunnel())
        orders.write(1)
        query.catch_up()
        for _ in range(3):
            query.passes(hours=10)
            query.clock += IDLE_MOVE_SECONDS
            query.catch_up()
        if is_restarted:
            query.start()
        orders.write(1)
        query.catch_up()

    assert query.keys()[-1] == 1
    assert (query.suspected(), told_of_losses(caplog)) == (0, [])


def test_a_query_that_may_not_describe_the_table_goes_on_without_a_watch(orders: Orders) -> None:
    query = TunnelQuery(orders.local, orders.tunnel())
    orders.local.add_fault(FaultRule("DescribeTable", Fail("OTSNoPermissionAccess")))
    orders.write(2)
    query.catch_up()

    assert query.keys() == [0, 1]


LOSSES = {
    "wrapped": Fail("OTSTunnelServerUnavailable", LOST, 400),
    "bare": Fail("OTSTrimmedDataAccess"),
    "expired": Fail("OTSTunnelExpired"),
}


@pytest.mark.parametrize("verb", ["readrecords", "getcheckpoint", "describe", "list", "checkpoint"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_lost_log_ends_a_query_and_says_what_to_do_whichever_call_tells_of_it(
    orders: Orders, name: str, verb: str
) -> None:
    query = TunnelQuery(orders.local, orders.tunnel())
    orders.write(20)
    if verb == "checkpoint":
        query.catch_up()
        orders.write(20)
    orders.local.add_fault(FaultRule(f"tunnel/{verb}", LOSSES[name]))

    with pytest.raises(StreamClientException, match=r"make a new tunnel, and begin with a new checkpoint") as caught:
        query.catch_up()
    assert not isinstance(caught.value, DependencyException)
    assert "failOnDataLoss" not in str(caught.value)
    assert orders.local.faults()[0].struck == 1


def test_a_lost_log_ends_the_executors_and_says_what_to_do(orders: Orders) -> None:
    query = TunnelQuery(orders.local, orders.tunnel())
    orders.write(20)
    query.plan()
    orders.local.add_fault(FaultRule("tunnel/readrecords", LOSSES["wrapped"]))

    with pytest.raises(StreamClientException, match=r"trimmed after they were planned.*make a new tunnel"):
        query.run()


def test_a_page_that_comes_again_is_read_again_and_its_records_are_taken_once(orders: Orders) -> None:
    """An old page with a later token, as an answer out of a cache: Spark has its records already."""
    with gateway(orders.local) as before:
        query = TunnelQuery(orders.local, orders.tunnel(), endpoint=f"http://127.0.0.1:{before.port}")
        pages, struck = list[Any](), list[str]()

        def old_page(request: Any, reply: Any) -> Any:
            answer = schema.parse(schema.ReadRecordsResponse, reply[2])
            if answer.records and not pages:
                pages.append((request.token, answer.records))
            elif answer.records and request.token != pages[0][0] and len(struck) < 3:
                struck.append(request.token)
                old = schema.ReadRecordsResponse(next_token=answer.next_token, records=pages[0][1])
                return reply[0], reply[1], old.SerializeToString()
            return reply

        before.meddling["readrecords"] = old_page
        orders.write(20)
        query.catch_up()
        orders.write(5)
        query.catch_up()

    assert len(struck) == 3
    assert query.keys() == list(range(25))


def test_a_channel_that_somebody_finished_is_at_its_end(orders: Orders) -> None:
    query = TunnelQuery(orders.local, orders.tunnel())
    (channel,) = orders.described().channels
    orders.write(2)
    orders.tunnels.checkpoint(query.tunnel_id, "other", channel.channel_id, FINISHED, 1)
    query.catch_up()

    assert query.keys() == []
    assert [one.status for one in orders.described().channels] == [ChannelStatus.TERMINATED]
