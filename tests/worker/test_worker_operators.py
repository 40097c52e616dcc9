"""What operators write into lease rows, obeyed by real workers on virtual time."""

from __future__ import annotations

from streamclient.core import leases as rule
from streamclient.core.leases import LeaseWrite
from streamclient.core.write_rules import WriteOutcome
from streamclient.interfaces import ProcessRecordsInput
from streamclient.model import Pause, ShardState, ShutdownReason
from streamclient.testing.simulation.workers import SimulatedWorker
from tests.placed_records import make_record
from tests.simulation.scene import RecordingProcessor
from tests.worker.stage import Stage

PAUSE = Pause("r1", "ann@host", "weekly maintenance")


def operate(world: Stage, write: LeaseWrite) -> None:
    (answer,) = world.leases.write_many([write])
    assert answer.outcome is WriteOutcome.ACCEPTED


def append(world: Stage, *keys: str) -> None:
    world.stream.append("a", *(make_record(key, number) for number, key in enumerate(keys)))


def reading() -> tuple[Stage, SimulatedWorker]:
    """A worker that has accepted two records of shard ``a``."""
    world = Stage("a")
    append(world, "k1", "k2")
    worker = world.worker()
    world.until(lambda: world.journal.accepted["a"] == ["k1", "k2"], 60)
    return world, worker


def test_an_operators_pause_is_obeyed_acknowledged_and_ended() -> None:
    world, worker = reading()
    operate(world, rule.set_pause(world.lease(), PAUSE))
    world.until(lambda: world.lease().is_paused_by_owner, 10)
    append(world, "k3")
    world.advance(60)
    status = worker.statuses()["a"]
    assert (status.state, status.reason) == (ShardState.PAUSED, "paused by ann@host: weekly maintenance")
    assert world.journal.delivered("a") == ["k1", "k2"]
    assert world.journal.shutdowns("a") == [ShutdownReason.PAUSED]
    assert world.owner("a") == "w1"

    operate(world, rule.set_pause(world.lease(), None))
    world.until(lambda: world.journal.accepted["a"] == ["k1", "k2", "k3"], 10)


def test_a_rewind_under_a_running_consumer_ends_it() -> None:
    """Nothing that it stores afterwards counts."""
    world, worker = reading()
    operate(world, rule.rewind(world.lease(), "a@0"))
    refused: list[Exception] = []

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        try:
            world.journal.checkpoint_batch(processor, given)
        except Exception as error:
            refused.append(error)
            raise

    world.journal.on_process = process
    append(world, "k3")
    world.until(lambda: world.checkpoint("a") == "a@3", 60)

    assert world.journal.delivered("a") in (
        ["k1", "k2", "k1", "k2", "k3"],
        ["k1", "k2", "k3", "k1", "k2", "k3"],
    )
    assert world.journal.shutdowns("a") == [ShutdownReason.ZOMBIE]
    assert worker.statuses()["a"].state is ShardState.PROCESSING
    assert all("no longer holds the lease" in str(error) for error in refused)
