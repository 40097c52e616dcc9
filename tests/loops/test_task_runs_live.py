"""``run`` and ``each`` in real event loops, with workers in threads: contexts, cancellation, signals, uvloop."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import pytest

from streamclient import ClientConfig, MemoryLeaseManager, StreamConfig, Worker, aio
from streamclient.base.pools import DaemonPool
from streamclient.errors import WorkerFailedError
from streamclient.loops.aio.task_runs import run_each, run_tasks
from streamclient.loops.consumption import Consumption
from streamclient.records import StreamRecord
from streamclient.testing.fakes import FakeStream
from streamclient.worker.handlers.batches import AsyncBatch
from tests.own_process import ROOT
from tests.patience import PATIENCE_SECONDS, until
from tests.worker.stage import keys, make_table, put, records

if TYPE_CHECKING:
    from streamclient.server import LocalTablestore

QUICK: dict[str, Any] = {
    "taker_interval_millis": 100,
    "renewer_interval_millis": 300,
    "sync_shard_interval_millis": 100,
    "max_idle_poll_interval_millis": 50,
    "read_threads": 8,
    "renew_thread_pool_size": 2,
}


def consumption_of(stream: FakeStream, leases: MemoryLeaseManager | None = None) -> Consumption:
    config = ClientConfig(**QUICK)

    def make(receivers: Any, threads: DaemonPool) -> Worker:
        settings = StreamConfig(client=None, data_table_name="orders", status_table_name="s", max_records=3)
        kept = leases or MemoryLeaseManager(stream.stream_id)
        return Worker("w", config, settings, receivers, threads, kept, stream_api=stream)

    return Consumption("w", make, config, "turn")


def stream_of(*shard_ids: str, count: int = 6) -> FakeStream:
    stream = FakeStream("orders", shard_ids)
    for shard_id in shard_ids:
        stream.append(shard_id, *records(count))
    return stream


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nothing")


def test_tasks_live_in_the_callers_event_loop_and_context_and_none_is_left() -> None:
    seen: list[tuple[str, bool]] = []
    stream = stream_of("a", "b")

    async def main() -> set[Any]:
        loop = asyncio.get_running_loop()
        variable.set("the caller's")
        consumption = consumption_of(stream)

        async def handle(batch: AsyncBatch) -> None:
            seen.append((variable.get(), asyncio.get_running_loop() is loop))
            variable.set("changed by a task")
            await asyncio.sleep(0)
            if len(seen) == 4:
                consumption.worker.shutdown(wait=False)

        await run_tasks(consumption, handler=handle, concurrency=None)
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(main()) == set()
    assert seen == [("the caller's", True)] * 4


def test_a_hundred_shards_in_one_event_loop_need_fewer_than_twenty_threads() -> None:
    shard_ids = [f"s{number:03}" for number in range(100)]
    done: dict[str, list[object]] = {shard_id: [] for shard_id in shard_ids}
    most = 0
    before = threading.active_count()

    async def main() -> None:
        consumption = consumption_of(stream_of(*shard_ids, count=4))

        async def handle(batch: AsyncBatch) -> None:
            nonlocal most
            most = max(most, threading.active_count() - before)
            await asyncio.sleep(0.01)
            done[batch.shard.shard_id].extend(record.key["id"] for record in batch)
            if all(len(given) == 4 for given in done.values()):
                consumption.worker.shutdown(wait=False)

        await run_tasks(consumption, handle, None)

    asyncio.run(main())
    assert set(map(tuple, done.values())) == {tuple(keys(4))}
    assert most < 20


@pytest.mark.parametrize("kind", ["run", "each"])
def test_a_time_out_around_a_run_cancels_its_tasks_and_hands_the_leases_on(kind: str) -> None:
    stream = stream_of("a", "b")
    leases = MemoryLeaseManager(stream.stream_id)
    cancelled: list[str] = []

    async def main() -> None:
        out = asyncio.Event()

        async def wait(given: AsyncBatch | StreamRecord) -> None:
            out.set()
            try:
                await asyncio.sleep(PATIENCE_SECONDS)
            except asyncio.CancelledError:
                cancelled.append("one")
                raise

        consumption = consumption_of(stream, leases)
        run = run_tasks(consumption, wait, None) if kind == "run" else run_each(consumption, wait, 4, None)
        task = asyncio.ensure_future(run)
        await out.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert cancelled
    assert {lease.owner for lease in leases.list_leases()}.isdisjoint({"w"})
    assert {lease.checkpoint for lease in leases.list_leases()} == {"TRIM_HORIZON"}


def test_a_worker_that_fails_is_raised() -> None:
    async def main() -> None:
        stream = FakeStream("orders", ("a",))
        stream.list_stream = lambda table_name: []  # type: ignore[method-assign,assignment]
        with pytest.raises(WorkerFailedError, match="has no stream"):
            await run_tasks(consumption_of(stream), nothing, None)

    asyncio.run(main())


async def nothing(batch: AsyncBatch) -> None:
    """Do nothing."""


def test_each_stores_what_its_coroutines_did() -> None:
    stream = stream_of("a", count=30)
    leases = MemoryLeaseManager(stream.stream_id)
    done: list[object] = []

    async def main() -> None:
        consumption = consumption_of(stream, leases)

        async def ship(record: StreamRecord) -> None:
            await asyncio.sleep(0.001)
            done.append(record.key["id"])
            if len(done) == 30:
                consumption.worker.shutdown(wait=False)

        await run_each(consumption, ship, 10, None)

    asyncio.run(main())
    assert sorted(map(str, done)) == sorted(keys(30))
    assert [lease.checkpoint for lease in leases.list_leases()] == ["a@30"]


def test_changes_of_a_table_over_http_are_run_and_cancelled_and_go_on_where_they_were(local: LocalTablestore) -> None:
    client = local.client()
    make_table(client)
    done: list[object] = []

    async def handle(batch: AsyncBatch) -> None:
        await asyncio.sleep(0)
        done.extend(record.key["id"] for record in batch)

    async def run_until(count: int) -> None:
        changes = aio.changes("orders", group="g", client=client, max_records=4)
        task = asyncio.ensure_future(changes.run(handle))
        while len(done) < count:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for number in range(20):
        put(client, f"k{number}")
    asyncio.run(run_until(20))
    put(client, "last")
    asyncio.run(run_until(21))
    assert done == [*keys(20), "last"]


def test_a_closed_event_loop_gives_the_leases_back() -> None:
    """Nobody awaits anything: the loop was stopped with tasks out, and closed."""
    stream = stream_of("a", "b")
    leases = MemoryLeaseManager(stream.stream_id)
    loop = asyncio.new_event_loop()
    consumption = consumption_of(stream, leases)
    out: list[object] = []

    async def wait(batch: AsyncBatch) -> None:
        out.append(batch)
        if len(out) == 2:
            loop.stop()
        await asyncio.sleep(PATIENCE_SECONDS)

    task = loop.create_task(run_tasks(consumption, wait, None))
    loop.run_forever()
    loop.close()
    until(consumption.ended.is_set)
    assert {lease.owner for lease in leases.list_leases()}.isdisjoint({"w"})
    assert not task.done()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    for other in asyncio.all_tasks(loop):
        other._log_destroy_pending = False  # type: ignore[attr-defined]


PROGRAM = """
    import asyncio, gc, os, signal, sys
    from tests.loops.test_task_runs_live import consumption_of, stream_of
    from streamclient.loops.aio.task_runs import run_each, run_tasks
    {setup}

    async def handle(given):
        handle.begun += 1
        {body}
        handle.done += 1

    handle.begun = handle.done = 0

    async def main():
        consumption = consumption_of(stream_of("a", "b"))
        await {run}
        left = asyncio.all_tasks() - {{asyncio.current_task()}}
        print("returned", handle.begun == handle.done, left)

    {start}
    gc.collect()
"""

RUNS = {"run": "run_tasks(consumption, handle, None)", "each": "run_each(consumption, handle, 3, None)"}


def run_program(run: str, body: str, setup: str = "", start: str = "asyncio.run(main())") -> tuple[int, str, str]:
    program = textwrap.dedent(PROGRAM.format(run=RUNS[run], body=body, setup=setup, start=start))
    command = [sys.executable, "-X", "dev", "-W", "error", "-W", "ignore::ImportWarning", "-c", program]
    # The SDK warns of a native part that it lacks for some Pythons.
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2 * PATIENCE_SECONDS, check=False)
    said = done.stdout + done.stderr
    for word in ("was destroyed", "never awaited", "unraisable", "ResourceWarning", "never retrieved"):
        assert word not in said, said
    return done.returncode, done.stdout, done.stderr


KILL = "os.kill(os.getpid(), signal.SIGTERM)"
INTERRUPT = "signal.raise_signal(signal.SIGINT)"


@pytest.mark.parametrize("run", RUNS)
def test_sigterm_ends_a_run_behind_its_tasks_and_leaves_nothing(run: str) -> None:
    code, said, _ = run_program(run, f"{KILL}; await asyncio.sleep(0.05)")
    assert (code, said) == (0, "returned True set()\n")


@pytest.mark.parametrize("run", RUNS)
def test_ctrl_c_cancels_a_run_and_leaves_nothing(run: str) -> None:
    code, said, error = run_program(run, f"{INTERRUPT}; await asyncio.sleep(3600)")
    assert code != 0
    assert error.rstrip().endswith("KeyboardInterrupt")
    assert said == ""


@pytest.mark.parametrize("run", RUNS)
def test_a_run_is_the_same_on_uvloop(run: str) -> None:
    pytest.importorskip("uvloop")
    code, said, _ = run_program(run, f"{KILL}; await asyncio.sleep(0.05)", "import uvloop", "uvloop.run(main())")
    assert (code, said) == (0, "returned True set()\n")
