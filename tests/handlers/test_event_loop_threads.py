"""Workers whose user code is coroutines: one event loop in one thread of the worker, on real threads and over HTTP."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import pytest

from streamclient import (
    Backoff,
    ClientConfig,
    FailurePolicy,
    InitializationInput,
    MemoryLeaseManager,
    StreamConfig,
    Worker,
)
from streamclient.errors import ConfigurationError
from streamclient.model import OnFailure, ShardState, ShutdownReason
from streamclient.testing.fakes import FakeStream
from streamclient.worker.handlers.batches import AsyncBatch, AsyncRecordProcessor
from streamclient.worker.handlers.event_loop import AsyncioBridge, EventLoopThread
from tests.own_process import ROOT
from tests.patience import FOREVER_MILLIS, PATIENCE_SECONDS, until
from tests.process.refusals import refused
from tests.worker.stage import keys, make_table, put, records

if TYPE_CHECKING:
    from streamclient.server import LocalTablestore

QUICK: dict[str, Any] = {
    "taker_interval_millis": 100,
    "renewer_interval_millis": 300,
    "sync_shard_interval_millis": 100,
    "max_idle_poll_interval_millis": 50,
    "backoff": Backoff(restart_backoff_min_millis=10, restart_backoff_max_millis=20),
}


def worker_of(given: Any, stream: FakeStream, leases: MemoryLeaseManager | None = None, **config: Any) -> Worker:
    settings = StreamConfig(client=None, data_table_name="orders", status_table_name="status", max_records=3)
    leases = leases or MemoryLeaseManager(stream.stream_id)
    return Worker("w", ClientConfig(**{**QUICK, **config}), settings, given, None, leases, stream_api=stream)


def stream_of(*shard_ids: str, count: int = 6) -> FakeStream:
    stream = FakeStream("orders", shard_ids)
    for shard_id in shard_ids:
        stream.append(shard_id, *records(count))
    return stream


def loop_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "asyncio" in thread.name]


def test_coroutines_of_all_shards_run_in_one_thread_which_ends_with_the_worker() -> None:
    stream = stream_of("a", "b", "c")
    places: set[tuple[str, int]] = set()
    done: list[object] = []

    async def handle(batch: AsyncBatch) -> None:
        places.add((threading.current_thread().name, id(asyncio.get_running_loop())))
        await asyncio.sleep(0)
        done.extend(record.key["id"] for record in batch)

    worker = worker_of(handle, stream)
    assert loop_threads() == []
    with worker:
        assert worker.wait(PATIENCE_SECONDS, until=lambda: len(done) == 18)
        assert loop_threads() == ["w-asyncio"]
    assert len(places) == 1
    assert loop_threads() == []


def test_a_hundred_shards_need_few_threads() -> None:
    shard_ids = [f"s{number:03}" for number in range(100)]
    stream = stream_of(*shard_ids, count=4)
    seen: dict[str, list[object]] = {shard_id: [] for shard_id in shard_ids}
    most = 0

    async def handle(batch: AsyncBatch) -> None:
        nonlocal most
        most = max(most, threading.active_count() - before)
        await asyncio.sleep(0.01)
        seen[batch.shard.shard_id].extend(record.key["id"] for record in batch)

    before = threading.active_count()
    worker = worker_of(handle, stream, read_threads=8, renew_thread_pool_size=2)
    with worker:
        assert worker.wait(PATIENCE_SECONDS, until=lambda: all(len(given) == 4 for given in seen.values()))
    assert set(map(tuple, seen.values())) == {tuple(keys(4))}
    assert most < 20


def test_a_task_that_no_batch_waits_for_shuts_the_worker_down_and_does_not_block_the_loop() -> None:
    """The loop has to run the processor's ``shutdown``, before which no lease is handed over."""
    stream, go_on, told = stream_of("a", count=0), asyncio.Event(), list[object]()
    leases = MemoryLeaseManager(stream.stream_id)

    class Stopping(AsyncRecordProcessor):
        async def initialize(self, initialization_input: InitializationInput) -> None:
            self.loop = asyncio.get_running_loop()
            self.task = self.loop.create_task(self.stop())
            told.append(self)

        async def process_records(self, batch: AsyncBatch) -> None:
            raise AssertionError("there are no records")

        async def stop(self) -> None:
            await go_on.wait()
            told.append(worker.shutdown())

        async def shutdown(self, reason: ShutdownReason, commit: object) -> None:
            told.append(reason)

    worker = worker_of(Stopping, stream, leases, shutdown_timeout_millis=FOREVER_MILLIS)
    with worker:
        until(lambda: {status.state for status in worker.shard_statuses().values()} == {ShardState.PROCESSING})
        (made,) = told
        assert isinstance(made, Stopping)
        made.loop.call_soon_threadsafe(go_on.set)
        assert worker.wait(PATIENCE_SECONDS)
    assert told[1:] == [False, ShutdownReason.STOLEN]
    assert [lease.owner for lease in leases.list_leases()] == [""]


def test_a_loop_that_need_not_wait_gives_way_after_each_turn_of_5_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.new_event_loop()
    bridge = AsyncioBridge(loop)
    given = []
    for now in (1.0, 1.001, 1.0049, 1.0051, 1.006, 2.0):
        monkeypatch.setattr(loop, "time", lambda now=now: now)
        given.append(bridge.gives_way())
    loop.close()

    assert given == [True, False, False, True, False, True]


def test_an_event_loop_without_a_thread_fails_the_start_and_is_tried_again() -> None:
    done: list[object] = []

    async def handle(batch: AsyncBatch) -> None:
        done.extend(batch)

    worker = worker_of(handle, stream_of("a"))
    with refused(lambda name: name == "w-asyncio", most=3) as refusals, worker:
        assert worker.wait(PATIENCE_SECONDS, until=lambda: len(done) == 6)
    assert refusals.names == ["w-asyncio"] * 3


def test_an_exit_inside_a_handler_is_a_failure_of_its_shard(caplog: pytest.LogCaptureFixture) -> None:
    done: list[object] = []

    async def handle(batch: AsyncBatch) -> None:
        if batch.shard.shard_id == "a":
            sys.exit(3)
        done.extend(batch)

    policy = FailurePolicy(retries=0, then=OnFailure.STOP_SHARD, bisect=False)
    worker = worker_of(handle, stream_of("a", "b"), failure_policy=policy)
    with worker:
        assert worker.wait(PATIENCE_SECONDS, until=lambda: len(done) == 6 and "stopped by" in _reasons(worker))
        assert "user code in the event loop raised SystemExit(3)" in _reasons(worker)


def _reasons(worker: Worker) -> str:
    return "; ".join(status.reason for status in worker.shard_statuses().values())


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nothing")


def test_tasks_of_a_worker_have_a_context_of_their_own() -> None:
    seen: list[str] = []

    async def handle(batch: AsyncBatch) -> None:
        seen.append(variable.get())
        variable.set("changed by a task")

    token = variable.set("the caller's")
    try:
        worker = worker_of(handle, stream_of("a"))
        with worker:
            assert worker.wait(PATIENCE_SECONDS, until=lambda: len(seen) == 2)
    finally:
        variable.reset(token)
    assert seen == ["nothing", "nothing"]


class Totals(AsyncRecordProcessor):
    made: list[Totals]

    def __init__(self, made: list[Totals]) -> None:
        self.total = 0
        made.append(self)

    async def initialize(self, initialization_input: InitializationInput) -> None:
        self.lock = asyncio.Lock()

    async def process_records(self, batch: AsyncBatch) -> None:
        async with self.lock:
            self.total += len(batch)
            await batch.commit()


def test_a_function_that_makes_async_processors_for_a_worker_is_told_what_to_give() -> None:
    made: list[Totals] = []
    worker = worker_of(lambda: Totals(made), stream_of("a"))
    with worker:
        assert worker.wait(
            PATIENCE_SECONDS, until=lambda: "an async processor: give the class itself" in _reasons(worker)
        )


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"process_records": lambda self, batch: None}, "its process_records is not an async function"),
        (
            {"process_records": Totals.process_records, "shutdown": lambda self, r, c: None},
            "its shutdown is not an async",
        ),
    ],
)
def test_an_async_processor_with_a_plain_method_is_refused_before_anything_happens(members: Any, why: str) -> None:
    kind = type("Plain", (AsyncRecordProcessor,), members)
    with pytest.raises(ConfigurationError, match=why):
        worker_of(kind, stream_of("a"))


def test_a_task_that_ignores_its_cancellation_does_not_keep_the_worker() -> None:
    out, go_on = threading.Event(), threading.Event()

    async def handle(batch: AsyncBatch) -> None:
        out.set()
        while not go_on.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    worker = worker_of(handle, stream_of("a"), shutdown_timeout_millis=300)
    with worker:
        assert worker.wait(PATIENCE_SECONDS, until=out.is_set)
    assert worker.wait(0)
    go_on.set()
    until(lambda: loop_threads() == [])


def test_a_loop_that_is_closed_takes_nothing_any_more() -> None:
    thread = EventLoopThread("one-asyncio")
    thread.close(PATIENCE_SECONDS)  # one that never began
    bridge = thread.bridge()
    assert bridge == thread.bridge() or bridge.post(lambda: None)
    thread.close(PATIENCE_SECONDS)
    assert (bridge.is_closed, bridge.post(lambda: None), loop_threads()) == (True, False, [])


def test_there_is_no_bridge_without_a_running_loop() -> None:
    with pytest.raises(Exception, match="no event loop runs in this thread"):
        AsyncioBridge.here()


# --- over HTTP --------------------------------------------------------------------------------------------------------


def test_a_worker_over_http_stores_what_its_coroutines_handled(local: LocalTablestore) -> None:
    client = local.client()
    make_table(client)
    for number in range(20):
        put(client, f"k{number}")
    done: list[object] = []

    async def handle(batch: AsyncBatch) -> None:
        await asyncio.sleep(0.001)
        done.extend(record.key["id"] for record in batch)

    stream = StreamConfig(client=client, data_table_name="orders", status_table_name="status", max_records=3)
    with Worker("w", ClientConfig(**QUICK), stream, handle) as worker:
        assert worker.wait(PATIENCE_SECONDS, until=lambda: len(done) == 20)
    again: list[object] = []

    async def note(batch: AsyncBatch) -> None:
        again.extend(record.key["id"] for record in batch)

    put(client, "last")
    with Worker("w", ClientConfig(**QUICK), stream, note) as worker:
        assert worker.wait(PATIENCE_SECONDS, until=lambda: bool(again))
    assert sorted(map(str, done)) == sorted(keys(20))
    assert again == ["last"]


def test_the_streams_of_a_worker_share_one_event_loop(local: LocalTablestore) -> None:
    client = local.client()
    loops: dict[str, int] = {}

    async def handle(batch: AsyncBatch) -> None:
        loops[batch.table] = id(asyncio.get_running_loop())

    async def handle_others(batch: AsyncBatch) -> None:
        await handle(batch)

    for table in ("orders", "invoices"):
        make_table(client, table)
        put(client, "k", table)
    configs = [
        StreamConfig(client=client, data_table_name="orders", status_table_name="status", name="one"),
        StreamConfig(
            client=client,
            data_table_name="invoices",
            status_table_name="status",
            name="other",
            record_processor_factory=handle_others,
        ),
    ]
    with Worker("w", ClientConfig(**QUICK), configs, handle) as worker:
        assert worker.wait(PATIENCE_SECONDS, until=lambda: len(loops) == 2)
    assert len(set(loops.values())) == 1


SUBPROCESS = """
    import asyncio, gc, threading
    from streamclient import ClientConfig, MemoryLeaseManager, StreamConfig, Worker
    from streamclient.testing.fakes import FakeStream
    from tests.placed_records import make_record

    {setup}

    done = threading.Event()

    async def handle(batch):
        await asyncio.sleep(0.001)
        loops.append(type(asyncio.get_running_loop()).__module__)
        done.set()
        await asyncio.sleep({seconds})

    loops = []

    stream = FakeStream("orders", ("a",))
    stream.append("a", make_record("k", 1))
    config = StreamConfig(client=None, data_table_name="orders", status_table_name="status")
    settings = ClientConfig(shutdown_timeout_millis=200)
    with Worker("w", settings, config, handle, None, MemoryLeaseManager(), stream_api=stream) as worker:
        assert worker.wait({patience}, until=done.is_set)
    del worker
    gc.collect()
    print(*loops)
"""


def clean_run(setup: str = "", seconds: float = 0) -> str:
    program = SUBPROCESS.format(setup=setup, seconds=seconds, patience=PATIENCE_SECONDS)
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(program)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2 * PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    for word in ("was destroyed", "never awaited", "unraisable", "ResourceWarning", "never retrieved"):
        assert word not in done.stderr, done.stderr
    return done.stdout


def test_a_worker_leaves_nothing_behind() -> None:
    assert clean_run() == "asyncio.unix_events\n"


def test_a_worker_whose_task_outlasts_its_shutdown_leaves_nothing_behind() -> None:
    assert clean_run(seconds=3_600) == "asyncio.unix_events\n"


def test_the_event_loop_is_that_of_the_programs_policy() -> None:
    pytest.importorskip("uvloop")
    assert clean_run("import uvloop; asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())") == "uvloop\n"
