"""How a worker ends by itself and by SIGTERM: whoever waits is woken, programs fail aloud, nothing is left held."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tablestore import CapacityUnit, OTSClient, ReservedThroughput, TableMeta, TableOptions

from streamclient import (
    ClientConfig,
    ConfigurationError,
    DependencyException,
    ErrorKind,
    LeaseManager,
    MemoryLeaseManager,
    StreamConfig,
    Worker,
    WorkerFailedError,
    WorkerStatus,
)
from streamclient.base.reasons import WorkerHealth
from streamclient.interfaces import IMetrics
from streamclient.metrics import MemoryMetrics
from streamclient.metrics.metric_table import UNHEALTHY
from streamclient.model import Metric
from streamclient.server import Fail, FaultRule, LocalTablestore
from streamclient.tablestore import TablestoreStreamApi
from streamclient.testing.fakes import FakeStream
from streamclient.worker.owner_loop import OwnerLoop
from streamclient.worker.running import EXIT_CODE_OF_SIGTERM, EndedBySigterm, Running
from streamclient.worker.runtime import Runtime
from tests.interrupts import interrupted_after
from tests.patience import PATIENCE_SECONDS
from tests.placed_records import make_record
from tests.simulation.scene import Journal
from tests.worker.stage import make_table, worker_on

DENIED = DependencyException("no permission", kind=ErrorKind.PERMANENT)


class Denied(FakeStream):
    """May not be looked up, from a moment on that the test decides."""

    def __init__(self) -> None:
        super().__init__("orders", ("a",))
        self.may_answer = threading.Event()
        self.may_answer.set()

    def list_stream(self, table_name: str | None = None) -> Any:
        self.may_answer.wait(PATIENCE_SECONDS)
        raise DENIED


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_waiting_for_something_ends_when_it_comes() -> None:
    stream, journal, seen = FakeStream("orders", ("a",)), Journal(), threading.Event()
    stream.append("a", make_record("k0", 0))
    journal.on_process = lambda processor, given: seen.set()
    with worker_on(stream, journal) as worker:
        assert worker.wait(PATIENCE_SECONDS, until=seen.is_set)
        assert worker.worker_status is WorkerStatus.RUNNING


def test_waiting_ends_with_the_time_that_was_given() -> None:
    with worker_on(FakeStream("orders", ("a",))) as worker:
        assert not worker.wait(0.01)
        assert not worker.wait(0.01, until=lambda: False)


def test_waiting_ends_when_the_worker_is_shut_down() -> None:
    worker = worker_on(FakeStream("orders", ("a",)))
    with worker:
        assert worker.shutdown()
        assert worker.wait()
        assert not worker.wait(until=lambda: False), "it did not come"


def test_whoever_waits_for_a_worker_that_fails_is_woken_by_its_error() -> None:
    """The worker fails while the other thread already waits, for something that never comes."""
    stream = Denied()
    stream.may_answer.clear()
    worker, threads = worker_on(stream), threading.Timer(0.0, stream.may_answer.set)

    def work() -> None:
        with worker:
            threads.start()
            worker.wait(until=lambda: False)

    with pytest.raises(
        WorkerFailedError, match=r"^worker w1 ends reading orders: looking up the stream failed: no permission$"
    ):
        work()


# --- leaving the block ------------------------------------------------------------------------------------------------


def test_leaving_the_block_raises_what_the_worker_failed_of() -> None:
    worker = worker_on(Denied())

    def work() -> None:
        with worker:
            worker._ended.wait(PATIENCE_SECONDS)

    with pytest.raises(WorkerFailedError) as failure:
        work()
    assert failure.value.errors == {"orders": DENIED}
    assert failure.value.__cause__ is None, "its text says all"


def test_error_of_the_block_itself_is_not_hidden_by_the_workers() -> None:
    worker = worker_on(Denied())

    def work() -> None:
        with worker:
            worker._ended.wait(PATIENCE_SECONDS)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        work()


def test_worker_cannot_enter_a_second_block() -> None:
    worker = worker_on(FakeStream("orders", ("a",)))
    with worker:
        pass
    with pytest.raises(Exception, match="runs only once"), worker:
        raise AssertionError("unreachable")


class Exiting(FakeStream):
    """Raises what elsewhere ends a program."""

    def list_stream(self, table_name: str | None = None) -> Any:
        raise SystemExit(0)


def test_exit_raised_by_what_the_user_gave_fails_the_worker_as_any_error() -> None:
    worker = worker_on(Exiting("orders", ("a",)))
    with pytest.raises(WorkerFailedError, match="looking up the stream failed: SystemExit: 0"):
        worker.run()
    assert worker.worker_status is WorkerStatus.ERROR


def test_the_thread_of_a_stream_that_has_ended_is_a_thread_of_the_worker_no_more() -> None:
    """The system gives its id to a thread of the program, in which ``shutdown`` has to wait."""
    worker = worker_on(Exiting("orders", ("a",)))
    (stream,) = worker._streams.values()
    shared = worker._make_shared()
    stream.run(shared, threading.Event())
    shared.close()

    assert isinstance(stream.exception, SystemExit)
    assert not stream.is_own_thread()


class ExitingMetrics(IMetrics):
    """Each verb raises what elsewhere ends a program."""

    def increment(self, metric: Metric, amount: float = 1, /, **labels: str) -> None:
        raise SystemExit(0)

    def set(self, metric: Metric, value: float, /, **labels: str) -> None:
        raise SystemExit(0)

    def observe(self, metric: Metric, seconds: float, /, **labels: str) -> None:
        raise SystemExit(0)


def test_exit_raised_by_metrics_disturbs_nothing() -> None:
    stream, journal, seen = FakeStream("orders", ("a",)), Journal(), threading.Event()
    stream.append("a", make_record("k0", 0))
    journal.on_process = lambda processor, given: seen.set()
    with worker_on(stream, journal, metrics=ExitingMetrics()) as worker:
        assert worker.wait(PATIENCE_SECONDS, until=seen.is_set)


def full(name: str, most_threads: int) -> Executor:
    raise RuntimeError("can't start new thread")


def without_threads() -> Worker:
    return worker_on(FakeStream("orders", ("a",)), runtime=Runtime(make_pool=full))


def test_fault_outside_the_streams_is_raised_to_whoever_waits_and_by_the_end_of_the_block() -> None:
    worker = without_threads()

    def wait() -> None:
        with worker:
            worker.wait(until=lambda: False)

    def leave() -> None:
        with without_threads():
            pass

    for work in (wait, leave):
        with pytest.raises(RuntimeError, match="can't start new thread"):
            work()
    assert worker.worker_status is WorkerStatus.ERROR
    assert worker.health.reason == "ended: RuntimeError: can't start new thread"


def test_worker_whose_run_raises_has_ended_for_others_too() -> None:
    worker = without_threads()
    with pytest.raises(RuntimeError):
        worker.run()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        worker.wait(PATIENCE_SECONDS)


class Waiting(MemoryLeaseManager):
    """Does not come back from creating the table, whatever else happens, until the test lets it."""

    def __init__(self, stream_id: str) -> None:
        super().__init__(stream_id)
        self.asked, self.go = threading.Event(), threading.Event()

    def create_lease_table_if_not_exists(self) -> bool:
        self.asked.set()
        self.go.wait(PATIENCE_SECONDS)
        return super().create_lease_table_if_not_exists()


def test_lease_manager_that_hangs_while_it_begins_does_not_hold_up_the_end() -> None:
    stream = FakeStream("orders", ("a",))
    leases = Waiting(stream.stream_id)
    worker = worker_on(stream, leases=leases, shutdown_timeout_millis=100)
    runner = threading.Thread(target=worker.run)
    runner.start()
    assert leases.asked.wait(PATIENCE_SECONDS)
    worker.shutdown(wait=False)
    runner.join(PATIENCE_SECONDS)

    assert not runner.is_alive()
    assert worker.worker_status is WorkerStatus.SHUTDOWN
    leases.go.set()
    (stream_run,) = worker._streams.values()
    assert stream_run.wait(PATIENCE_SECONDS)
    assert (stream_run.coordinator, stream_run.exception) == (None, None), "what comes after the end begins nothing"


# --- programs ---------------------------------------------------------------------------------------------------------

HEAD = """
import signal, sys, threading, time
from tablestore import OTSClient
from streamclient import ClientConfig, IRecordProcessor, IRetryStrategy, StreamConfig, Worker

class Processor(IRecordProcessor):
    def initialize(self, given):
        print("reading", flush=True)

    def process_records(self, given):
        pass

    def shutdown(self, given):
        {ending}
        print("shutdown", given.shutdown_reason.value, flush=True)
        given.checkpointer.checkpoint()

class Patient(IRetryStrategy):
    def should_retry(self, action, error, retries):
        return True

    def backoff_millis(self, action, error, retries):
        return 3_600_000

def worker(table="orders", status="status", **settings):
    client = OTSClient(*sys.argv[1:], logger_name="tests.silent")
    config = ClientConfig(lease_duration_millis=60_000, taker_interval_millis=200, **settings)
    streams = StreamConfig(client=client, data_table_name=table, status_table_name=status)
    return Worker("w1", config, streams, Processor)

"""


@contextmanager
def served() -> Iterator[LocalTablestore]:
    with LocalTablestore() as local:
        make_table(local.client())
        yield local


@pytest.fixture(scope="module")
def local() -> Iterator[LocalTablestore]:
    with served() as local:
        yield local


@pytest.fixture
def own() -> Iterator[LocalTablestore]:
    """For a test after which another worker would wait for a lease to expire."""
    with served() as local:
        yield local


def start(local: LocalTablestore, program: str, *, secret: str = "", ending: str = "pass") -> subprocess.Popen[str]:
    arguments = [local.endpoint, local.access_key_id, secret or local.access_key_secret, local.instance]
    return subprocess.Popen(
        [sys.executable, "-c", HEAD.replace("{ending}", ending) + program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )


def leases(local: LocalTablestore) -> LeaseManager:
    client = local.client()
    (stream,) = TablestoreStreamApi(client).list_stream("orders")
    return LeaseManager(client, "status", stream.stream_id)


def terminated(local: LocalTablestore, program: str, *, ending: str = "pass") -> tuple[int, str, str]:
    """Send SIGTERM once a shard is read; how the program ends."""
    with start(local, program, ending=ending) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "reading\n"
            process.send_signal(signal.SIGTERM)
            output, errors = process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            process.kill()
    return process.returncode, output, errors


IN_THE_BLOCK = """
with worker() as one:
    one.wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    ["worker().run()", IN_THE_BLOCK, "with worker():\n    while True:\n        time.sleep(0.1)"],
    ids=["run", "block with wait", "block with something else"],
)
def test_sigterm_ends_a_program_in_order_with_143(local: LocalTablestore, program: str) -> None:
    code, output, errors = terminated(local, program)

    assert (code, output) == (143, "shutdown STOLEN\n"), errors
    assert "Traceback" not in errors
    assert leases(local).list_workers() == [], "its session is over: the next worker need not wait for that"


@pytest.mark.slow
def test_sigterm_hands_the_leases_over_to_a_worker_that_stays(own: LocalTablestore) -> None:
    """They would expire after a minute."""
    config = StreamConfig(client=own.client(), data_table_name="orders", status_table_name="status")
    with start(own, "worker().run()") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        with Worker("w2", ClientConfig(lease_duration_millis=60_000), config, Journal().make) as other:
            assert other.wait(PATIENCE_SECONDS, until=lambda: len(leases(own).list_workers()) == 2)
            process.send_signal(signal.SIGTERM)
            assert other.wait(PATIENCE_SECONDS, until=lambda: bool(other.shard_statuses()))
        process.communicate(timeout=PATIENCE_SECONDS)

    assert process.returncode == 143


COUNTING = """
import os
from streamclient.base.interrupts import RaisedBySignal
from tests.patience import until

came, handled = RaisedBySignal.came, []

def counted(self, number, frame):
    try:
        came(self, number, frame)
    finally:
        handled.append(number)

def terminate_again():
    for before in (1, 2, 3):
        until(lambda: len(handled) == before)
        os.kill(os.getpid(), signal.SIGTERM)
    until(lambda: len(handled) == 4)

RaisedBySignal.came = counted
"""


@pytest.mark.slow
def test_further_sigterms_do_not_cut_the_end_short(local: LocalTablestore) -> None:
    code, output, errors = terminated(local, f"{COUNTING}worker().run()", ending="terminate_again()")
    assert (code, output) == (143, "shutdown STOLEN\n"), errors
    assert leases(local).list_workers() == []


OWN_HANDLER = """
one = worker()
signal.signal(signal.SIGTERM, lambda *_: (print("mine", flush=True), one.shutdown(wait=False)))
one.run()
print("returned", flush=True)
"""


IN_A_THREAD = """
thread = threading.Thread(target=worker().run, daemon=True)
thread.start()
thread.join()
"""


LEFT_ALONE = {
    "the setting is off": ("worker(end_on_sigterm=False).run()", -signal.SIGTERM, ""),
    "the program has a handler of its own": (OWN_HANDLER, 0, "mine\nshutdown STOLEN\nreturned\n"),
    "the worker runs in another thread": (IN_A_THREAD, -signal.SIGTERM, ""),
}


@pytest.mark.slow
@pytest.mark.parametrize(("program", "code", "output"), LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_sigterm_is_left_to_others(local: LocalTablestore, program: str, code: int, output: str) -> None:
    ended, printed, errors = terminated(local, program)
    assert (ended, printed) == (code, output), errors


AT_START = """
with worker(max_duration_before_last_successful_renew_or_take_lease=1, {settings}) as one:
    one.wait(until=lambda: "OTSServerBusy" in one.health.reason)
    print("reading", flush=True)
    one.wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operation", "settings"),
    [
        ("GetRow", "check_table_ready_interval_millis=3_600_000"),
        ("DescribeTable", "lease_manager_retry_strategy=Patient()"),
    ],
    ids=["waiting for the status table", "creating the status table"],
)
def test_sigterm_ends_a_program_whose_worker_has_not_begun(own: LocalTablestore, operation: str, settings: str) -> None:
    """An hour lies between two tries of a throttled call; the signal comes in the first of them."""
    own.add_fault(FaultRule(operation, Fail("OTSServerBusy")))
    code, output, errors = terminated(own, AT_START.replace("{settings}", settings))

    assert (code, output) == (143, ""), errors
    assert "Traceback" not in errors
    assert "gave up waiting" not in errors


def test_handler_is_gone_after_the_block_even_if_the_end_itself_is_interrupted() -> None:
    class Interrupted(Block):
        def _end_thread(self) -> None:
            raise KeyboardInterrupt

    def work() -> None:
        with Interrupted():
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL

    with pytest.raises(KeyboardInterrupt):
        work()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_handler_is_gone_if_the_block_cannot_begin() -> None:
    class Refused(Block):
        def _begin_in_thread(self) -> None:
            raise ConfigurationError("no")

    with pytest.raises(ConfigurationError, match="no"), Refused():
        raise AssertionError("unreachable")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_signal_that_comes_while_it_begins_ends_what_has_begun() -> None:
    class Signalled(Block):
        def _begin_in_thread(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    block = Signalled()
    with pytest.raises(SystemExit, match="143"), block:
        raise AssertionError("unreachable")
    assert block.has_ended
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_signal_that_comes_while_the_end_is_under_way_is_raised_after_it() -> None:
    steps = []

    def end() -> None:
        with EndedBySigterm(is_wanted=True) as sigterm:
            sigterm.defer()
            os.kill(os.getpid(), signal.SIGTERM)
            steps.append("ended in order")

    with pytest.raises(SystemExit) as ended:
        end()
    assert ended.value.code == EXIT_CODE_OF_SIGTERM == 143
    assert steps == ["ended in order"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


class Block(Running):
    """Has no thread to run."""

    def __init__(self) -> None:
        super().__init__(end_on_sigterm=True)
        self.has_ended = False

    def _begin_in_thread(self) -> None:
        """Nothing to do."""

    def _end_thread(self) -> None:
        self.has_ended = True

    def _raise_failure(self) -> None:
        """Nothing fails."""

    @property
    def work_health(self) -> WorkerHealth:
        return WorkerHealth(is_healthy=True)

    def _has_failed(self) -> bool:
        return False

    def _owner_loops(self) -> Mapping[str, OwnerLoop]:
        return {}


def test_ctrl_c_in_the_block_ends_it_as_before() -> None:
    stream, reading = FakeStream("orders", ("a",)), threading.Event()
    stream.append("a", make_record("k0", 0))
    journal = Journal()
    journal.on_process = lambda processor, given: reading.set()
    worker = worker_on(stream, journal)
    with interrupted_after(lambda: reading.wait(PATIENCE_SECONDS)), worker:
        worker.wait()
    assert worker.worker_status is WorkerStatus.SHUTDOWN


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "secret", "text"),
    [
        ("worker(table='missing').run()", "", "data table 'missing' has no stream: check the name"),
        (IN_THE_BLOCK.replace("worker()", "worker(table='missing')"), "", "data table 'missing' has no stream"),
        (
            "worker().run()",
            "wrong",
            "looking up the stream failed: OTSAuthFailed: Signature mismatch. Signed with access key id ",
        ),
    ],
    ids=["no stream", "no stream, in a block", "wrong key"],
)
def test_program_whose_worker_fails_exits_with_1_and_the_sentence_of_the_log(
    local: LocalTablestore, program: str, secret: str, text: str
) -> None:
    with start(local, program, secret=secret) as process:
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)

    assert process.returncode == 1
    assert (
        f"WorkerFailedError: worker w1 ends reading {'missing' if 'missing' in program else 'orders'}: {text}" in errors
    )
    assert "The above exception" not in errors, "no traceback of the cause"
    assert "tablestore.error" not in errors, "nor of the SDK"


@pytest.fixture(scope="module")
def odd(local: LocalTablestore) -> LocalTablestore:
    """With a table that cannot be a status table."""
    local.client().create_table(
        TableMeta("odd", [("id", "STRING")]), TableOptions(), ReservedThroughput(CapacityUnit(0, 0))
    )
    return local


@pytest.mark.slow
def test_program_with_a_status_table_of_another_shape_exits_with_1_and_one_sentence(odd: LocalTablestore) -> None:
    with start(odd, "worker(status='odd').run()") as process:
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)

    assert process.returncode == 1
    last = errors.splitlines()[-1]
    assert "WorkerFailedError: worker w1 ends reading orders: table 'odd' cannot be the status table: " in last
    assert errors.count("Traceback") == 1, "that of WorkerFailedError itself: no cause"


@pytest.mark.parametrize(
    ("operation", "call"),
    [("ListStream", "looking up the stream"), ("GetRow", "waiting for the status table")],
)
def test_worker_without_permission_at_start_names_the_call(own: LocalTablestore, operation: str, call: str) -> None:
    own.add_fault(FaultRule(operation, Fail("OTSNoPermissionAccess")))
    config = StreamConfig(client=own.client(), data_table_name="orders", status_table_name="status")
    metrics = MemoryMetrics()
    worker = Worker("w1", ClientConfig(metrics=metrics), config, Journal().make)
    with pytest.raises(WorkerFailedError) as failure:
        worker.run()

    assert str(failure.value).startswith(f"worker w1 ends reading orders: {call} failed: OTSNoPermissionAccess: ")
    assert worker.health.reason.startswith(f"ended: {call} failed: DependencyException: OTSNoPermissionAccess: ")
    assert metrics.value(UNHEALTHY, stream="orders", worker="w1") == 1


def test_refused_signature_says_whose_it_was_and_by_which_clock(local: LocalTablestore) -> None:
    wrong = OTSClient(local.endpoint, local.access_key_id, "wrong", local.instance, logger_name="tests.silent")
    with pytest.raises(DependencyException) as refusal:
        TablestoreStreamApi(wrong).list_stream("orders")

    text = str(refusal.value)
    assert f"access key id {local.access_key_id!r} for instance {local.instance!r}" in text
    assert "this machine's clock showed 20" in text
    assert "wrong" not in text
