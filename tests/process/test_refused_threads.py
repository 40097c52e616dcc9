"""A thread that the system refuses: each call runs once, or is refused and never runs; workers go on."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from streamclient import Backoff, ClientConfig, MemoryLeaseManager, StreamConfig, Worker
from streamclient.base.pools import DaemonPool
from streamclient.interfaces import (
    InitializationInput,
    IRecordProcessor,
    ProcessRecordsInput,
    ShutdownInput,
)
from streamclient.testing.fakes import FakeStream
from tests.patience import PATIENCE_SECONDS, until
from tests.placed_records import make_record
from tests.process.refusals import refused

RECORDS, PAGE = 400, 20
QUICK: dict[str, Any] = {
    "lease_duration_millis": 10_000,
    "taker_interval_millis": 100,
    "renewer_interval_millis": 200,
    "sync_shard_interval_millis": 200,
    "max_idle_poll_interval_millis": 50,
    "backoff": Backoff(restart_backoff_min_millis=10),
}


class Seen:
    """What the processors of all shards got, and whether two calls of one were ever under way at once."""

    def __init__(self) -> None:
        self.keys: Counter[str] = Counter()
        self.overlaps = 0
        self.lock = threading.Lock()
        self.go_on = threading.Event()
        """Until it is set, every call that brings records waits."""


class Careful(IRecordProcessor):
    def __init__(self, seen: Seen) -> None:
        self.seen = seen
        self.inside = threading.Lock()

    def _call(self, *, waits: bool = False) -> None:
        if not self.inside.acquire(blocking=False):
            with self.seen.lock:
                self.seen.overlaps += 1
            return
        try:
            if waits:
                self.seen.go_on.wait(PATIENCE_SECONDS)
        finally:
            self.inside.release()

    def initialize(self, initialization_input: InitializationInput) -> None:
        self._call()

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        self._call(waits=True)
        with self.seen.lock:
            self.seen.keys.update(str(record.primary_key[0][1]) for record in process_records_input.records)
        process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        self._call()


def two_shards() -> FakeStream:
    stream = FakeStream(shard_ids=("shard-1", "shard-2"))
    for shard_id in ("shard-1", "shard-2"):
        stream.append(shard_id, *(make_record(f"{shard_id}-{number}", number) for number in range(RECORDS)))
    return stream


def worker_of(seen: Seen, executor: Executor | None = None, **config: Any) -> Worker:
    return Worker(
        "worker",
        ClientConfig(**{**QUICK, **config}),
        StreamConfig(client=None, data_table_name="orders", status_table_name="status", max_records=PAGE),
        lambda: Careful(seen),
        executor,
        MemoryLeaseManager(),
        stream_api=two_shards(),
    )


def test_a_pool_that_was_refused_as_often_as_it_has_threads_runs_the_next_call() -> None:
    ran: list[str] = []
    pool = DaemonPool("pool", 4)
    with refused(lambda name: name.startswith("pool-"), 4) as refusals:
        for _ in range(4):
            with pytest.raises(RuntimeError, match="no thread could be started for pool pool: can't start new thread"):
                pool.submit(ran.append, "refused")
        assert len(refusals.names) == 4
        pool.submit(ran.append, "ran").result(PATIENCE_SECONDS)

    pool.shutdown()
    assert ran == ["ran"]


def test_a_call_waits_for_a_thread_that_the_pool_has_and_the_pool_grows_later() -> None:
    pool, release = DaemonPool("pool", 2), threading.Event()
    first = pool.submit(release.wait, PATIENCE_SECONDS)
    with refused(lambda name: name == "pool-2", 1):
        second: Future[int] = pool.submit(int, 2)
        assert pool.is_short
    assert pool.grow()
    assert second.result(PATIENCE_SECONDS) == 2  # while the first thread is still busy

    release.set()
    assert first.result(PATIENCE_SECONDS)
    pool.shutdown()
    assert not pool.is_short


def test_a_call_that_waits_is_run_by_the_thread_that_the_pool_has() -> None:
    pool, release = DaemonPool("pool", 2), threading.Event()
    pool.submit(release.wait, PATIENCE_SECONDS)
    with refused(lambda name: name.startswith("pool-")):
        second: Future[int] = pool.submit(int, 2)
        release.set()
        assert second.result(PATIENCE_SECONDS) == 2
    pool.shutdown()
    assert pool.join(PATIENCE_SECONDS)


@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize(
    ("threads", "is_own"),
    [
        ("processor-1", False),
        ("processor-2", False),
        ("processor-", False),
        ("theirs_0", True),
        ("theirs_1", True),
        ("theirs_", True),
        ("scan-", False),
        ("status-", False),
        ("renew-", False),
        ("fetch-1", False),
        ("fetch-", False),
    ],
)
def test_a_worker_lives_through_refused_threads(threads: str, is_own: bool, times: int) -> None:
    """Of its own pools, and of an executor of the standard library, which keeps the calls that it refuses."""
    seen = Seen()
    executor = ThreadPoolExecutor(8, thread_name_prefix="theirs") if is_own else None
    with refused(lambda name: threads in name, times) as refusals, worker_of(seen, executor) as worker:
        until(lambda: len(refusals.names) > 0 or seen.keys.total() > 0, "a thread that is refused")
        seen.go_on.set()
        worker.wait(PATIENCE_SECONDS, until=lambda: len(seen.keys) == 2 * RECORDS)
        assert worker.wait(PATIENCE_SECONDS, until=lambda: worker.health.is_healthy)
    if executor is not None:
        executor.shutdown()

    assert refusals.names
    assert seen.overlaps == 0
    assert (len(seen.keys), seen.keys.total()) == (2 * RECORDS, 2 * RECORDS)


def test_a_pool_without_any_thread_is_named_in_the_health_and_tried_again() -> None:
    seen = Seen()
    seen.go_on.set()
    with refused(lambda name: "-processor-" in name) as refusals, worker_of(seen) as worker:
        assert worker.wait(PATIENCE_SECONDS, until=lambda: not worker.health.is_healthy)
        reason = worker.health.reason
        refusals.stop()
        assert worker.wait(PATIENCE_SECONDS, until=lambda: seen.keys.total() == 2 * RECORDS)
        assert worker.wait(PATIENCE_SECONDS, until=lambda: worker.health.is_healthy)

    assert "no thread could be started for pool worker-processor: can't start new thread" in reason
    assert "raise the limit" in reason
    assert seen.overlaps == 0


def test_an_executor_of_the_standard_library_keeps_what_it_refuses() -> None:
    """The trap that the owner has to know: the call runs although ``submit`` has raised."""
    ran: list[str] = []
    with ThreadPoolExecutor(2, thread_name_prefix="theirs") as executor, refused(lambda name: "theirs" in name, 1):
        with suppress(RuntimeError):
            executor.submit(ran.append, "refused")
        executor.submit(ran.append, "taken").result(PATIENCE_SECONDS)

    assert ran == ["refused", "taken"]
