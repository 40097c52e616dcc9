"""How a worker ends by itself and by SIGTERM: whoever waits is woken, programs fail aloud, nothing is left held."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
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
from streamclient.server import LocalTablestore
from streamclient.stream import StreamSpecification, TablestoreStreamApi
from streamclient.testing.fakes import FakeStream, make_record
from streamclient.testing.simulation.scene import Journal
from streamclient.worker.running import EXIT_CODE_OF_SIGTERM, EndedBySigterm
from tests.interrupts import interrupted_after
from tests.patience import PATIENCE_SECONDS

QUICK = {"taker_interval_millis": 100, "renewer_interval_millis": 300, "sync_shard_interval_millis": 100}
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


def worker_on(stream: FakeStream, journal: Journal | None = None, **config: Any) -> Worker:
    stream_config = StreamConfig(client=None, data_table_name="orders", status_table_name="s")
    leases = MemoryLeaseManager(stream.stream_id)
    make = (journal or Journal()).make
    return Worker("w1", ClientConfig(**{**QUICK, **config}), stream_config, make, None, leases, stream_api=stream)


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

    with pytest.raises(WorkerFailedError, match=r"^worker w1 ends reading orders: no permission$"):
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


# --- programs ---------------------------------------------------------------------------------------------------------

HEAD = """
import signal, sys, threading, time
from tablestore import OTSClient
from streamclient import ClientConfig, IRecordProcessor, StreamConfig, Worker

class Processor(IRecordProcessor):
    def initialize(self, given):
        print("reading", flush=True)

    def process_records(self, given):
        pass

    def shutdown(self, given):
        {ending}
        print("shutdown", given.shutdown_reason.value, flush=True)
        given.checkpointer.checkpoint()

def worker(table="orders", **settings):
    client = OTSClient(*sys.argv[1:], logger_name="tests.silent")
    config = ClientConfig(lease_duration_millis=60_000, taker_interval_millis=200, **settings)
    streams = StreamConfig(client=client, data_table_name=table, status_table_name="status")
    return Worker("w1", config, streams, Processor)

"""


@contextmanager
def served() -> Iterator[LocalTablestore]:
    with LocalTablestore() as local:
        TablestoreStreamApi(local.client()).create_table(
            TableMeta("orders", [("id", "STRING")]),
            TableOptions(),
            ReservedThroughput(CapacityUnit(0, 0)),
            stream=StreamSpecification(enable_stream=True, expiration_time_hours=24),
        )
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


@pytest.mark.slow
def test_further_sigterms_do_not_cut_the_end_short(local: LocalTablestore) -> None:
    more = "import os; [os.kill(os.getpid(), signal.SIGTERM) for _ in range(3)]; time.sleep(0.2)"
    code, output, errors = terminated(local, "worker().run()", ending=more)

    assert (code, output) == (143, "shutdown STOLEN\n"), errors
    assert leases(local).list_workers() == []


@pytest.mark.slow
def test_sigterm_kills_at_once_where_the_setting_is_off(local: LocalTablestore) -> None:
    code, output, _ = terminated(local, "worker(end_on_sigterm=False).run()")

    assert (code, output) == (-signal.SIGTERM, "")


OWN_HANDLER = """
one = worker()
signal.signal(signal.SIGTERM, lambda *_: (print("mine", flush=True), one.shutdown(wait=False)))
one.run()
print("returned", flush=True)
"""


@pytest.mark.slow
def test_handler_of_the_programs_own_stays_in_place(local: LocalTablestore) -> None:
    code, output, errors = terminated(local, OWN_HANDLER)

    assert (code, output) == (0, "mine\nshutdown STOLEN\nreturned\n"), errors


IN_A_THREAD = """
thread = threading.Thread(target=worker().run, daemon=True)
thread.start()
thread.join()
"""


@pytest.mark.slow
def test_worker_that_runs_in_another_thread_changes_nothing_about_sigterm(local: LocalTablestore) -> None:
    code, output, _ = terminated(local, IN_A_THREAD)

    assert (code, output) == (-signal.SIGTERM, "")


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
        ("worker().run()", "wrong", "OTSAuthFailed: Signature mismatch. Signed with access key id "),
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


def test_status_table_of_another_shape_is_named(local: LocalTablestore) -> None:
    local.client().create_table(
        TableMeta("odd", [("id", "STRING")]), TableOptions(), ReservedThroughput(CapacityUnit(0, 0))
    )
    config = StreamConfig(client=local.client(), data_table_name="orders", status_table_name="odd")
    worker = Worker("w1", ClientConfig(), config, Journal().make)
    with pytest.raises(WorkerFailedError, match=r"^worker w1 ends reading orders: .*odd"):
        worker.run()
    assert isinstance(worker.exception, ConfigurationError)


def test_refused_signature_says_whose_it_was_and_by_which_clock(local: LocalTablestore) -> None:
    wrong = OTSClient(local.endpoint, local.access_key_id, "wrong", local.instance, logger_name="tests.silent")
    with pytest.raises(DependencyException) as refusal:
        TablestoreStreamApi(wrong).list_stream("orders")

    text = str(refusal.value)
    assert f"access key id {local.access_key_id!r} for instance {local.instance!r}" in text
    assert "this machine's clock showed 20" in text
    assert "wrong" not in text
