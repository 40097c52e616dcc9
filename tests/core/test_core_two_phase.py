"""Checkpoints in two phases, and the progress that is stored with them."""

from __future__ import annotations

import pytest
from attrs import evolve
from holdings_driver import Driver, answers, only, reader, row, writes

from streamclient.core import events
from streamclient.core.shards import COUNTERS_BETWEEN
from streamclient.core.write_rules import WriteKind, WriteOutcome
from streamclient.errors import ConfigurationError
from streamclient.model import Lease, Pause, PendingCheckpoint, Progress, Shard

PENDING = PendingCheckpoint("i2", b"tx-1", 10, 1)
PROGRESS = Progress(5, 100, 2_000)


def prepare(driver: Driver, pending: PendingCheckpoint = PENDING, request_id: int = 1) -> list[events.Command]:
    identifier = driver.holdings.held["a"].identifier
    return driver.send(events.CheckpointRequested(request_id, "a", identifier, pending.value, pending=pending))


def starts(commands: list[events.Command]) -> list[tuple[str, PendingCheckpoint | None, Progress | None]]:
    return [(start.checkpoint, start.pending, start.progress) for start in only(commands, events.StartConsumer)]


def test_what_is_prepared_stands_beside_the_checkpoint_until_one_is_stored(driver: Driver) -> None:
    assert answers(driver.settle(prepare(driver))) == [(1, "stored")]
    assert driver.table["a"] == row("a", "me", 2, checkpoint="i1", pending=PENDING)

    driver.settle(driver.checkpoint("a", "i2", 2))
    assert driver.table["a"] == row("a", "me", 3, checkpoint="i2")


def test_storing_once_more_what_is_stored_leaves_what_is_prepared_behind_it(driver: Driver) -> None:
    """A processor that failed before it looked stores its position at its end."""
    driver.settle(prepare(driver))
    assert answers(driver.settle(driver.checkpoint("a", "i1", 2))) == [(2, "stored")]
    assert driver.table["a"] == row("a", "me", 3, checkpoint="i1", pending=PENDING)

    driver.settle(prepare(driver, evolve(PENDING, value="i1"), 3))
    driver.settle(driver.checkpoint("a", "i1", 4))
    assert driver.table["a"] == row("a", "me", 5, checkpoint="i1"), "what is completed is gone, where it stands already"


def test_preparing_again_replaces_what_was_prepared(driver: Driver) -> None:
    driver.settle(prepare(driver))
    driver.settle(prepare(driver, evolve(PENDING, state=b"tx-2"), 2))
    assert driver.table["a"].pending == evolve(PENDING, state=b"tx-2")


def test_a_new_consumer_is_told_what_was_prepared_and_how_far_the_shard_got(driver: Driver) -> None:
    driver.send(events.CheckpointRequested(1, "a", "t1", "i2", progress=PROGRESS))
    driver.settle(driver.log[-1:])
    pending = evolve(PENDING, value="i3")
    driver.settle(prepare(driver, pending, 2))
    assert starts(driver.stopped("a")) == [("i2", pending, PROGRESS)]

    other = Driver(driver.table["a"], name="other")
    other.hold()
    other.now += 21
    assert starts(other.hold()) == [("i2", pending, PROGRESS)]


def test_equal_checkpoints_go_out_together_and_a_preparation_of_the_same_position_by_itself(driver: Driver) -> None:
    (first,) = writes(driver.checkpoint("a", "i2", 1))
    driver.checkpoint("a", "i2", 2)
    prepare(driver, request_id=3)
    prepare(driver, request_id=4)
    driver.checkpoint("a", "i2", 5)
    commands = driver.settle(driver.answer(first))

    assert answers(commands) == [(1, "stored"), (2, "stored"), (3, "stored"), (4, "stored"), (5, "stored")]
    assert [write.kind for write in writes(commands)] == [WriteKind.CHECKPOINT, WriteKind.PREPARE, WriteKind.CHECKPOINT]


@pytest.mark.parametrize("lands", [True, False])
def test_an_uncertain_preparation_is_read_back(driver: Driver, lands: bool) -> None:
    (write,) = writes(prepare(driver))
    if lands:
        driver.land(write)
    driver.answer(write, WriteOutcome.UNCERTAIN)
    commands = driver.settle(driver.read_back("a"))

    assert answers(commands) == [(1, "stored")]
    assert driver.table["a"].pending == PENDING
    assert len(writes(commands)) == (0 if lands else 1)


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (row("a", "other", 2, checkpoint="i1"), "lease_lost"),
        (row("a", "other", 3, checkpoint="i1", pending=PENDING), "stored"),
        (row("a", "other", 9, checkpoint="i1"), "lease_lost"),
        (row("a", "other", 9, checkpoint="i2"), "unknown"),
    ],
)
def test_a_preparation_in_doubt_on_a_lost_lease_is_answered_by_what_the_row_shows(
    driver: Driver, found: Lease, outcome: str
) -> None:
    (write,) = writes(prepare(driver))
    driver.answer(write, WriteOutcome.UNCERTAIN)
    driver.table["a"] = found

    assert answers(driver.read_back("a")) == [(1, outcome)]


def test_what_the_store_cannot_do_is_rejected_and_the_lease_stays(driver: Driver) -> None:
    (write,) = writes(prepare(driver))
    driver.checkpoint("a", "i2", 2)
    error = ConfigurationError("no pending checkpoints here")
    commands = driver.send(events.Answered(events.WriteLease(write), WriteOutcome.UNCERTAIN, driver.now, error=error))

    assert only(commands, events.AnswerCheckpoint) == [
        events.AnswerCheckpoint(1, events.CheckpointOutcome.REJECTED, error)
    ]
    assert answers(driver.settle(commands)) == [(1, "rejected"), (2, "stored")]
    assert driver.table["a"].checkpoint == "i2"


@pytest.mark.parametrize("damage", ["reset", "deleted"])
def test_a_row_that_was_lost_comes_back_with_everything_it_had(damage: str) -> None:
    pause = Pause("r1", "ann", "maintenance")
    driver = reader()
    driver.send(events.CheckpointRequested(1, "a", "t1", "i2", progress=PROGRESS))
    driver.settle(driver.log[-1:])
    driver.settle(prepare(driver, request_id=2))
    driver.table["a"] = evolve(driver.table["a"], pause=pause)
    driver.scan()
    driver.settle(driver.stopped("a"))
    before = driver.table.pop("a")
    assert (before.pending, before.progress, before.pause, before.is_paused_by_owner) == (
        PENDING,
        PROGRESS,
        pause,
        True,
    )
    if damage == "reset":
        driver.table["a"] = row("a")
    driver.renew_later()
    driver.settle(driver.list_shards(Shard("a")))

    assert evolve(driver.table["a"], counter=before.counter) == before


def test_a_vanished_row_of_somebody_else_is_created_again_with_what_it_had() -> None:
    seen = row("a", "x", 5, checkpoint="i3", pending=PENDING, progress=PROGRESS, pause_taken="r0 x")
    driver = Driver(seen, row("b", "me", 1))
    driver.scan()
    del driver.table["a"]
    driver.now += 6
    driver.scan()
    driver.settle(driver.list_shards(Shard("a"), Shard("b")))

    created = row("a", "", 5 + COUNTERS_BETWEEN, checkpoint="i3", pending=PENDING, progress=PROGRESS)
    assert driver.table["a"] in (created, evolve(created, owner="me", counter=created.counter + 1))
