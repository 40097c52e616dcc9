"""Async processors: made in the event loop, one per acquisition of a shard, with the laws of the others."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from streamclient import FailurePolicy
from streamclient.base.reasons import Cause
from streamclient.interfaces import InitializationInput
from streamclient.model import CheckpointPosition, OnFailure, ShutdownReason
from streamclient.worker.handlers.batches import AsyncBatch, AsyncRecordProcessor
from tests.handlers.stepping import AsyncStage
from tests.worker.stage import keys

FIRST = CheckpointPosition.TRIM_HORIZON


class Journal:
    def __init__(self, world: AsyncStage) -> None:
        self.world = world
        self.lines: list[tuple[str, object]] = []
        self.commits = True
        self.hold: Any = None

    def of(self, what: str) -> list[object]:
        return [detail for name, detail in self.lines if name == what]


class Recording(AsyncRecordProcessor):
    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        journal.lines.append(("made", None))

    async def initialize(self, initialization_input: InitializationInput) -> None:
        await self.journal.world.sleep(0.1)
        self.shard_id = initialization_input.shard_info.shard_id
        self.journal.lines.append(("initialize", self.shard_id))

    async def process_records(self, batch: AsyncBatch) -> None:
        await self.journal.world.sleep(0.1)
        if self.journal.hold is not None:
            await self.journal.hold
        self.journal.lines.append(("process", [record.key["id"] for record in batch]))
        if self.journal.commits:
            await batch.commit()


class Ending(Recording):
    """Has a ``shutdown`` that commits, unless the lease is lost."""

    async def shutdown(self, reason: ShutdownReason, commit: Any) -> None:
        await self.journal.world.sleep(0.1)
        self.journal.lines.append(("shutdown", reason))
        if reason is not ShutdownReason.ZOMBIE:
            await commit()


@pytest.fixture
def world() -> AsyncStage:
    world = AsyncStage("a", failure_policy=FailurePolicy(retries=0, then=OnFailure.STOP_SHARD))
    world.write("a", 4)
    return world


def test_a_processor_is_made_initialised_given_batches_and_shut_down_in_turn(world: AsyncStage) -> None:
    world.close_shards()
    journal = Journal(world)
    world.handling(partial(Ending, journal))
    world.until(lambda: bool(journal.of("shutdown")), 200)

    assert world.stored() == CheckpointPosition.SHARD_END
    assert journal.lines[:4] == [("made", None), ("initialize", "a"), ("process", keys(2)), ("process", keys(2, 2))]
    assert journal.of("shutdown")[0] is ShutdownReason.TERMINATE


def test_nothing_is_stored_without_a_commit_and_shutdown_may_commit_all(world: AsyncStage) -> None:
    journal = Journal(world)
    journal.commits = False
    worker = world.handling(partial(Ending, journal))
    world.until(lambda: len(journal.of("process")) == 2, 200)
    world.advance(2)
    assert world.stored() == FIRST
    world.stop(worker)
    assert journal.of("shutdown") == [ShutdownReason.STOLEN]
    assert world.stored() != FIRST


@pytest.mark.parametrize("commits", [True, False])
def test_without_shutdown_the_end_is_stored_only_if_everything_is(world: AsyncStage, commits: bool) -> None:
    world.close_shards()
    journal = Journal(world)
    journal.commits = commits
    worker = world.handling(partial(Recording, journal))
    if commits:
        world.until_stored("a")
        return
    world.until(
        lambda: any(reason.cause is Cause.END_NOT_STORED for reason in _reasons(worker)),
        200,
    )
    assert world.stored() == FIRST


def _reasons(worker: Any) -> list[Any]:
    return [reason for status in worker.statuses().values() for reason in status.reasons]


class Unmade(AsyncRecordProcessor):
    def __init__(self) -> None:
        raise OSError("no disk")

    async def process_records(self, batch: AsyncBatch) -> None:
        """Never called."""


class Uninitialised(Unmade):
    shutdowns: list[ShutdownReason]

    def __init__(self, shutdowns: list[ShutdownReason]) -> None:
        self.shutdowns = shutdowns

    async def initialize(self, initialization_input: InitializationInput) -> None:
        raise OSError("no connection")

    async def shutdown(self, reason: ShutdownReason, commit: Any) -> None:
        self.shutdowns.append(reason)


def test_a_processor_that_cannot_be_made_is_tried_again_and_its_shard_says_why(world: AsyncStage) -> None:
    worker = world.handling(Unmade)
    world.until(lambda: "no disk" in "".join(reason.detail for reason in _reasons(worker)), 60)
    assert worker.statuses()["a"].failures > 0


def test_a_processor_that_fails_to_begin_is_shut_down(world: AsyncStage) -> None:
    shutdowns: list[ShutdownReason] = []
    world.handling(partial(Uninitialised, shutdowns))
    world.until(lambda: len(shutdowns) >= 2, 60)
    assert set(shutdowns) == {ShutdownReason.PROCESS_RESTART}


def test_a_processor_of_a_lost_lease_is_cancelled_and_then_shut_down(world: AsyncStage) -> None:
    journal = Journal(world)
    journal.hold = world.loop.waiter()
    worker = world.handling(partial(Ending, journal))
    world.until(lambda: bool(journal.of("initialize")), 200)
    world.advance(1)
    assert world.leases.take_lease(world.lease(), "somebody else")
    world.until(lambda: bool(journal.of("shutdown")), 100)

    assert journal.of("shutdown") == [ShutdownReason.ZOMBIE]
    assert journal.of("process") == []
    assert worker.error is None


class Slow(Ending):
    async def initialize(self, initialization_input: InitializationInput) -> None:
        self.journal.lines.append(("begins", None))
        try:
            await self.journal.hold
        except asyncio.CancelledError:
            self.journal.lines.append(("cancelled", None))
            raise


def test_an_initialisation_that_is_cancelled_is_followed_by_shutdown(world: AsyncStage) -> None:
    journal = Journal(world)
    journal.hold = world.loop.waiter()
    world.handling(partial(Slow, journal))
    world.until(lambda: bool(journal.of("begins")), 200)
    assert world.leases.take_lease(world.lease(), "somebody else")
    world.until(lambda: bool(journal.of("shutdown")), 100)
    assert [name for name, _ in journal.lines] == ["made", "begins", "cancelled", "shutdown"]


def test_what_fails_in_process_records_meets_the_policy(world: AsyncStage) -> None:
    class Failing(Recording):
        async def process_records(self, batch: AsyncBatch) -> None:
            batch.fail(ValueError("bad record"))

    journal = Journal(world)
    worker = world.handling(partial(Failing, journal))
    world.until(lambda: "bad record" in "".join(reason.detail for reason in _reasons(worker)), 60)
    assert world.stored() == FIRST


def test_a_last_call_waits_for_no_other_call_of_the_line() -> None:
    world = AsyncStage("a", "b")
    for shard_id in "ab":
        world.write(shard_id, 2)
    journal = Journal(world)
    line = world.line(1)
    worker = world.handling(partial(Ending, journal), line=line)
    world.until(lambda: len(journal.of("process")) == 2, 200)
    world.advance(2)
    journal.hold = world.loop.waiter()
    world.write("a", 2, 2)
    world.advance(5)
    worker.stop()
    world.until(lambda: len(journal.of("shutdown")) == 1, 10)
    journal.hold.ring()
    world.until(lambda: worker.is_over, 20)
    assert len(journal.of("shutdown")) == 2
