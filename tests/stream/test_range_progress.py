"""Pages of GetRange that do not move on: each reader refuses them by name, asks again, and has each row once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve
from tablestore import (
    INF_MAX,
    INF_MIN,
    CapacityUnit,
    Condition,
    OTSClient,
    ReservedThroughput,
    Row,
    RowExistenceExpectation,
    TableMeta,
    TableOptions,
)

from samples.metrics import Checkpointing
from streamclient.base.position import Position
from streamclient.config import ClientConfig, StreamConfig
from streamclient.copying.copied_stream import CopiedStream
from streamclient.copying.differences import scan as verified_rows
from streamclient.copying.source_table import CopyPlan, SourceTable
from streamclient.errors import DependencyException, ErrorKind
from streamclient.operate.service_clock import ServiceClock
from streamclient.operate.status_table import StatusTableReader
from streamclient.server import LocalTablestore
from streamclient.server.operations import get_range as served
from streamclient.server.operations._ranges import RangePage, RangeRead, read_range
from streamclient.spark.source.source_options import SourceOptions
from streamclient.spark.source.source_schemas import inferred, sampled
from streamclient.spark.source.table_reading import TablePlan, TableRows
from streamclient.tablestore import StreamSpecification, TablestoreStreamApi
from streamclient.tablestore.ranges import TableScan, key_order, record_of, require_progress
from streamclient.tablestore.read_retry import ReadRetry, Repeater
from streamclient.tablestore.signed_calls import SignedCalls
from streamclient.testing.contracts.parking_contract import parked_record
from streamclient.wire.rows import KeyBound
from streamclient.worker.lease.lease_manager import LeaseManager
from streamclient.worker.parking import TableParkingStore
from streamclient.worker.worker import Worker
from tests.patience import PATIENCE_SECONDS

ROWS = 7
LEASE = {"LeaseCounter": 7, "LeaseOwner": "a", "LeaseStealer": "", "Checkpoint": "x", "ParentShardIds": ""}
ANYTHING = Condition(RowExistenceExpectation.IGNORE)

LIES = ["repeats its first row", "repeats its last row", "goes back", "has old rows"]


class Lying:
    """Pages of two rows of one table; ``lies`` times a second or later page is not as it should be."""

    def __init__(self, table: str, lie: str, lies: int) -> None:
        self.table, self.lie, self.left = table, lie, lies
        self.told = 0
        self.first: dict[Any, RangePage] = {}
        """The first page of each range, by its end."""

    def __call__(self, state: Any, table: Any, request: RangeRead) -> RangePage:
        if request.table_name != self.table:
            return read_range(state, table, request)
        page = read_range(state, table, evolve(request, limit=min(2, request.limit or 2)))
        if not page.rows:
            return page
        first = self.first.setdefault(request.end, page)
        if self.left == 0 or page.next_row is None or page.rows[0].key == first.rows[0].key:
            return page
        self.left -= 1
        self.told += 1
        if self.lie == "has old rows":
            return evolve(page, rows=first.rows)
        wrong = {"repeats its first row": page.rows[0], "repeats its last row": page.rows[-1]}
        return evolve(page, next_row=wrong.get(self.lie, first.rows[0]))


Lie = Callable[[str, int], Lying]


@pytest.fixture(params=LIES)
def lying(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lie:
    def begin(table: str, lies: int) -> Lying:
        made = Lying(table, request.param, lies)
        monkeypatch.setattr(served, "read_range", made)
        return made

    return begin


@pytest.fixture
def orders(local: LocalTablestore) -> OTSClient:
    client = local.client()
    meta = TableMeta("orders", [("id", "INTEGER")])
    TablestoreStreamApi(client).create_table(meta, TableOptions(), ReservedThroughput(CapacityUnit(0, 0)))
    for number in range(ROWS):
        client.put_row("orders", Row([("id", number)], [("amount", number)]), ANYTHING)
    return client


def status_rows(client: OTSClient) -> LeaseManager:
    """Leases and workers of one stream, and leases of others."""
    manager = LeaseManager(client, "status", "orders_1", sleep=lambda seconds: None)
    manager.create_lease_table_if_not_exists()
    cells: dict[str, list[tuple[str, Any]]] = {
        "LeaseKey": list(LEASE.items()),
        "Worker": [("Nonce", "n"), ("Beat", 1), ("State", "running"), ("Wake", 0), ("Info", "{}")],
    }
    for number in range(ROWS):
        for kind, columns in cells.items():
            key = [("StreamId", "orders_1"), ("StatusType", kind), ("StatusValue", f"s{number}")]
            client.put_row("status", Row(key, columns), ANYTHING)
        key = [("StreamId", f"others_{number}"), ("StatusType", "LeaseKey"), ("StatusValue", "s")]
        client.put_row("status", Row(key, cells["LeaseKey"]), ANYTHING)
    return manager


def full_copy(client: OTSClient) -> list[Any]:
    stream = CopiedStream(SourceTable(client, "orders"), CopyPlan(0), CopyPlan(0).pieces)
    position, keys = Position(stream.get_shard_iterator("orders_1", "copy/0")), list[Any]()
    while not position.is_shard_end:
        page = stream.get_stream_record(position.text)
        keys += [record.key["id"] for record in page.records]
        position = page.next_position
    return keys


def mirrored(client: OTSClient) -> list[Any]:
    source = SourceTable(client, "orders")
    return [row.key["id"] for row in map(record_of, source.scan(source.rule()).rows())]


def options(local: LocalTablestore, **more: str) -> SourceOptions:
    given = {
        "endpoint": local.endpoint,
        "instance": local.instance,
        "table": "orders",
        "accessKeyId": local.access_key_id,
        "accessKeySecret": local.access_key_secret,
    }
    return SourceOptions.read(given | more, {})


def source_rows(local: LocalTablestore) -> list[Any]:
    given = options(local, sampleRows="0")
    columns = inferred(given)
    (part,) = TablePlan(given, columns).ranges()
    return [line["id"] for batch in TableRows(given, columns, ("id",)).read(part) for line in batch.to_pylist()]


def parked(client: OTSClient) -> list[Any]:
    store = TableParkingStore(client, "parked")
    store.park([parked_record("a", number) for number in range(ROWS)])
    return [each.record.sequence_info.timestamp_micros for each in patiently(lambda: list(store.parked()))]


def parked_keys(client: OTSClient) -> list[Any]:
    store = TableParkingStore(client, "parked")
    store.park([parked_record(str(number), number) for number in range(ROWS)])
    return [int(str(dict(each.key)["id"])) for each in patiently(lambda: list(store.parked_keys("orders_1")))]


def status_facts(client: OTSClient, *, newest: bool) -> list[Any]:
    reader = StatusTableReader(client, "status", ServiceClock())
    rows = patiently(lambda: reader.scan("orders_1", "LeaseKey", newest=newest))
    found = [int(dict(row.primary_key)["StatusValue"][1:]) for row in rows]
    return found[::-1] if newest else found


def patiently(read: Callable[[], Any]) -> Any:
    """As those repeat it who call what makes each call once."""
    return Repeater(ReadRetry(shortest_pause_millis=0)).call("GetRange", read)


def numbers(names: Any) -> list[Any]:
    return [int(name[1:]) for name in names]


READERS: dict[str, tuple[str, Callable[[LocalTablestore, OTSClient], list[Any]]]] = {
    "leases": ("status", lambda _, client: numbers(each.lease_key for each in status_rows(client).list_leases())),
    "workers": ("status", lambda _, client: numbers(each.worker_id for each in status_rows(client).list_workers())),
    "status rows": ("status", lambda _, client: [status_rows(client), status_facts(client, newest=False)][1]),
    "newest status rows": ("status", lambda _, client: [status_rows(client), status_facts(client, newest=True)][1]),
    "parked records": ("parked", lambda _, client: parked(client)),
    "parked keys": ("parked", lambda _, client: parked_keys(client)),
    "full copy": ("orders", lambda _, client: full_copy(client)),
    "compared rows": ("orders", lambda _, client: [key[0] for key, _ in verified_rows(client, "orders", 1)]),
    "rows of a mirror": (
        "orders",
        lambda _, client: mirrored(client),
    ),
    "rows of the source": ("orders", lambda local, _: source_rows(local)),
    "sample of the source": (
        "orders",
        lambda local, _: [row.primary_key[0][1] for row in sampled(options(local), ["id"])],
    ),
}


@pytest.mark.parametrize("reader", READERS)
def test_each_row_is_read_once_although_pages_did_not_move_on(
    reader: str, lying: Lie, orders: OTSClient, local: LocalTablestore
) -> None:
    table, read = READERS[reader]
    server = lying(table, 2)

    assert read(local, orders) == list(range(ROWS))
    assert server.told == 2


def test_a_page_that_never_moves_on_is_named_as_the_fault_of_the_service(lying: Lie, orders: OTSClient) -> None:
    server = lying("orders", 1_000)
    start, rows = TableScan(calls=SignedCalls(orders), table="orders", key=["id"]).page()
    assert [row.primary_key[0][1] for row in rows] == [0, 1]

    with pytest.raises(DependencyException) as caught:
        TableScan(calls=SignedCalls(orders), table="orders", key=["id"]).page(start)
    assert caught.value.kind is ErrorKind.TRANSIENT
    for part in ("GetRange of table 'orders' does not move on: asked from (2), ", "the service, or a system"):
        assert part in str(caught.value)
    assert server.told == 1


def test_other_streams_in_a_status_table_are_each_found_once(lying: Lie, local: LocalTablestore) -> None:
    """One row is asked for at a time, from the place after the stream before."""
    client = local.client()
    status_rows(client)
    lying("status", 0)
    reader = StatusTableReader(client, "status", ServiceClock())

    assert reader.stream_ids() == ["orders_1", *(f"others_{number}" for number in range(ROWS))]


@pytest.mark.parametrize(
    "keys",
    [
        [INF_MIN, -(2**63), -1, 0, 2**63 - 1, INF_MAX],
        [KeyBound.INF_MIN, "", "\x00", "a", "a\x00", "b", "\uffff", "\U00010000", KeyBound.INF_MAX],
        [KeyBound.INF_MIN, b"", b"\x00", bytearray(b"a"), b"\xff", INF_MAX],
    ],
)
def test_keys_are_compared_as_the_service_orders_them(keys: list[Any]) -> None:
    shuffled = [[each, 5] for each in reversed(keys)]

    assert sorted(shuffled, key=key_order) == [[each, 5] for each in keys]
    for number, key in enumerate(keys):
        for other in keys[: number + 1]:
            with pytest.raises(DependencyException, match="does not move on"):
                require_progress("t", [("k", key)], [], [("k", other)])
            with pytest.raises(DependencyException, match="does not move on"):
                require_progress("t", [("k", other)], [], [("k", key)], is_backward=True)
        for other in keys[number + 1 :]:
            require_progress("t", [("k", key)], [], [("k", other)])
            require_progress("t", [("k", other)], [], [("k", key)], is_backward=True)


def test_a_scan_that_never_moves_on_is_named_in_the_health_of_the_worker(lying: Lie, orders: OTSClient) -> None:
    """The worker asks again and again, and takes nothing of such pages; it goes on when the service does."""
    streams = TablestoreStreamApi(orders)
    streams.update_table("orders", stream=StreamSpecification(enable_stream=True, expiration_time_hours=24))
    (stream,) = streams.list_stream("orders")
    manager = LeaseManager(orders, "status", stream.stream_id)
    manager.create_lease_table_if_not_exists()
    for number in range(ROWS):
        key = [("StreamId", stream.stream_id), ("StatusType", "LeaseKey"), ("StatusValue", f"s{number}")]
        orders.put_row("status", Row(key, list(LEASE.items())), ANYTHING)
    server = lying("status", -1)
    quick = ClientConfig(
        lease_duration_millis=2_000,
        renewer_interval_millis=100,
        taker_interval_millis=100,
        max_duration_before_last_successful_renew_or_take_lease=1_000,
    )
    config = StreamConfig(client=orders, data_table_name="orders", status_table_name="status")
    with Worker("w", quick, config, Checkpointing) as worker:
        assert worker.wait(PATIENCE_SECONDS, until=lambda: "does not move on" in worker.health.reason)
        server.left = 0
        assert worker.wait(PATIENCE_SECONDS, until=lambda: worker.health.is_healthy)
    assert server.told > 1
