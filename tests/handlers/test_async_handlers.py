"""An ``async def`` of one batch: each law of loops and handlers, in an event loop on simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from streamclient import CallLimits, FailurePolicy
from streamclient.base.reasons import Cause
from streamclient.errors import ShutdownException, StreamClientException
from streamclient.model import CheckpointPosition, OnFailure
from streamclient.worker.handlers.batches import AsyncBatch
from tests.handlers.stepping import AsyncStage
from tests.worker.stage import keys

FIRST = CheckpointPosition.TRIM_HORIZON


def names(batch: AsyncBatch) -> list[object]:
    return [record.key["id"] for record in batch]


class Seen:
    """What a handler was given, and the position that was stored then."""

    def __init__(self, world: AsyncStage, body: Callable[[AsyncBatch], Awaitable[None]] | None = None) -> None:
        self.world, self.body = world, body
        self.given: list[tuple[str, list[object]]] = []
        self.stored: list[str] = []
        self.out: set[str] = set()
        self.most_out = 0
        self.cancelled: list[str] = []

    async def handle(self, batch: AsyncBatch) -> Any:
        shard_id = batch.shard.shard_id
        assert shard_id not in self.out, "two batches of one shard are out"
        self.given.append((shard_id, names(batch)))
        self.stored.append(self.world.stored(shard_id))
        self.out.add(shard_id)
        self.most_out = max(self.most_out, len(self.out))
        try:
            await self.world.sleep(0.1)
            return None if self.body is None else await self.body(batch)  # type: ignore[func-returns-value]
        except asyncio.CancelledError:
            self.cancelled.append(shard_id)
            raise
        finally:
            self.out.discard(shard_id)

    def of(self, shard_id: str) -> list[object]:
        return [key for shard, given in self.given if shard == shard_id for key in given]


def filled(*shard_ids: str, count: int = 6, **config: Any) -> AsyncStage:
    world = AsyncStage(*shard_ids, **config)
    for shard_id in world.shard_ids:
        world.write(shard_id, count)
    return world


# --- the turn ---------------------------------------------------------------------------------------------------------


def test_each_batch_is_stored_when_its_handler_has_ended_and_the_end_after_all() -> None:
    world = filled()
    world.close_shards()
    seen = Seen(world)
    world.handling(seen.handle)
    world.until_stored("a")

    assert seen.given == [("a", keys(2)), ("a", keys(2, 2)), ("a", keys(2, 4))]
    assert seen.stored[0] == FIRST
    assert len(set(seen.stored)) == 3, "the position moves with each turn"


def test_nothing_is_stored_before_the_end_of_its_handler() -> None:
    world = filled(count=2)
    stored: list[str] = []

    async def wait(batch: AsyncBatch) -> None:
        await world.sleep(30)
        stored.append(world.stored())

    world.handling(wait)
    world.until(lambda: world.stored() not in ("", FIRST), 200)
    assert stored == [FIRST]


def test_shards_are_handled_side_by_side_and_each_in_order() -> None:
    world = filled("a", "b", "c")
    world.close_shards()
    seen = Seen(world)
    world.handling(seen.handle)
    world.until_stored()

    assert seen.most_out == 3
    assert [seen.of(shard_id) for shard_id in "abc"] == [keys(6)] * 3


def test_at_most_so_many_tasks_run_and_the_others_wait_in_line_unclaimed() -> None:
    world = filled("a", "b", "c", "d")
    world.close_shards()
    seen = Seen(world)
    world.handling(seen.handle, line=world.line(2))
    world.until_stored()

    assert seen.most_out == 2
    assert [seen.of(shard_id) for shard_id in "abcd"] == [keys(6)] * 4


def test_a_handler_may_commit_by_itself_and_the_turn_finds_the_batch_settled() -> None:
    world = filled(count=2)
    world.close_shards()
    inside: list[str] = []

    async def commit(batch: AsyncBatch) -> None:
        await batch.commit()
        await batch.commit()
        inside.append(world.stored())
        with pytest.raises(StreamClientException, match="it cannot fail any more"):
            batch.fail(ValueError("too late"))

    world.handling(Seen(world, commit).handle)
    world.until_stored("a")
    assert inside != [FIRST]


def test_a_batch_that_is_used_after_its_turn_is_over() -> None:
    world = filled(count=2)
    world.close_shards()
    kept: list[AsyncBatch] = []

    async def keep(batch: AsyncBatch) -> None:
        kept.append(batch)

    world.handling(keep)
    world.until_stored("a")
    for use in (len, list, lambda batch: batch[0], lambda batch: batch.fail(ValueError("late"))):
        with pytest.raises(StreamClientException, match="the batch is over"):
            use(kept[0])


# --- explicit commits -------------------------------------------------------------------------------------------------


def test_an_explicit_handler_stores_only_by_commit_and_is_told_of_the_end() -> None:
    world = filled()
    world.close_shards()
    kept: list[AsyncBatch] = []
    stored: list[str] = []

    async def collect(batch: AsyncBatch) -> None:
        stored.append(world.stored())
        if not batch.is_end:
            kept.append(batch)
            return
        assert len(batch) == 0
        assert [key for each in kept for key in names(each)] == keys(6), "accepted batches may be read later"
        await batch.commit()

    world.handling(collect, commit="explicit")
    world.until_stored("a")
    assert stored == [FIRST] * 4


def test_an_end_that_an_explicit_handler_does_not_commit_is_not_stored() -> None:
    world = filled(count=2)
    world.close_shards()

    async def forget(batch: AsyncBatch) -> None:
        """Commit nothing."""

    worker = world.handling(forget, commit="explicit")
    world.until(lambda: _has(worker, Cause.END_NOT_STORED), 200)
    assert world.stored() == FIRST


def _has(worker: Any, cause: Cause) -> bool:
    return any(reason.cause is cause for status in worker.statuses().values() for reason in status.reasons)


# --- failures ---------------------------------------------------------------------------------------------------------


async def raises(batch: AsyncBatch) -> None:
    raise ValueError("no")


async def fails(batch: AsyncBatch) -> None:
    batch.fail(ValueError("no"))
    with pytest.raises(StreamClientException, match="cannot commit: the batch was settled as failed"):
        await batch.commit()


async def answers(batch: AsyncBatch) -> None:
    return "something"  # type: ignore[return-value]


async def is_cancelled_by_nobody(batch: AsyncBatch) -> None:
    raise asyncio.CancelledError


FAILING: dict[str, tuple[Callable[[AsyncBatch], Awaitable[None]], str]] = {
    "it raises": (raises, "ValueError: no"),
    "it says so": (fails, "ValueError: no"),
    "it returns something": (answers, "the handler returned 'something', so it may not have done its work"),
    "it ends as if cancelled": (is_cancelled_by_nobody, "neither the worker nor the caller had cancelled it"),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_failed_batch_meets_the_failure_policy_for_its_shard_alone(name: str) -> None:
    body, why = FAILING[name]
    policy = FailurePolicy(retries=1, then=OnFailure.STOP_SHARD, bisect=False)
    world = filled("a", "b", count=4, failure_policy=policy)
    world.close_shards()
    attempts: list[int] = []

    async def fail(batch: AsyncBatch) -> None:
        if batch.shard.shard_id == "a" and batch[0].key["id"] == "k2":
            attempts.append(batch.attempt)
            return await body(batch)  # type: ignore[func-returns-value]
        return None

    worker = world.handling(Seen(world, fail).handle)
    world.until_stored("b")
    world.until(lambda: "stopped by" in worker.statuses()["a"].reason and why in worker.statuses()["a"].reason, 200)

    assert attempts == [0, 1]
    assert world.stored("a") not in (FIRST, CheckpointPosition.SHARD_END), "the batch before it is stored"


# --- leases -----------------------------------------------------------------------------------------------------------


def test_a_batch_in_line_is_taken_back_by_a_stop_and_one_that_is_out_finishes() -> None:
    world = filled("a", "b", count=2)
    hold = world.loop.waiter()

    async def wait(batch: AsyncBatch) -> None:
        await hold

    seen = Seen(world, wait)
    worker = world.handling(seen.handle, line=world.line(1))
    world.until(lambda: bool(seen.out), 200)
    world.advance(2)
    (out,) = seen.out
    waiting = "b" if out == "a" else "a"
    worker.stop()
    world.until(lambda: world.lease(waiting).owner != "w1", 2)

    assert world.lease(out).owner == "w1", "the hand-over waits for a batch that is out"
    hold.ring()
    world.until(lambda: worker.is_over, 10)
    assert [shard for shard, _ in seen.given] == [out]
    assert world.stored(out) != FIRST
    assert world.stored(waiting) == FIRST


def test_the_task_of_a_lost_lease_is_cancelled_and_its_batch_is_left(caplog: pytest.LogCaptureFixture) -> None:
    world = filled(count=2)
    hold = world.loop.waiter()
    refused: list[bool] = []

    async def wait(batch: AsyncBatch) -> None:
        try:
            await hold
        except asyncio.CancelledError:
            refused.append(batch.is_lost)
            with pytest.raises(ShutdownException):
                await batch.commit()
            raise

    seen = Seen(world, wait)
    worker = world.handling(seen.handle)
    world.until(lambda: bool(seen.out), 200)
    assert world.leases.take_lease(world.lease(), "somebody else")
    world.until(lambda: seen.cancelled == ["a"], 100)
    world.until(lambda: not worker.reads, 10)

    assert refused == [True]
    assert world.stored() == FIRST
    assert "Traceback" not in caplog.text
    assert "raised" not in caplog.text


def test_a_handler_that_ignores_its_cancellation_has_not_finished() -> None:
    world = filled(count=2)
    hold = world.loop.waiter()

    async def swallow(batch: AsyncBatch) -> None:
        try:
            await hold
        except asyncio.CancelledError:
            ended.append(batch.is_lost)

    ended: list[bool] = []
    worker = world.handling(swallow)
    world.until(lambda: len(world.loop.tasks) == 1, 200)
    assert world.leases.take_lease(world.lease(), "somebody else")
    world.until(lambda: bool(ended) and not worker.reads, 100)
    assert world.stored() == FIRST


def test_an_event_loop_that_is_blocked_loses_no_lease() -> None:
    world = filled()
    world.close_shards()
    seen = Seen(world)
    settings = {"lease_duration_millis": 9_000, "renewer_interval_millis": 2_000, "taker_interval_millis": 2_000}
    worker = world.handling(seen.handle, limits=CallLimits(user_code_limit_millis=0), **settings)
    world.until(lambda: bool(seen.given), 200)
    world.loop.block()
    world.advance(60)
    assert (world.lease().owner, worker.reads) == ("w1", {"a"})
    world.loop.unblock()
    world.until_stored("a")
    assert seen.of("a") == keys(6)


def test_hand_overs_of_shards_without_a_batch_out_need_no_event_loop() -> None:
    world = filled("a", "b", count=2)
    seen = Seen(world)
    worker = world.handling(seen.handle)
    world.until(lambda: len(seen.given) == 2 and not seen.out, 200)
    world.advance(5)
    world.loop.block()
    worker.stop()
    world.until(lambda: worker.is_over, 3)
    assert {world.lease(shard_id).owner for shard_id in "ab"}.isdisjoint({"w1"})


def test_tasks_that_outlast_the_shutdown_are_cancelled() -> None:
    world = filled(count=2, shutdown_timeout_millis=5_000)
    hold = world.loop.waiter()

    async def wait(batch: AsyncBatch) -> None:
        await hold

    seen = Seen(world, wait)
    worker = world.handling(seen.handle)
    world.until(lambda: bool(seen.out), 200)
    worker.stop()
    world.advance(4)
    assert not seen.cancelled
    world.until(lambda: worker.is_over, 2)
    world.until(lambda: seen.cancelled == ["a"], 1)
    assert world.loop.tasks == []
    assert world.stored() == FIRST


def test_a_closed_event_loop_keeps_no_lease() -> None:
    """Batches that are out are abandoned by the thread that sees it; all later ones are refused."""
    world = filled("a", "b", count=4)
    hold = world.loop.waiter()
    line = world.line()

    async def wait(batch: AsyncBatch) -> None:
        await hold

    seen = Seen(world, wait)
    worker = world.handling(seen.handle, line=line)
    world.until(lambda: len(seen.out) == 2, 200)
    world.loop.close()
    worker.stop()
    line.abandon()
    world.until(lambda: worker.is_over, 2)
    assert {world.lease(shard_id).owner for shard_id in "ab"}.isdisjoint({"w1"})
    assert world.stored("a") == FIRST


def test_a_status_tells_a_batch_that_waits_from_one_that_is_out() -> None:
    limits = CallLimits(slow_processor_warning_millis=30_000, user_code_limit_millis=0)
    world = filled("a", "b", count=2, limits=limits)
    hold = world.loop.waiter()

    async def wait(batch: AsyncBatch) -> None:
        await hold

    seen = Seen(world, wait)
    worker = world.handling(seen.handle, line=world.line(1))
    world.until(lambda: bool(seen.out), 200)
    world.advance(60)
    causes = {key: {reason.cause for reason in status.reasons} for key, status in worker.statuses().items()}
    (out,) = seen.out
    assert causes.pop(out) == {Cause.BATCH_OUT}
    assert list(causes.values()) == [{Cause.BATCH_WAITS}]
    hold.ring()
