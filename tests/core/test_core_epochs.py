"""Epochs: which numbers are used, and when a consumer may start."""

from __future__ import annotations

import pytest
from holdings_driver import Driver, answers, only, row, writes

from streamclient.core import events
from streamclient.core.write_rules import WriteKind, WriteOutcome
from streamclient.model import Shard, ShutdownReason


@pytest.fixture
def driver() -> Driver:
    """It took shard ``a`` and asked for its epoch."""
    driver = Driver(row("a", checkpoint="i1"))
    (take,) = writes(driver.scan())
    assert only(driver.answer(take), events.DrawEpoch) == [events.DrawEpoch("a")]
    return driver


@pytest.fixture
def owner_of_b() -> Driver:
    """Beside another worker, which has shard ``a``."""
    driver = Driver(row("a", "other", 1), row("b"))
    driver.hold()
    return driver


def deletion(driver: Driver) -> list[events.Command]:
    """List the shards without ``a`` until its row shall be deleted; the last commands are not carried out."""
    for _ in range(60):
        driver.now += 6
        driver.others_renew()
        driver.hold()
        driver.settle(driver.renew())
        commands = driver.list_shards(Shard("b"))
        if any(write.kind is WriteKind.DELETE for write in writes(commands)):
            return commands
    raise AssertionError("its row is never deleted")


def started(commands: list[events.Command]) -> list[int]:
    return [start.shard_info.epoch for start in only(commands, events.StartConsumer)]


def test_no_consumer_starts_before_the_epoch_of_its_acquisition_is_known(driver: Driver) -> None:
    assert driver.said("a") == "waiting for the epoch of this acquisition"
    assert not only(driver.log, events.StartConsumer)
    assert started(driver.send(events.Answered(events.DrawEpoch("a"), 7))) == [7]


def test_a_restarted_consumer_keeps_the_epoch_of_the_acquisition(driver: Driver) -> None:
    driver.send(events.Answered(events.DrawEpoch("a"), 7))
    commands = driver.stopped("a")

    assert started(commands) == [7]
    assert not only(commands, events.DrawEpoch)


def test_a_failed_draw_is_repeated_first_at_once_then_after_growing_pauses(driver: Driver) -> None:
    pauses, said = [], []
    for _ in range(4):
        again = driver.send(events.Answered(events.DrawEpoch("a"), error=TimeoutError("no answer")))
        said.append(driver.said("a"))
        start = driver.now
        while not only(again, events.DrawEpoch):
            driver.now = driver.holdings.next_deadline(driver.now) or 0
            again = driver.send(events.Tick())
        pauses.append(driver.now - start)

    assert pauses == pytest.approx([0, 1, 2, 4])
    assert said[0] == "waiting for the epoch of this acquisition (drawing it failed once: TimeoutError: no answer)"
    assert said[3] == "waiting for the epoch of this acquisition (drawing it failed 4 times: TimeoutError: no answer)"


def test_a_number_that_arrives_after_the_lease_ran_out_is_never_used(driver: Driver) -> None:
    """Somebody else may have taken the lease and drawn a greater one in between, and then have lost it again."""
    driver.tick_at(driver.now + 19)
    assert not driver.holdings.held
    (take,) = writes(driver.scan())
    # One draw per lease at a time: the new acquisition waits for the answer to the old one.
    assert not only(driver.answer(take), events.DrawEpoch)
    commands = driver.send(events.Answered(events.DrawEpoch("a"), 1))

    assert only(commands, events.DrawEpoch) == [events.DrawEpoch("a")]
    assert not only(commands, events.StartConsumer)
    assert started(driver.send(events.Answered(events.DrawEpoch("a"), 3))) == [3]


def test_a_number_that_arrives_with_the_end_of_validity_is_too_late(driver: Driver) -> None:
    driver.now += 19
    assert not only(driver.send(events.Answered(events.DrawEpoch("a"), 1)), events.StartConsumer)
    assert not driver.holdings.held


def test_an_epoch_nobody_asked_for_is_ignored(driver: Driver) -> None:
    driver.send(events.Answered(events.DrawEpoch("a"), 1))
    driver.send(events.Answered(events.DrawEpoch("a"), 9))

    assert driver.holdings.held["a"].acquisition.epoch == 1
    assert driver.send(events.Answered(events.DrawEpoch("b"), 9)) == []


def test_no_epoch_is_drawn_for_finished_leases_nor_for_those_that_are_given_away() -> None:
    driver = Driver(row("a", checkpoint="SHARD_END"), row("b"), row("other", "x", 1))
    writes_of_takes = writes(driver.scan())
    driver.send(events.StopRequested())
    commands = [command for take in writes_of_takes for command in driver.answer(take)]

    assert not only(commands, events.DrawEpoch)


@pytest.mark.parametrize("comes_back", ["reset", "deleted"])
@pytest.mark.parametrize(("next_epoch", "goes_on"), [(8, True), (9, False)])
def test_after_its_row_came_back_a_consumer_goes_on_only_if_nobody_else_drew(
    driver: Driver, comes_back: str, next_epoch: int, goes_on: bool
) -> None:
    driver.send(events.Answered(events.DrawEpoch("a"), 7))
    old = driver.holdings.held["a"].identifier
    driver.now += 6
    if comes_back == "reset":
        driver.table["a"] = row("a")
        commands = driver.settle_without_epochs(driver.renew())
    else:
        del driver.table["a"]
        driver.settle_without_epochs(driver.renew())
        commands = driver.settle_without_epochs(driver.list_shards(Shard("a")))
    assert only(commands, events.DrawEpoch) == [events.DrawEpoch("a")]
    commands = driver.send(events.Answered(events.DrawEpoch("a"), next_epoch))

    stops = [] if goes_on else [events.StopConsumer("a", old, ShutdownReason.ZOMBIE)]
    assert only(commands, events.StopConsumer) == stops
    assert started(driver.stopped("a", identifier=old)) == [next_epoch]


def test_a_checkpoint_under_way_is_unknown_to_a_consumer_that_is_ended_for_its_epoch(driver: Driver) -> None:
    driver.send(events.Answered(events.DrawEpoch("a"), 7))
    driver.table["a"] = row("a")
    driver.now += 6
    driver.settle_without_epochs(driver.renew())
    driver.checkpoint("a", "i2")

    assert answers(driver.send(events.Answered(events.DrawEpoch("a"), 9))) == [(1, "unknown")]


def test_a_consumer_that_starts_anew_waits_for_the_checkpoint_under_way(driver: Driver) -> None:
    """It would read again what lies before that checkpoint, and store an earlier one over it."""
    driver.send(events.Answered(events.DrawEpoch("a"), 7))
    driver.table["a"] = row("a")
    driver.now += 6
    driver.settle_without_epochs(driver.renew())
    (write,) = writes(driver.checkpoint("a", "i2"))
    driver.send(events.Answered(events.DrawEpoch("a"), 9))
    assert not only(driver.stopped("a", identifier="t1"), events.StartConsumer)
    assert driver.said("a") == "a checkpoint of the previous processor is under way"
    commands = driver.answer(write)

    assert [start.checkpoint for start in only(commands, events.StartConsumer)] == ["i2"]


def test_the_epoch_is_forgotten_with_the_lease_of_a_shard_that_left_the_stream(owner_of_b: Driver) -> None:
    assert only(owner_of_b.settle(deletion(owner_of_b)), events.ForgetEpoch) == [events.ForgetEpoch("a")]
    assert "a" not in owner_of_b.table


def test_a_refused_deletion_forgets_nothing(owner_of_b: Driver) -> None:
    (delete,) = writes(deletion(owner_of_b))
    assert not only(owner_of_b.answer(delete, WriteOutcome.REFUSED), events.ForgetEpoch)


def test_a_deletion_that_came_behind_a_heartbeat_is_repeated_with_the_row_as_it_is(owner_of_b: Driver) -> None:
    """The owner goes on renewing, and the last scan is older than its last heartbeat."""
    commands = deletion(owner_of_b)
    owner_of_b.others_renew()
    commands = owner_of_b.settle(commands)

    assert "a" not in owner_of_b.table
    assert only(commands, events.ForgetEpoch) == [events.ForgetEpoch("a")]
    assert len([write for write in writes(commands) if write.kind is WriteKind.DELETE]) == 2


def test_a_row_of_a_shard_that_is_listed_again_is_not_deleted_after_all(owner_of_b: Driver) -> None:
    (delete,) = writes(deletion(owner_of_b))
    owner_of_b.others_renew()
    owner_of_b.answer(delete)
    owner_of_b.list_shards(Shard("a"), Shard("b"))

    assert writes(owner_of_b.read_back("a")) == []
