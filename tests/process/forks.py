"""A child of a fork has no thread of its parent: what was started before says so at its first use there."""

from __future__ import annotations

import os
import select
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from streamclient import ClientConfig, KeyedProcessorFactory, MemoryLeaseManager, StreamConfig, Worker
from streamclient.base.pools import DaemonPool
from streamclient.base.processes import OwnName
from streamclient.errors import ForkedError
from streamclient.interfaces import IRecordProcessor, ProcessRecordsInput
from streamclient.metrics.prometheus import PrometheusMetrics
from streamclient.server import LocalTablestore
from streamclient.testing.fakes import FakeStream
from streamclient.tunnel import TunnelClient, TunnelDaemon, TunnelWorker
from tests.patience import PATIENCE_SECONDS, until
from tests.placed_records import make_record
from tests.process.test_refused_threads import Careful, Seen

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")


def in_child(call: Callable[[], object]) -> str:
    """What the call raises in a forked child, as its last line; killed, and an error, if it hangs there."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            said = f"returned {call()!r}"
        except BaseException as error:
            said = traceback.format_exception_only(error)[-1].strip()
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as told:
        has_ended = bool(select.select([told], [], [], PATIENCE_SECONDS)[0])
        if not has_ended:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert has_ended, "the child hangs"
        return told.read().decode()


@contextmanager
def a_worker() -> Iterator[Worker]:
    seen = Seen()
    seen.go_on.set()
    config = StreamConfig(client=None, data_table_name="orders", status_table_name="status")
    stream = FakeStream()
    stream.append("shard-1", make_record("a", 1))
    worker = Worker("w", ClientConfig(), config, lambda: Careful(seen), None, MemoryLeaseManager(), stream_api=stream)
    with worker:
        worker.wait(PATIENCE_SECONDS, until=lambda: bool(seen.keys))
        yield worker


@contextmanager
def a_tunnel_worker() -> Iterator[TunnelWorker]:
    with LocalTablestore() as local:
        worker = TunnelWorker("t", TunnelClient(local.client()), lambda records: None)
        worker.connect_and_working()
        yield worker
        worker.shutdown()


@contextmanager
def a_daemon() -> Iterator[TunnelDaemon]:
    with LocalTablestore() as local:
        daemon = TunnelDaemon("t", TunnelClient(local.client()), lambda records: None)
        daemon._begin_in_thread()
        yield daemon
        daemon._end_thread()


@contextmanager
def a_pool() -> Iterator[DaemonPool]:
    pool = DaemonPool("pool", 2)
    pool.submit(int).result(PATIENCE_SECONDS)
    yield pool
    pool.shutdown()


@contextmanager
def leases() -> Iterator[MemoryLeaseManager]:
    yield MemoryLeaseManager("stream")


@contextmanager
def metrics() -> Iterator[Any]:
    from prometheus_client import CollectorRegistry  # an extra

    with PrometheusMetrics(CollectorRegistry()).serve(0) as server:
        yield server


STARTED: list[tuple[Any, str, Callable[[Any], object]]] = [
    (a_worker, "the Worker", lambda worker: worker.health),
    (a_worker, "the Worker", lambda worker: worker.readiness),
    (a_worker, "the Worker", lambda worker: worker.liveness),
    (a_worker, "the Worker", lambda worker: worker.shutdown()),
    (a_worker, "the Worker", lambda worker: worker.wait(0)),
    (a_worker, "the Worker", lambda worker: worker.shard_statuses()),
    (a_worker, "the Worker", lambda worker: worker.pause()),
    (a_worker, "the Worker", lambda worker: worker.accept_loss("shard-1")),
    (a_worker, "the Worker", lambda worker: worker.run()),
    (a_worker, "the Worker", lambda worker: worker.__exit__(None, None, None)),
    (a_tunnel_worker, "the TunnelWorker", lambda worker: worker.health),
    (a_tunnel_worker, "the TunnelWorker", lambda worker: worker.shutdown()),
    (a_tunnel_worker, "the TunnelWorker", lambda worker: worker.channel_statuses()),
    (a_daemon, "the TunnelDaemon", lambda daemon: daemon.close()),
    (a_daemon, "the TunnelDaemon", lambda daemon: daemon.health),
    (LocalTablestore, "the local Tablestore", lambda local: local.shards("orders")),
    (a_pool, "pool pool", lambda pool: pool.submit(int)),
    (a_pool, "pool pool", lambda pool: pool.shutdown()),
    (leases, "the MemoryLeaseManager", lambda manager: manager.list_leases()),
    (metrics, "the health server", lambda server: server.close()),
]


@pytest.mark.parametrize(("start", "name", "use"), STARTED, ids=lambda value: getattr(value, "__name__", str(value)))
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12 warns of every fork beside threads
def test_what_was_started_before_a_fork_says_so_in_the_child_and_goes_on_in_the_parent(
    start: Any, name: str, use: Callable[[Any], object]
) -> None:
    with start() as started:
        said = in_child(lambda: use(started))

    assert said.startswith(f"streamclient.errors.ForkedError: {name} was started before a fork, by the parent of ")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("held", ["_changed", "_lock"])
def test_a_lock_that_a_thread_of_the_parent_held_hangs_no_child(held: str) -> None:
    with a_pool() as pool, a_worker() as worker, ExitStack() as locks:
        locks.enter_context(pool._changed if held == "_changed" else worker._lock)
        assert "ForkedError" in in_child(lambda: pool.submit(int) if held == "_changed" else worker.shutdown())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_checkpoint_in_a_child_of_user_code_is_refused_and_the_lease_stays_the_parents() -> None:
    """As where a processor forks for each batch, and hands the input to the child."""
    said: list[str] = []

    class Forking(IRecordProcessor):
        def initialize(self, initialization_input: Any) -> None: ...

        def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            said.append(in_child(process_records_input.checkpointer.checkpoint))
            process_records_input.checkpointer.checkpoint()

        def shutdown(self, shutdown_input: Any) -> None: ...

    stream, manager = FakeStream(), MemoryLeaseManager()
    stream.append("shard-1", *(make_record(str(n), n) for n in range(3)))
    config = StreamConfig(client=None, data_table_name="orders", status_table_name="status", max_records=1)
    worker = Worker("w", ClientConfig(), config, Forking, None, manager, stream_api=stream)
    with worker:
        assert worker.wait(PATIENCE_SECONDS, until=lambda: len(said) == 3)

    assert all("ForkedError: a worker was started before a fork" in each for each in said)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_was_only_made_before_a_fork_works_in_the_child() -> None:
    config = StreamConfig(client=None, data_table_name="orders", status_table_name="status")
    seen = Seen()
    seen.go_on.set()

    def run() -> int:
        stream = FakeStream()
        stream.append("shard-1", make_record("a", 1))
        factory = KeyedProcessorFactory(lambda record: seen.keys.update("a"))
        worker = Worker("w", ClientConfig(), config, factory, None, MemoryLeaseManager(), stream_api=stream)
        with worker:
            until(lambda: bool(seen.keys))
        return seen.keys.total()

    assert in_child(run) == "returned 1"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_name_of_ones_own_is_another_in_a_child() -> None:
    name = OwnName("mirror")
    first = str(name)
    child = in_child(lambda: str(name))

    assert str(name) == first
    assert child.startswith("returned 'mirror-")
    assert first not in child


def test_a_forked_error_says_what_to_do() -> None:
    with a_pool() as pool:
        assert "make it in the child, after the fork" in in_child(lambda: pool.submit(int))
    assert issubclass(ForkedError, Exception)
