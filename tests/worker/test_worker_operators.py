"""What operators write into lease rows, obeyed by real workers on virtual time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from streamclient.core import leases as rule
from streamclient.core.leases import LeaseWrite
from streamclient.core.write_rules import WriteOutcome
from streamclient.errors import DependencyException
from streamclient.interfaces import InitializationInput, ProcessRecordsInput
from streamclient.model import Lease, Pause, ShardState, ShutdownReason
from streamclient.testing.fakes import make_record
from streamclient.testing.simulation.scene import FaultyLeases, RecordingProcessor, World
from streamclient.testing.simulation.workers import SimulatedWorker
from streamclient.worker.lease import MemoryLeaseManager

PAUSE = Pause("r1", "ann@host", "weekly maintenance")
WALL_AT_ZERO = 1_600_000_000_000_000
"""The wall clock of the harness when its other clock shows 0."""


def lease(world: World) -> Lease:
    found = world.leases.get_lease("a")
    assert found is not None
    return found


def operate(world: World, write: LeaseWrite) -> None:
    (answer,) = world.leases.write_many([write])
    assert answer.outcome is WriteOutcome.ACCEPTED


def append(world: World, *keys: str) -> None:
    world.stream.append("a", *(make_record(key, number) for number, key in enumerate(keys)))


def reading() -> tuple[World, SimulatedWorker]:
    """A worker that has accepted two records of shard ``a``."""
    world = World("a")
    append(world, "k1", "k2")
    worker = world.worker()
    world.simulation.until(lambda: world.journal.accepted["a"] == ["k1", "k2"], 60)
    return world, worker


def test_an_operators_pause_is_obeyed_acknowledged_and_ended() -> None:
    world, worker = reading()
    operate(world, rule.set_pause(lease(world), PAUSE))
    world.simulation.until(lambda: lease(world).is_paused_by_owner, 10)
    append(world, "k3")
    world.simulation.advance(60)
    status = worker.statuses()["a"]
    assert (status.state, status.reason) == (ShardState.PAUSED, "paused by ann@host: weekly maintenance")
    assert world.journal.delivered("a") == ["k1", "k2"]
    assert world.journal.shutdowns("a") == [ShutdownReason.PAUSED]
    assert world.owner("a") == "w1"

    operate(world, rule.set_pause(lease(world), None))
    world.simulation.until(lambda: world.journal.accepted["a"] == ["k1", "k2", "k3"], 10)


def test_a_pause_ends_at_its_time_by_the_wall_clock() -> None:
    world, _ = reading()
    end = world.simulation.now + 40.0
    until = WALL_AT_ZERO + int(end * 1_000_000)
    operate(world, rule.set_pause(lease(world), Pause("r1", "ann", "for a while", until)))
    world.simulation.until(lambda: lease(world).is_paused_by_owner, 10)
    append(world, "k3")
    world.simulation.until(lambda: "k3" in world.journal.delivered("a"), 60)

    assert 0 <= world.simulation.now - end < 1


def test_a_paused_shard_moves_with_a_stopping_worker_and_stays_paused() -> None:
    world, worker = reading()
    operate(world, rule.set_pause(lease(world), PAUSE))
    other = world.worker("w2")
    world.simulation.until(lambda: lease(world).is_paused_by_owner, 30)
    worker.stop()
    world.simulation.until(lambda: worker.is_over, 30)
    world.simulation.until(lambda: lease(world).pause_taken == "r1 w2", 60)
    append(world, "k3")
    world.simulation.advance(30)

    assert world.journal.delivered("a") == ["k1", "k2"]
    assert other.statuses()["a"].reason == "paused by ann@host: weekly maintenance"


def test_a_rewind_of_a_paused_shard_is_where_reading_resumes() -> None:
    world, _ = reading()
    operate(world, rule.set_pause(lease(world), PAUSE))
    world.simulation.until(lambda: lease(world).is_paused_by_owner, 10)
    operate(world, rule.rewind(lease(world), "a@1"))
    operate(world, rule.set_pause(lease(world), None))
    world.simulation.until(lambda: world.checkpoint("a") == "a@2", 20)

    assert world.journal.delivered("a") == ["k1", "k2", "k2"]


def test_a_rewind_under_a_running_consumer_ends_it() -> None:
    """Nothing that it stores afterwards counts."""
    world, worker = reading()
    operate(world, rule.rewind(lease(world), "a@0"))
    refused: list[Exception] = []

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        try:
            world.journal.checkpoint_batch(processor, given)
        except Exception as error:
            refused.append(error)
            raise

    world.journal.on_process = process
    append(world, "k3")
    world.simulation.until(lambda: world.checkpoint("a") == "a@3", 60)

    assert world.journal.delivered("a") in (
        ["k1", "k2", "k1", "k2", "k3"],
        ["k1", "k2", "k3", "k1", "k2", "k3"],
    )
    assert world.journal.shutdowns("a") == [ShutdownReason.ZOMBIE]
    assert worker.statuses()["a"].state is ShardState.PROCESSING
    assert all("no longer holds the lease" in str(error) for error in refused)


def test_a_released_lease_is_left_alone_for_a_lease_duration() -> None:
    world, _ = reading()
    released_at = world.simulation.now
    operate(world, rule.release(lease(world)))
    world.simulation.until(lambda: world.journal.shutdowns("a") == [ShutdownReason.ZOMBIE], 10)
    append(world, "k3")
    world.simulation.until(lambda: "k3" in world.journal.accepted["a"], 60)

    assert world.simulation.now - released_at > 20


def test_each_processor_is_told_the_epoch_of_its_acquisition() -> None:
    epochs: list[tuple[str, int]] = []
    world = World("a")

    def note(processor: RecordingProcessor, given: InitializationInput) -> None:
        epochs.append((world.owner("a"), given.shard_info.epoch))

    world.journal.on_initialize = note
    first = world.worker("w1")
    world.simulation.until(lambda: len(epochs) == 1, 30)
    first.kill()
    second = world.worker("w2")
    world.simulation.until(lambda: len(epochs) == 2, 120)
    second.stop()
    world.worker("w3")
    world.simulation.until(lambda: len(epochs) == 3, 120)

    assert epochs == [("w1", 1), ("w2", 2), ("w3", 3)]


class NoEpochs(FaultyLeases):
    """Draws fail as long as told."""

    fails = True
    draws = 0

    def draw_epochs(self, lease_keys: Sequence[str]) -> Sequence[int | Exception]:
        self.draws += 1
        if self.fails:
            return [DependencyException("throttled")] * len(lease_keys)
        return super().draw_epochs(lease_keys)


def test_nothing_is_read_until_the_epoch_is_known_and_the_status_names_why() -> None:
    world = World("a")
    table = NoEpochs(world.stream.stream_id)
    worker = world.worker(lease_manager=table)
    world.simulation.advance(30)
    assert "waiting for the epoch of this acquisition (drawing it failed" in worker.statuses()["a"].reason
    assert "throttled" in worker.statuses()["a"].reason
    assert table.draws < 12
    table.fails = False
    world.simulation.until(lambda: worker.reads == {"a"}, 10)


@pytest.mark.parametrize("damage", ["reset", "deleted"])
def test_a_consumer_reads_on_when_its_row_comes_back_and_nobody_else_drew(damage: str) -> None:
    world, _ = reading()
    before = lease(world)
    world.leases.delete_lease(before)
    if damage == "reset":
        world.leases.create_lease(Lease("a", before.stream_id))
    append(world, "k3")
    world.simulation.until(lambda: world.journal.accepted["a"] == ["k1", "k2", "k3"], 30)
    world.simulation.advance(30)

    assert world.checkpoint("a") == "a@3"
    assert world.leases.draw_epoch("a") == 3
    assert world.journal.shutdowns("a") == []
    assert isinstance(world.leases, MemoryLeaseManager)
