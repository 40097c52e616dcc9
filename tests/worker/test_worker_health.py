"""A worker that cannot work says so: whatever the service answers or does not answer, from the first call on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tablestore import OTSClient

from streamclient import (
    ClientConfig,
    MemoryLeaseManager,
    ShardState,
    StreamConfig,
    Worker,
    WorkerFailedError,
    WorkerStatus,
)
from streamclient.base.reasons import Cause, Reason
from streamclient.core.events import (
    Answered,
    Command,
    DrawEpoch,
    ListShards,
    ReadRows,
    ReadSignals,
    ResolveAndCreate,
    Scan,
    ShardList,
    WriteLease,
    WriteWorker,
)
from streamclient.core.held import Acquisition, HeldLease
from streamclient.core.holdings import Holdings
from streamclient.core.leases import LeaseWrite, create, renew
from streamclient.core.membership import WorkerRow, beat
from streamclient.core.write_rules import WriteOutcome
from streamclient.errors import DependencyException, ErrorKind
from streamclient.interfaces import IRetryStrategy
from streamclient.metrics import MemoryMetrics
from streamclient.metrics.metric_table import UNHEALTHY
from streamclient.model import InitialPosition, Lease, Shard
from streamclient.server import Fail, FaultRule, LocalTablestore
from streamclient.tablestore import ReadRetry, TablestoreStreamApi
from streamclient.testing.fakes import FakeStream
from streamclient.worker.health import CallWatchdog, HealthWatch
from tests.patience import FOREVER_MILLIS, PATIENCE_SECONDS, until
from tests.placed_records import make_record
from tests.simulation.scene import Journal
from tests.worker.stage import Stage, make_table, worker_on

LIMIT_MILLIS = 300
QUICK: dict[str, Any] = {
    "taker_interval_millis": 100,
    "renewer_interval_millis": 300,
    "sync_shard_interval_millis": 100,
    "shutdown_timeout_millis": 2_000,
    "max_duration_before_last_successful_renew_or_take_lease": LIMIT_MILLIS,
}
RENEWAL = WriteLease(renew(Lease("s1", "stream", owner="w1")))
CREATION = WriteLease(create(Lease("s1", "stream")))
BEAT = WriteWorker(beat(WorkerRow("w1", "stream", "nonce", 1)))
OUTAGE = DependencyException("no connection: refused", kind=ErrorKind.TRANSIENT)


@pytest.fixture
def local() -> Iterator[LocalTablestore]:
    with LocalTablestore() as local:
        make_table(local.client())
        yield local


def worker_over(client: OTSClient, position: InitialPosition | None = None, **changes: Any) -> Worker:
    config = StreamConfig(
        client=client,
        data_table_name="orders",
        status_table_name="status",
        initial_position=position or InitialPosition.oldest(),
    )
    api = TablestoreStreamApi(client, retry=ReadRetry(retries=0))
    return Worker("w1", ClientConfig(**{**QUICK, **changes}), config, Journal().make, stream_api=api)


class Patient(IRetryStrategy):
    """Tries again, after an hour."""

    def should_retry(self, action: Any, error: Exception, retries: int) -> bool:
        return True

    def backoff_millis(self, action: Any, error: Exception, retries: int) -> int:
        return FOREVER_MILLIS


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
    watch.answered(Answered(ReadSignals(("w1",)), error=OUTAGE), 1.0)
    watch.answered(Answered(BEAT, WriteOutcome.UNCERTAIN, error=OUTAGE), 1.0)
    watch.asked(CREATION, 1.0)
    watch.answered(Answered(CREATION, WriteOutcome.UNCERTAIN, error=OUTAGE), 1.0)
    watch.answered(Answered(DrawEpoch("s1"), error=OUTAGE), 1.0)
    reads.failed(OUTAGE, 1.0)

    assert watch.judge(60.0).is_healthy
    judged = watch.judge(62.0, "another process has its name")
    assert not judged.is_healthy
    assert [reason.split(" (")[0] for reason in judged.reason.split("; ")] == [
        "another process has its name",
        "no scan of the status table succeeded for 62 s",
        "no read of the rows of workers succeeded for 61 s",
        "no write of a worker's row was answered for 61 s",
        "no lease write was answered for 61 s",
        "no lease of a new shard was created for 61 s",
        "no epoch was drawn for 61 s",
        "no list of the stream's shards was read for 61 s",
        "no read of the stream succeeded for 61 s",
    ]
    watch.answered(Answered(ListShards(), ShardList(())), 63.0)
    reads.succeeded(63.0)
    watch.answered(Answered(ReadRows(), Scan(())), 63.0)
    watch.answered(Answered(RENEWAL, WriteOutcome.REFUSED), 63.0)
    watch.answered(Answered(ReadSignals(("w1",)), ()), 63.0)
    watch.answered(Answered(BEAT, WriteOutcome.ACCEPTED), 63.0)
    watch.answered(Answered(CREATION, WriteOutcome.REFUSED), 63.0)
    watch.answered(Answered(DrawEpoch("s1"), 1), 63.0)
    assert watch.judge(100.0).is_healthy


@pytest.fixture
def watch() -> HealthWatch:
    """Its scans succeed."""
    watch = HealthWatch(60_000, 0.0, CallWatchdog("no read of the stream succeeded"))
    watch.answered(Answered(ReadRows(), Scan(())), 99.0)
    return watch


def waiting(cause: Cause) -> HeldLease:
    return HeldLease(Lease("s1", "stream", owner="w1"), "one", 1e9, 1, 0.0, Acquisition(1), reason=Reason(cause))


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (ListShards(), "no list of the stream's shards was read for 70 s"),
        (ReadSignals(("w1",)), "no read of the rows of workers succeeded for 70 s"),
        (RENEWAL, "no lease write was answered for 70 s"),
        (BEAT, "no write of a worker's row was answered for 70 s"),
        (CREATION, "no lease of a new shard was created for 70 s"),
        (ResolveAndCreate(Lease("s1", "stream"), 1), "no lease of a new shard was created for 70 s"),
    ],
)
def test_call_that_never_comes_back_is_missed_from_when_it_was_sent(
    watch: HealthWatch, command: Command, reason: str
) -> None:
    watch.asked(command, 30.0)
    watch.watch([], 100.0)

    assert watch.judge(90.0).is_healthy
    assert watch.judge(100.0).reason == reason


def test_beats_that_are_answered_hide_nothing_of_other_writes(watch: HealthWatch) -> None:
    for write in (RENEWAL, CREATION):
        watch.asked(write, 30.0)
        watch.answered(Answered(write, WriteOutcome.UNCERTAIN, error=OUTAGE), 30.0)
    watch.answered(Answered(BEAT, WriteOutcome.ACCEPTED), 90.0)

    assert "no lease write was answered" in watch.judge(100.0).reason
    assert "no lease of a new shard was created" in watch.judge(100.0).reason


@pytest.mark.parametrize(
    "seen",
    [
        Answered(ReadRows(), Scan((Lease("s1", "stream"),))),
        Answered(ListShards(), ShardList((Shard("s2"),))),
        Answered(CREATION, WriteOutcome.ACCEPTED),
    ],
    ids=["another worker created it", "the shard is gone", "created"],
)
def test_lease_that_nobody_has_to_create_any_more_is_not_missed(watch: HealthWatch, seen: Answered[Any]) -> None:
    watch.asked(CREATION, 10.0)
    watch.answered(Answered(CREATION, WriteOutcome.UNCERTAIN, error=OUTAGE), 10.0)
    watch.answered(Answered(ReadRows(), Scan((Lease("s2", "stream"),))), 90.0)
    assert not watch.judge(91.0).is_healthy
    watch.answered(seen, 95.0)
    assert watch.judge(100.0).is_healthy


@pytest.mark.parametrize(
    "seen",
    [Answered(ReadRows(), Scan((Lease("s1", "stream"),))), Answered(ListShards(), ShardList((Shard("s2"),)))],
    ids=["it is there", "the shard is gone"],
)
@pytest.mark.parametrize("outcome", [WriteOutcome.UNCERTAIN, WriteOutcome.REFUSED])
def test_the_late_answer_to_a_creation_that_a_scan_has_shown_means_nothing(
    watch: HealthWatch, seen: Answered[Any], outcome: WriteOutcome
) -> None:
    watch.asked(CREATION, 10.0)
    watch.answered(seen, 12.0)
    watch.answered(Answered(CREATION, outcome, error=OUTAGE), 15.0)
    watch.answered(Answered(ReadRows(), Scan((Lease("s1", "stream"),))), 99.0)

    assert watch.judge(100.0).is_healthy


def test_one_lease_that_was_created_does_not_hide_for_ever_that_others_cannot_be(watch: HealthWatch) -> None:
    for key in ("s1", "s2"):
        watch.asked(ResolveAndCreate(Lease(key, "stream"), 1), 10.0)
    watch.answered(Answered(CREATION, WriteOutcome.ACCEPTED), 30.0)

    assert watch.judge(90.0).is_healthy
    assert not watch.judge(91.0).is_healthy


def test_epoch_is_missed_as_long_as_a_shard_waits_for_it(watch: HealthWatch) -> None:
    watch.watch([waiting(Cause.EPOCH)], 30.0)
    watch.watch([waiting(Cause.EPOCH)], 100.0)
    assert watch.judge(100.0).reason == "no epoch was drawn for 70 s"
    watch.answered(Answered(DrawEpoch("s1"), error=OUTAGE), 101.0)
    watch.watch([waiting(Cause.PARENT)], 102.0)
    assert watch.judge(102.0).is_healthy


def test_worker_without_leases_that_writes_none_any_more_is_not_judged_by_the_last_failure(watch: HealthWatch) -> None:
    watch.asked(RENEWAL, 10.0)
    watch.answered(Answered(RENEWAL, WriteOutcome.UNCERTAIN, error=OUTAGE), 11.0)
    watch.watch([waiting(Cause.FINISHED)], 80.0)
    assert not watch.judge(80.0).is_healthy, "it holds a lease, and renews it"
    watch.watch([], 80.0)
    assert watch.judge(80.0).is_healthy


# --- before the service was ever reached ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("endpoint", "error"),
    [("", "Connection refused"), ("http://no-such-host.invalid", "resolve")],
    ids=["refused connection", "unknown host"],
)
def test_worker_that_never_reached_the_service_is_unhealthy_with_the_call_and_its_error(
    endpoint: str, error: str, deaf: str
) -> None:
    with worker_over(silent(endpoint or deaf)) as worker:
        until(lambda: not worker.health.is_healthy and error in worker.health.reason)
        assert worker.health.reason.startswith("looking up the stream has not succeeded for ")
        assert worker.worker_status is WorkerStatus.RUNNING, "it goes on trying"


@pytest.mark.parametrize(
    ("operation", "code", "what"),
    [
        ("ListStream", "OTSServerBusy", "looking up the stream has not succeeded"),
        ("DescribeTable", "OTSServerBusy", "creating the status table has not succeeded"),
        ("GetRow", "OTSServerBusy", "waiting for the status table has not succeeded"),
        ("GetRange", "OTSNoPermissionAccess", "no scan of the status table succeeded"),
        ("BatchWriteRow", "OTSServerBusy", "no write of a worker's row was answered"),
        ("BatchGetRow", "OTSNoPermissionAccess", "no read of the rows of workers succeeded"),
        ("DescribeStream", "OTSNoPermissionAccess", "no list of the stream's shards was read"),
        ("GetShardIterator", "OTSNoPermissionAccess", "no read of the stream succeeded"),
        ("GetStreamRecord", "OTSNoPermissionAccess", "no read of the stream succeeded"),
    ],
)
def test_call_that_the_service_refuses_for_long_makes_the_worker_unhealthy_until_it_succeeds(
    local: LocalTablestore, operation: str, code: str, what: str
) -> None:
    local.add_fault(FaultRule(operation, Fail(code)))
    with worker_over(local.client()) as worker:
        until(lambda: what in worker.health.reason and code in worker.health.reason)
        local.clear_faults()
        until(lambda: worker.health.is_healthy)


@pytest.mark.parametrize("position", [InitialPosition.latest(), InitialPosition.at(1)], ids=["latest", "a time"])
def test_worker_that_may_not_look_up_where_to_begin_is_unhealthy_although_it_beats(
    local: LocalTablestore, position: InitialPosition
) -> None:
    """No lease is ever created, so nothing is read; all else succeeds."""
    local.add_fault(FaultRule("GetShardIterator", Fail("OTSNoPermissionAccess")))
    with worker_over(local.client(), position) as worker:
        until(lambda: "no lease of a new shard was created" in worker.health.reason)
        assert (
            "looking up the first position failed: DependencyException: OTSNoPermissionAccess" in worker.health.reason
        )
        local.clear_faults()
        until(lambda: worker.health.is_healthy and bool(worker.shard_statuses()))


def test_worker_whose_epochs_cannot_be_drawn_is_unhealthy_although_all_else_succeeds() -> None:
    class Undrawn(MemoryLeaseManager):
        def draw_epochs(self, lease_keys: Sequence[str]) -> Sequence[int | Exception]:
            return super().draw_epochs(lease_keys) if may_draw.is_set() else [OUTAGE] * len(lease_keys)

    may_draw = threading.Event()
    stream = FakeStream("orders", ("a",))
    with worker_on(stream, leases=Undrawn(stream.stream_id), **QUICK) as worker:
        until(lambda: "no epoch was drawn" in worker.health.reason, lambda: worker.health)
        assert "connection: refused" in worker.health.reason
        may_draw.set()
        until(lambda: worker.health.is_healthy)


@pytest.mark.parametrize(
    ("method", "says"),
    [
        ("list_stream", "looking up the stream has not succeeded for "),
        ("describe_stream", "no list of the stream's shards was read"),
        ("write_many", "no lease of a new shard was created"),
    ],
)
def test_call_that_hangs_makes_the_worker_unhealthy_without_any_error(
    method: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, go = FakeStream("orders", ("a",)), threading.Event()
    leases = MemoryLeaseManager(stream.stream_id)
    of = leases if method == "write_many" else stream
    call = getattr(of, method)

    def hang(*given: Any) -> Any:
        if of is stream or any(isinstance(write, LeaseWrite) for write in given[0]):
            go.wait(PATIENCE_SECONDS)
        return call(*given)

    monkeypatch.setattr(of, method, hang)
    with worker_on(stream, leases=leases, **QUICK) as worker:
        assert worker.health.is_healthy
        until(lambda: says in worker.health.reason, lambda: worker.health)
        go.set()
        until(lambda: worker.health.is_healthy)


def test_status_table_that_cannot_be_created_is_told_with_its_error_while_the_call_repeats_itself(
    local: LocalTablestore,
) -> None:
    """The retry strategy lets an hour pass between two tries."""
    local.add_fault(FaultRule("DescribeTable", Fail("OTSServerBusy")))
    with worker_over(local.client(), lease_manager_retry_strategy=Patient()) as worker:
        until(lambda: "OTSServerBusy" in worker.health.reason, lambda: worker.health)
        assert worker.health.reason.startswith("creating the status table has not succeeded for ")


def test_lease_manager_that_cannot_tell_what_holds_it_up_disturbs_nobody_who_asks() -> None:
    class Rude(MemoryLeaseManager):
        @property
        def table_problem(self) -> Exception:
            raise KeyError("not yet")

        def wait_until_lease_table_ready(self) -> bool:
            return may_be_ready.is_set()

    may_be_ready = threading.Event()
    stream = FakeStream("orders", ("a",))
    with worker_on(stream, leases=Rude(stream.stream_id), **QUICK) as worker:
        until(lambda: "does not answer reads yet" in worker.health.reason, lambda: worker.health)
        may_be_ready.set()
        until(lambda: worker.has_begun)


class Page(BaseHTTPRequestHandler):
    """Somebody else's web server."""

    def do_POST(self) -> None:
        text = b"<html><body>Not Found</body></html>"
        self.send_response(HTTPStatus.NOT_FOUND)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # as it is called there
        """Quiet."""


def test_endpoint_where_something_else_answers_is_told_with_the_call_and_its_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whether it ends at once or tries again, its health says why nothing is read, without a traceback."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        worker = worker_over(silent(f"http://127.0.0.1:{server.server_port}"))
        try:
            with suppress(WorkerFailedError), worker:
                until(lambda: not worker.health.is_healthy, lambda: worker.health)
                assert "looking up the stream" in worker.health.reason
                assert "404" in worker.health.reason
        finally:
            server.shutdown()
            serving.join(PATIENCE_SECONDS)

    assert "Traceback" not in caplog.text


def test_default_retries_wait_out_throttling_at_every_step(local: LocalTablestore) -> None:
    """Each call is refused three times before it succeeds, and nobody hears of it."""
    for operation in ("ListStream", "DescribeTable", "GetRange", "DescribeStream", "GetShardIterator"):
        local.add_fault(FaultRule(operation, Fail("OTSServerBusy"), times=3))
    config = StreamConfig(client=local.client(), data_table_name="orders", status_table_name="status")
    settings = ClientConfig(taker_interval_millis=100, sync_shard_interval_millis=100)
    with Worker("w1", settings, config, Journal().make) as worker:
        until(lambda: any(status.has_consumer for status in worker.shard_statuses().values()), lambda: worker.health)
        assert worker.health.is_healthy


# --- as it is measured ------------------------------------------------------------------------------------------------


def test_worker_that_never_reached_the_service_is_measured_as_unhealthy(deaf: str) -> None:
    metrics = MemoryMetrics()
    with worker_over(silent(deaf), metrics=metrics):
        until(lambda: metrics.value(UNHEALTHY, stream="orders", worker="w1") == 1, metrics.snapshot)


def test_stream_that_fails_is_measured_as_unhealthy_beside_one_that_is_read() -> None:
    metrics, stream = MemoryMetrics(), FakeStream("orders", ("a",))
    configs = [
        StreamConfig(
            client=None,
            data_table_name=name,
            status_table_name="status",
            lease_manager=MemoryLeaseManager(stream.stream_id),
        )
        for name in ("orders", "returns")
    ]
    worker = Worker("w1", ClientConfig(**QUICK, metrics=metrics), configs, Journal().make, stream_api=stream)

    def work() -> None:
        with worker:
            until(lambda: metrics.value(UNHEALTHY, stream="returns") == 1, metrics.snapshot)
            until(lambda: bool(worker.shard_statuses()))

    with pytest.raises(WorkerFailedError, match="has no stream"):
        work()
    assert metrics.value(UNHEALTHY, stream="returns") == 1, "also after the end"
    assert metrics.value(UNHEALTHY, stream="orders") == 0


def test_reads_that_fail_are_forgotten_when_the_shard_is_gone(world: Stage) -> None:
    """Nobody waits for a read any more."""
    worker = world.reader("w1")
    world.stream.append("a", make_record("k0", 0))
    world.stream.get_stream_record = lambda *_: (_ for _ in ()).throw(OUTAGE)  # type: ignore[method-assign]
    world.until(lambda: not worker.worker.health.is_healthy, 200)
    assert "no read of the stream succeeded" in worker.worker.health.reason
    world.until(lambda: worker.coordinator.health.reason != "", 10)
    worker.worker.pause("a")
    world.until(lambda: worker.coordinator.health.is_healthy, 60)


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
    metrics = MemoryMetrics()
    patient = {"shutdown_timeout_millis": 60_000, "max_duration_before_last_successful_renew_or_take_lease": 60_000}
    worker = worker_on(stream, journal, metrics=metrics, **{**QUICK, **patient})
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
        until(lambda: metrics.value(UNHEALTHY) == 1)
        status = worker.shard_statuses()["a"]
        assert status.state is ShardState.SHUTTING_DOWN
        assert status.reason.startswith("its worker failed: ZeroDivisionError: ")
        assert thread.is_alive(), "the processor still holds it up"
    finally:
        go.set()
        thread.join(PATIENCE_SECONDS)

    assert worker.worker_status is WorkerStatus.ERROR
    assert metrics.value(UNHEALTHY) == 1
    (failure,) = raised
    assert str(failure).startswith("worker w1 ends reading orders: ZeroDivisionError: ")
    assert failure.__cause__ is worker.exception, "a fault keeps its traceback"
    assert {status.state for status in worker.shard_statuses().values()} <= {ShardState.SHUTTING_DOWN}
