"""``run`` and ``each`` in an event loop: structured, cancellable at every await; nothing is stored that is not done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from streamclient import FailurePolicy, IRecordProcessor, KeyedProcessorFactory
from streamclient.errors import ConfigurationError
from streamclient.interfaces import ProcessRecordsInput
from streamclient.loops.aio.task_runs import run_each, run_tasks
from streamclient.model import CheckpointPosition, OnFailure, ShutdownReason
from streamclient.records import StreamRecord
from streamclient.worker.handlers.batches import AsyncBatch, AsyncRecordProcessor, Batch
from tests.handlers.stepping import AsyncStage
from tests.loops.staged import Main, StagedConsumption
from tests.worker.stage import keys

FIRST = CheckpointPosition.TRIM_HORIZON
SHARDS = ("a", "b", "c")


def filled(count: int = 6, **config: Any) -> AsyncStage:
    world = AsyncStage(*SHARDS, **config)
    for shard_id in SHARDS:
        world.write(shard_id, count)
    return world


class Done:
    """Which records were done, by shard, and what was stored when."""

    def __init__(self, world: AsyncStage) -> None:
        self.world = world
        self.by_shard: dict[str, list[object]] = {shard_id: [] for shard_id in SHARDS}
        self.out = 0
        self.most_out = 0

    async def batch(self, batch: AsyncBatch) -> None:
        self._begin()
        try:
            await self.world.sleep(0.1)
            await self.world.sleep(0.1)
            self.by_shard[batch.shard.shard_id] += [record.key["id"] for record in batch]
        finally:
            self.out -= 1

    def _begin(self) -> None:
        self.out += 1
        self.most_out = max(self.most_out, self.out)

    def number_stored(self, shard_id: str) -> int:
        """How many records are before the stored position."""
        stored = self.world.stored(shard_id)
        if stored in ("", FIRST):
            return 0
        return COUNT if stored == "SHARD_END" else int(stored.rpartition("@")[2])


def started(
    world: AsyncStage, handler: Any, concurrency: int | None = None, **given: Any
) -> tuple[Main, StagedConsumption]:
    consumption = StagedConsumption(world, **given)
    main = Main(world, run_tasks(consumption, handler, concurrency, world.loop))  # type: ignore[arg-type]
    return main, consumption


# --- run --------------------------------------------------------------------------------------------------------------


def test_run_handles_all_shards_and_returns_once_the_worker_is_stopped() -> None:
    world = filled()
    world.close_shards()
    done = Done(world)
    main, consumption = started(world, done.batch, 2)
    world.until_stored()
    assert not main.is_over
    consumption.stop()
    world.until(lambda: main.is_over, 60)

    assert (main.error, done.most_out, world.loop.tasks) == (None, 2, [])
    assert done.by_shard == {shard_id: keys(6) for shard_id in SHARDS}


def test_a_failed_worker_is_raised_and_no_task_is_left() -> None:
    world = filled()
    hold = world.loop.waiter()

    async def wait(batch: AsyncBatch) -> None:
        await hold

    main, consumption = started(world, wait, shutdown_timeout_millis=1_000)
    world.until(lambda: len(world.loop.tasks) == 4, 200)
    consumption.failure = ValueError("no such table")
    consumption.stop()
    world.until(lambda: main.is_over, 60)
    assert (main.error, world.loop.tasks) == (consumption.failure, [])


def test_a_task_that_cleans_up_after_its_cancellation_is_waited_for() -> None:
    world = filled()
    cleaned: list[str] = []

    async def wait(batch: AsyncBatch) -> None:
        try:
            await world.sleep(1_000)
        finally:
            await world.sleep(3)
            cleaned.append(batch.shard.shard_id)

    main, consumption = started(world, wait, shutdown_timeout_millis=1_000)
    world.until(lambda: len(world.loop.tasks) == 4, 200)
    consumption.stop()
    world.until(lambda: consumption.has_ended, 2)
    assert not main.is_over
    world.until(lambda: main.is_over, 4)
    assert (sorted(cleaned), world.loop.tasks, main.error) == (list(SHARDS), [], None)


class Ending(AsyncRecordProcessor):
    """Keeps its batches until ``shutdown``."""

    def __init__(self, done: Done, ended: list[ShutdownReason]) -> None:
        self.done, self.ended = done, ended

    async def process_records(self, batch: AsyncBatch) -> None:
        await self.done.batch(batch)

    async def shutdown(self, reason: ShutdownReason, commit: Any) -> None:
        await self.done.world.sleep(0.1)
        self.ended.append(reason)
        await commit()


def _function_of(made: Callable[[], Any]) -> Callable[[], Any]:
    def make() -> Any:
        return made()

    return make


@pytest.mark.parametrize("way", ["class", "function"])
def test_run_takes_what_makes_async_processors_and_a_cancellation_still_shuts_them_down(way: str) -> None:
    world = filled()
    done, ended = Done(world), list[ShutdownReason]()
    made = partial(Ending, done, ended)
    main, _ = started(world, made if way == "class" else _function_of(made))
    world.until(lambda: all(len(given) == 6 for given in done.by_shard.values()), 200)
    world.advance(1)
    main.task.cancel()
    world.until(lambda: main.is_over, 60)

    assert isinstance(main.error, asyncio.CancelledError)
    assert ended == [ShutdownReason.STOLEN] * 3
    assert [done.number_stored(shard_id) for shard_id in SHARDS] == [6] * 3


def test_the_second_cancellation_waits_for_the_tasks_alone() -> None:
    world = filled()
    hold = world.loop.waiter()

    class Stuck(Ending):
        async def shutdown(self, reason: ShutdownReason, commit: Any) -> None:
            await hold

    done = Done(world)
    main, consumption = started(world, partial(Stuck, done, []), shutdown_timeout_millis=100_000)
    world.until(lambda: bool(done.by_shard["a"]), 200)
    main.task.cancel()
    world.advance(5)
    assert not main.is_over
    main.task.cancel()
    world.until(lambda: main.is_over, 1)
    assert world.loop.tasks == []
    world.until(lambda: consumption.has_ended, 10)
    assert {world.lease(shard_id).owner for shard_id in SHARDS}.isdisjoint({"w1"})


def test_a_dropped_run_gives_its_leases_back() -> None:
    """The event loop is closed while tasks are out: the worker's thread sees that, and nobody awaits anything."""
    world = filled()
    hold = world.loop.waiter()

    async def wait(batch: AsyncBatch) -> None:
        await hold

    _, consumption = started(world, wait)
    world.until(lambda: len(world.loop.tasks) == 4, 200)
    world.loop.close()
    world.until(lambda: consumption.has_ended, 2)
    assert {world.lease(shard_id).owner for shard_id in SHARDS}.isdisjoint({"w1"})
    assert {world.stored(shard_id) for shard_id in SHARDS} == {FIRST}


def test_a_collected_coroutine_drops_its_worker() -> None:
    world = filled()
    done = Done(world)
    consumption = StagedConsumption(world)
    coroutine = run_tasks(consumption, done.batch, None, world.loop)  # type: ignore[arg-type]
    coroutine.send(None)
    coroutine.close()
    assert consumption.is_dropped
    world.until(lambda: consumption.has_ended, 60)


class Blocking(IRecordProcessor):
    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Never called."""


def plain(batch: Batch) -> None:
    """Never called."""


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (plain, "it is not an async def, and would block the event loop"),
        (Blocking, "it is not an async def, and would block the event loop"),
        (KeyedProcessorFactory(print), "it is not an async def, and would block the event loop"),
        (KeyedProcessorFactory, "it is a class of factories"),
        (
            17,
            "must be an async def of one batch, or a class or function that makes an AsyncRecordProcessor, not 17",
        ),
    ],
)
def test_run_refuses_what_would_block_the_event_loop(wrong: Any, why: str) -> None:
    world = AsyncStage("a")
    main, consumption = started(world, wrong)
    world.advance(1)
    assert isinstance(main.error, ConfigurationError)
    assert why in str(main.error)
    assert consumption.worker is None, "nothing has happened yet"


@pytest.mark.parametrize("concurrency", [0, -1, 1.5, "2"])
def test_run_refuses_a_concurrency_that_is_no_number_of_tasks(concurrency: Any) -> None:
    world = AsyncStage("a")
    main, _ = started(world, Done(filled()).batch, concurrency)
    world.advance(1)
    assert str(main.error).startswith("concurrency must be a whole number above 0 or None, not")


# --- each -------------------------------------------------------------------------------------------------------------


class Each:
    """Which records were done, in order per key, and how many were under way."""

    def __init__(self, world: AsyncStage, body: Callable[[StreamRecord], Awaitable[None]] | None = None) -> None:
        self.world, self.body = world, body
        self.begun: list[object] = []
        self.done: list[object] = []
        self.under_way: set[object] = set()
        self.most = 0

    async def record(self, record: StreamRecord) -> None:
        key = record.key["id"]
        self.begun.append(key)
        assert key not in self.under_way
        self.under_way.add(key)
        self.most = max(self.most, len(self.under_way))
        try:
            await self.world.sleep(0.3 if key == "k0" else 0.1)
            if self.body is not None:
                await self.body(record)
            self.done.append(key)
        finally:
            self.under_way.discard(key)


def each_of(
    world: AsyncStage, handler: Any, concurrency: int = 100, key: Any = None, **given: Any
) -> tuple[Main, StagedConsumption]:
    consumption = StagedConsumption(world, **given)
    now = lambda: world.simulation.now  # noqa: E731
    main = Main(world, run_each(consumption, handler, concurrency, key, bridge=world.loop, monotonic=now))  # type: ignore[arg-type]
    return main, consumption


def one_shard(count: int = 6, **config: Any) -> AsyncStage:
    world = AsyncStage("a", **config)
    world.write("a", count)
    return world


def test_each_runs_records_side_by_side_and_stores_the_end_behind_all() -> None:
    world = one_shard(12)
    world.close_shards()
    each = Each(world)
    main, consumption = each_of(world, each.record, 4, max_records=6)
    world.until_stored("a")
    consumption.stop()
    world.until(lambda: main.is_over, 60)

    assert (main.error, each.most, world.loop.tasks) == (None, 4, [])
    assert sorted(map(str, each.done)) == sorted(map(str, keys(12)))
    assert each.done[0] != "k0", "other keys do not wait for the slow one"


def test_records_of_one_key_keep_their_order() -> None:
    world = one_shard(12)
    world.close_shards()
    each = Each(world)
    each_of(world, each.record, 4, lambda record: int(str(record.key["id"])[1:]) % 3)
    world.until_stored("a")
    numbers = [int(str(key)[1:]) for key in each.done]
    assert [[number for number in numbers if number % 3 == lane] for lane in range(3)] == [
        [0, 3, 6, 9],
        [1, 4, 7, 10],
        [2, 5, 8, 11],
    ]
    assert each.most == 3


def test_nothing_is_stored_behind_a_record_that_is_under_way() -> None:
    world = one_shard(8)
    hold = world.loop.waiter()

    async def wait(record: StreamRecord) -> None:
        if record.key["id"] == "k3":
            await hold

    each = Each(world, wait)
    each_of(world, each.record)
    world.until(lambda: len(each.done) == 7, 200)
    world.advance(30)
    assert world.stored() == "a@2"
    hold.ring()
    world.until(lambda: world.stored() == "a@8", 60)


def test_a_record_is_tried_again_in_place_and_other_keys_go_on() -> None:
    world = one_shard(4, failure_policy=FailurePolicy(retries=0, then=OnFailure.STOP_SHARD, bisect=False))
    world.close_shards()
    tries: list[object] = []

    async def twice(record: StreamRecord) -> None:
        if record.key["id"] == "k1":
            tries.append(list(each.done))
            if len(tries) < 3:
                raise ValueError("not yet")

    each = Each(world, twice)
    each_of(world, each.record, max_records=10)
    world.until_stored("a")
    assert len(tries) == 3
    assert "k3" in tries[-1]  # type: ignore[operator]


async def raises(record: StreamRecord) -> None:
    raise ValueError("bad")


async def ends_as_if_cancelled(record: StreamRecord) -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("wrong", [raises, ends_as_if_cancelled])
def test_a_record_that_keeps_failing_meets_the_policy_in_its_own_batch(wrong: Callable[[Any], Awaitable[None]]) -> None:
    policy = FailurePolicy(retries=0, then=OnFailure.STOP_SHARD)
    world = one_shard(8, failure_policy=policy)

    async def fail(record: StreamRecord) -> None:
        if record.key["id"] == "k5":
            await wrong(record)

    each = Each(world, fail)
    _, consumption = each_of(world, each.record)
    told = 'stopped by failure_policy at record [["id", "k5"]]'
    world.until(lambda: told in "".join(status.reason for status in _statuses(consumption)), 300)
    assert world.stored() == "a@4"


def _statuses(consumption: StagedConsumption) -> list[Any]:
    return [] if consumption.worker is None else list(consumption.worker.statuses().values())


def test_a_cancelled_each_leaves_no_task_and_stores_what_was_done() -> None:
    world = one_shard(8)
    hold = world.loop.waiter()

    async def wait(record: StreamRecord) -> None:
        if record.key["id"] == "k5":
            await hold

    each = Each(world, wait)
    main, _ = each_of(world, each.record)
    world.until(lambda: len(each.done) == 7, 200)
    main.task.cancel()
    world.until(lambda: main.is_over, 60)

    assert isinstance(main.error, asyncio.CancelledError)
    assert (world.loop.tasks, each.under_way) == ([], set())
    assert world.stored() == "a@4"
    assert world.lease().owner != "w1"


def test_records_that_clean_up_after_a_cancellation_are_cancelled_once_and_waited_for() -> None:
    world = one_shard(4)
    cleaned: list[object] = []

    async def wait(record: StreamRecord) -> None:
        try:
            await world.sleep(1_000)
        finally:
            await world.sleep(3)
            cleaned.append(record.key["id"])

    each = Each(world, wait)
    main, _ = each_of(world, each.record, shutdown_timeout_millis=1_000)
    world.until(lambda: len(world.loop.tasks) >= 5 and not each.done, 200)
    world.advance(1)
    main.task.cancel()
    world.until(lambda: main.is_over, 60)
    assert (sorted(map(str, cleaned)), world.loop.tasks) == (keys(4), [])


def test_the_records_of_a_lost_lease_are_cancelled() -> None:
    world = one_shard(4)
    hold = world.loop.waiter()
    cancelled: list[object] = []

    async def wait(record: StreamRecord) -> None:
        try:
            await hold
        except asyncio.CancelledError:
            cancelled.append(record.key["id"])
            raise

    each = Each(world, wait)
    each_of(world, each.record)
    world.until(lambda: len(each.under_way) == 4, 200)
    assert world.leases.take_lease(world.lease(), "somebody else")
    world.until(lambda: len(cancelled) == 4, 100)
    assert (each.done, world.stored()) == ([], FIRST)


def test_a_slow_record_is_named(caplog: pytest.LogCaptureFixture) -> None:
    world = one_shard(1)
    hold = world.loop.waiter()

    async def wait(record: StreamRecord) -> None:
        await hold

    each = Each(world, wait)
    each_of(world, each.record)
    world.until(lambda: len(each.under_way) == 1, 200)
    world.advance(25)
    assert "has been under way" not in caplog.text
    world.advance(15)
    assert "shard a: record {id='k0'} at " in caplog.text
    assert "has been under way for 3" in caplog.text
    hold.ring()
    world.until(lambda: world.stored() == "a@1", 60)


@pytest.mark.parametrize("wrong", [print, plain, 17, Each])
def test_each_refuses_what_is_no_async_function(wrong: Any) -> None:
    world = AsyncStage("a")
    main, _ = each_of(world, wrong)
    world.advance(1)
    assert str(main.error).startswith("handler must be an async def of one StreamRecord, not ")


# --- cancelled at every await -----------------------------------------------------------------------------------------

COUNT = 8


def begun(kind: str) -> tuple[AsyncStage, Done, Main]:
    """A run over three shards, or ``each`` over one, of which everything is written."""
    world = filled(COUNT) if kind == "run" else one_shard(COUNT)
    world.close_shards()
    done = Done(world)
    if kind == "run":
        return world, done, started(world, done.batch, 2)[0]

    async def record(given: StreamRecord) -> None:
        await world.sleep(0.1)
        done.by_shard["a"].append(given.key["id"])

    return world, done, each_of(world, record, 3)[0]


def prefix(done: list[object]) -> int:
    """How many of the first records are done, without a gap."""
    return next(number for number in range(COUNT + 1) if f"k{number}" not in done)


@pytest.mark.parametrize("kind", ["run", "each"])
def test_a_run_that_is_cancelled_at_any_await_is_over_in_order_and_loses_nothing(kind: str) -> None:
    world, done, _ = begun(kind)
    world.until_stored()
    most = world.loop.suspensions
    assert most > 8
    for number in range(1, most + 1):
        world, done, main = begun(kind)

        def cancel(suspension: int, number: int = number, main: Main = main) -> None:
            if suspension == number:
                main.task.cancel()

        world.loop.at_suspension = cancel
        world.until(lambda main=main: main.is_over, 120)  # type: ignore[misc]
        assert isinstance(main.error, asyncio.CancelledError), number
        assert world.loop.tasks == [], number
        for shard_id in world.shard_ids:
            assert done.number_stored(shard_id) <= prefix(done.by_shard[shard_id]), number
            lease = world.leases.get_lease(shard_id)
            assert lease is None or lease.owner != "w1", number
        again = Done(world)
        world.handling(again.batch, "w2")
        world.until_stored()
        for shard_id in world.shard_ids:
            assert {*done.by_shard[shard_id], *again.by_shard[shard_id]} == {*keys(COUNT)}, number
