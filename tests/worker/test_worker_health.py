"""A worker that cannot work says so: whatever the service answers or does not answer, from the first call on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from attrs import evolve
from tablestore import CapacityUnit, OTSClient, ReservedThroughput, TableMeta, TableOptions

from streamclient import (
    ClientConfig,
    MemoryLeaseManager,
    ShardState,
    StreamConfig,
    Worker,
    WorkerFailedError,
    WorkerStatus,
)
from streamclient.core.events import Answered, ListShards, ReadRows, Scan, ShardList, WriteLease
from streamclient.core.holdings import Holdings
from streamclient.core.leases import renew
from streamclient.core.rows import WriteOutcome
from streamclient.errors import DependencyException, ErrorKind
from streamclient.model import Lease
from streamclient.server import Fail, FaultRule, LocalTablestore
from streamclient.stream import ReadRetry, StreamSpecification, TablestoreStreamApi
from streamclient.testing.fakes import FakeStream, make_record
from streamclient.testing.simulation.scene import Journal, World
from streamclient.worker.health import CallWatchdog, HealthWatch
from tests.patience import PATIENCE_SECONDS, until

LIMIT_MILLIS = 300
QUICK: dict[str, Any] = {
    "taker_interval_millis": 100,
    "renewer_interval_millis": 300,
    "sync_shard_interval_millis": 100,
    "shutdown_timeout_millis": 2_000,
    "max_duration_before_last_successful_renew_or_take_lease": LIMIT_MILLIS,
}
RENEWAL = WriteLease(renew(Lease("s1", "stream", owner="w1")))
OUTAGE = DependencyException("no connection: refused", kind=ErrorKind.TRANSIENT)


@pytest.fixture
def local() -> Iterator[LocalTablestore]:
    with LocalTablestore() as local:
        TablestoreStreamApi(local.client()).create_table(
            TableMeta("orders", [("id", "STRING")]),
            TableOptions(),
            ReservedThroughput(CapacityUnit(0, 0)),
            stream=StreamSpecification(enable_stream=True, expiration_time_hours=24),
        )
        yield local


def worker_on(client: OTSClient, **changes: Any) -> Worker:
    config = StreamConfig(client=client, data_table_name="orders", status_table_name="status")
    api = TablestoreStreamApi(client, retry=ReadRetry(retries=0))
    return Worker("w1", ClientConfig(**{**QUICK, **changes}), config, Journal().make, stream_api=api)


def silent(endpoint: str) -> OTSClient:
    return OTSClient(endpoint, "id", "secret", "instance", socket_timeout=1, logger_name="tests.silent")


@pytest.fixture
def deaf() -> Iterator[str]:
    """Where nobody listens, and nobody else can begin to."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


# --- the watch itself -------------------------------------------------------------------------------------------------


def test_call_that_is_always_due_is_missed_although_nothing_answers_at_all() -> None:
    watchdog = CallWatchdog("no scan succeeded", due_since=10.0)

    assert watchdog.trouble(70.0, 60.0) == ""
    assert watchdog.trouble(71.0, 60.0) == "no scan succeeded for 61 s"
    watchdog.failed(OUTAGE, 71.0)
    assert watchdog.trouble(72.0, 60.0) == "no scan succeeded for 62 s (DependencyException: no connection: refused)"
    watchdog.succeeded(73.0)
    assert watchdog.trouble(133.0, 60.0) == ""


def test_call_that_is_made_on_occasion_is_judged_from_its_first_failure_on() -> None:
    watchdog = CallWatchdog("no lease write was answered")

    assert watchdog.trouble(1e9, 60.0) == ""
    watchdog.failed(OUTAGE, 100.0)
    watchdog.failed(None, 150.0)
    assert watchdog.trouble(161.0, 60.0).startswith("no lease write was answered for 61 s (DependencyException")
    watchdog.succeeded(162.0)
    assert watchdog.trouble(1e9, 60.0) == ""


def test_every_kind_of_call_that_fails_for_long_is_named() -> None:
    reads = CallWatchdog("no read of the stream succeeded")
    watch = HealthWatch(60_000, 0.0, reads)
    watch.answered(Answered(ReadRows(), error=OUTAGE), 1.0)
    watch.answered(Answered(RENEWAL, WriteOutcome.UNCERTAIN, error=OUTAGE), 1.0)
    watch.answered(Answered(ListShards(), error=OUTAGE), 1.0)
    reads.failed(OUTAGE, 1.0)

    assert watch.judge(60.0).is_healthy
    judged = watch.judge(62.0, "another process has its name")
    assert not judged.is_healthy
    assert [reason.split(" (")[0] for reason in judged.reason.split("; ")] == [
        "another process has its name",
        "no scan of the status table succeeded for 62 s",
        "no lease write was answered for 61 s",
        "no list of the stream's shards was read for 61 s",
        "no read of the stream succeeded for 61 s",
    ]
    watch.answered(Answered(ListShards(), ShardList(())), 63.0)
    reads.succeeded(63.0)
    watch.answered(Answered(ReadRows(), Scan(())), 63.0)
    watch.answered(Answered(RENEWAL, WriteOutcome.REFUSED), 63.0)
    assert watch.judge(100.0).is_healthy


# --- before the service was ever reached ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("endpoint", "error"),
    [("", "Connection refused"), ("http://no-such-host.invalid", "resolve")],
    ids=["refused connection", "unknown host"],
)
def test_worker_that_never_reached_the_service_is_unhealthy_with_the_call_and_its_error(
    endpoint: str, error: str, deaf: str
) -> None:
    with worker_on(silent(endpoint or deaf)) as worker:
        until(lambda: not worker.health.is_healthy and error in worker.health.reason)
        assert worker.health.reason.startswith("looking up the stream has not succeeded for ")
        assert worker.worker_status is WorkerStatus.RUNNING, "it goes on trying"


def test_service_that_does_not_answer_at_all_makes_the_worker_unhealthy() -> None:
    """No error ever comes: the call just takes for ever."""
    asked = threading.Event()

    class Mute(FakeStream):
        def list_stream(self, table_name: str | None = None) -> Any:
            asked.wait(PATIENCE_SECONDS)
            return super().list_stream(table_name)

    config = StreamConfig(client=None, data_table_name="orders", status_table_name="status")
    stream = Mute("orders", ("a",))
    leases = MemoryLeaseManager(stream.stream_id)
    with Worker("w1", ClientConfig(**QUICK), config, Journal().make, None, leases, stream_api=stream) as worker:
        assert worker.health.is_healthy
        until(lambda: not worker.health.is_healthy)
        assert worker.health.reason.startswith("looking up the stream has not succeeded for ")
        asked.set()
        until(lambda: worker.health.is_healthy)


@pytest.mark.parametrize(
    ("operation", "code", "what"),
    [
        ("ListStream", "OTSServerBusy", "looking up the stream has not succeeded"),
        ("DescribeTable", "OTSServerBusy", "creating the status table has not succeeded"),
        ("GetRow", "OTSServerBusy", "waiting for the status table has not succeeded"),
        ("GetRange", "OTSNoPermissionAccess", "no scan of the status table succeeded"),
        ("BatchWriteRow", "OTSServerBusy", "no lease write was answered"),
        ("DescribeStream", "OTSNoPermissionAccess", "no list of the stream's shards was read"),
        ("GetShardIterator", "OTSNoPermissionAccess", "no read of the stream succeeded"),
        ("GetStreamRecord", "OTSNoPermissionAccess", "no read of the stream succeeded"),
    ],
)
def test_call_that_the_service_refuses_for_long_makes_the_worker_unhealthy_until_it_succeeds(
    local: LocalTablestore, operation: str, code: str, what: str
) -> None:
    local.add_fault(FaultRule(operation, Fail(code)))
    with worker_on(local.client()) as worker:
        until(lambda: what in worker.health.reason and code in worker.health.reason)
        local.clear_faults()
        until(lambda: worker.health.is_healthy)


def test_reads_that_fail_are_forgotten_when_the_shard_is_gone() -> None:
    """Nobody waits for a read any more."""
    world = World("a")
    worker = world.worker("w1")
    world.simulation.until(lambda: worker.reads == {"a"}, 60)
    world.stream.append("a", make_record("k0", 0))
    world.stream.get_stream_record = lambda *_: (_ for _ in ()).throw(OUTAGE)  # type: ignore[method-assign]
    world.simulation.until(lambda: not worker.worker.health.is_healthy, 200)
    assert "no read of the stream succeeded" in worker.worker.health.reason
    world.simulation.until(lambda: worker.coordinator.health.reason != "", 10)
    worker.worker.pause("a")
    world.simulation.until(lambda: worker.coordinator.health.is_healthy, 60)


# --- an internal fault ------------------------------------------------------------------------------------------------


def test_fault_of_the_package_is_told_at_once_although_user_code_holds_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The processor hangs, so the end takes the whole time-out; nothing moves meanwhile."""
    stream, journal, go, began = FakeStream("orders", ("a",)), Journal(), threading.Event(), threading.Event()
    stream.append("a", make_record("k0", 0))

    def hang(processor: Any, given: Any) -> None:
        began.set()
        go.wait(PATIENCE_SECONDS)

    journal.on_process = hang
    settings = evolve(ClientConfig(**QUICK), shutdown_timeout_millis=60_000)
    config = StreamConfig(client=None, data_table_name="orders", status_table_name="status")
    worker = Worker("w1", settings, config, journal.make, None, MemoryLeaseManager(stream.stream_id), stream_api=stream)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except WorkerFailedError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert began.wait(PATIENCE_SECONDS)
        monkeypatch.setattr(Holdings, "handle", lambda *_: 1 // 0)
        until(lambda: worker.exception is not None)

        assert worker.worker_status is WorkerStatus.ERROR
        assert worker.health.reason.startswith("ended: ZeroDivisionError")
        status = worker.shard_statuses()["a"]
        assert status.state is ShardState.SHUTTING_DOWN
        assert status.reason.startswith("its worker failed: ZeroDivisionError: ")
        assert thread.is_alive(), "the processor still holds it up"
    finally:
        go.set()
        thread.join(PATIENCE_SECONDS)

    assert worker.worker_status is WorkerStatus.ERROR
    (failure,) = raised
    assert str(failure).startswith("worker w1 ends reading orders: ZeroDivisionError: ")
    assert failure.__cause__ is worker.exception, "a fault keeps its traceback"
    assert {status.state for status in worker.shard_statuses().values()} <= {ShardState.SHUTTING_DOWN}
