"""Giving leases away: marks, done processors, stopping workers; one path per rule."""

from __future__ import annotations

import pytest
from holdings_driver import Driver, answers, only, reader, row, scanned, writes

from streamclient.core import events, leases
from streamclient.core.events import ConsumerEnd
from streamclient.core.leases import LeaseWrite
from streamclient.core.write_rules import WriteKind, WriteOutcome, apply_write
from streamclient.errors import ConfigurationError
from streamclient.model import ShardState, ShutdownReason

# --- marks and hand-over ---------------------------------------------------------------------------------------------


def mark(driver: Driver, stealer: str = "other") -> None:
    driver.table["a"] = apply_write(driver.table["a"], leases.steal(driver.table["a"], stealer)) or row("a")


def test_mark_is_noticed_on_the_very_next_renewal(driver: Driver) -> None:
    """The lease stays renewed while its consumer finishes, and then goes to who asked."""
    mark(driver)
    commands = driver.renew_later()
    assert [stop.reason for stop in only(commands, events.StopConsumer)] == [ShutdownReason.STOLEN]
    assert driver.table["a"] == row("a", "me", 2, stealer="other", checkpoint="i1")

    assert answers(driver.settle(driver.checkpoint("a", "i2"))) == [(1, "stored")]
    driver.settle(driver.stopped("a"))
    assert driver.table["a"] == row("a", "other", 4, stealer="other", checkpoint="i2")
    assert not driver.holdings.held


def test_mark_is_noticed_in_a_scan_that_is_older_than_the_last_heartbeat(driver: Driver) -> None:
    mark(driver)
    seen = tuple(driver.table.values())
    driver.send(events.TakeDue())
    driver.table["a"] = row("a", "me", 1, checkpoint="i1")
    driver.settle(driver.checkpoint("a", "i2"))
    commands = driver.send(scanned(seen))

    assert [stop.reason for stop in only(commands, events.StopConsumer)] == [ShutdownReason.STOLEN]


def test_mark_from_before_the_take_is_not_believed() -> None:
    driver = Driver(row("a", "me", 8, stealer="me"))
    driver.hold()
    driver.send(events.TakeDue())

    assert not only(driver.send(scanned((row("a", "me", 8, stealer="other"),))), events.StopConsumer)


def test_marked_lease_that_waits_for_its_parents_is_handed_over_at_once() -> None:
    driver = Driver(row("p", "z", 3), row("a", parent_shard_ids={"p"}), row("b", "me", 1))
    driver.hold()
    assert driver.holdings.held["a"].state is ShardState.WAITING_ON_PARENT_SHARDS
    assert "parent p is not finished" in driver.said("a")
    mark(driver)
    driver.settle(driver.scan())

    assert driver.table["a"].owner == driver.table["a"].stealer == "other"


def test_marked_finished_lease_is_handed_over_without_a_consumer() -> None:
    driver = Driver(row("a", checkpoint="SHARD_END"))
    assert not only(driver.hold(), events.StartConsumer)
    assert driver.holdings.held["a"].state is ShardState.SHUTDOWN_COMPLETE
    mark(driver)
    driver.renew_later()

    assert driver.table["a"].owner == "other"


def test_mark_of_a_worker_that_died_meanwhile_is_erased_and_reading_goes_on() -> None:
    """Handing over to a dead worker would leave the shard unread for a lease duration."""
    driver = Driver(row("a", checkpoint="i1"), row("d", "other", 5))
    driver.hold()
    mark(driver)
    first = driver.holdings.held["a"].identifier
    for _ in range(5):
        driver.renew_later()
        driver.settle(driver.scan())
    assert driver.table["a"].stealer == ""
    commands = driver.settle(driver.stopped("a", identifier=first))

    assert [start.shard_info.shard_id for start in only(commands, events.StartConsumer)] == ["a"]
    assert driver.table["a"].owner == "me"
    assert driver.holdings.held["a"].identifier != first


def test_mark_of_a_joining_worker_without_any_lease_is_served(driver: Driver) -> None:
    driver.tick_at(driver.now + 50)
    driver.stopped("a", identifier="t1")
    driver.hold()
    mark(driver, "joining")
    driver.renew_later()
    driver.settle(driver.stopped("a"))

    assert driver.table["a"].owner == "joining"


def test_no_consumer_starts_while_a_transfer_may_still_land() -> None:
    """The transfer's fate is unknown, the mark turned out void: only an accepted write makes the lease safe again."""
    driver = Driver(row("a", checkpoint="i1"), row("d", "other", 5))
    driver.hold()
    mark(driver)
    driver.settle(driver.scan())
    for _ in range(3):
        driver.renew_later()
    (transfer,) = writes(driver.stopped("a"))
    assert transfer.kind is WriteKind.TRANSFER
    driver.answer(transfer, WriteOutcome.UNCERTAIN)
    driver.now += 3
    assert not only(driver.scan(), events.StartConsumer)
    commands = driver.settle(driver.read_back("a"))

    assert driver.table["a"] == row("a", "me", 5, checkpoint="i1")
    assert [start.shard_info.shard_id for start in only(commands, events.StartConsumer)] == ["a"]


# --- done and stop ---------------------------------------------------------------------------------------------------


def test_shard_whose_processor_is_done_is_released_and_not_taken_again(driver: Driver) -> None:
    assert writes(driver.settle(driver.stopped("a", ConsumerEnd.DONE))) == []
    assert not driver.holdings.held
    driver.now += 30

    assert writes(driver.scan()) == []


def test_shard_whose_processor_is_done_goes_to_another_worker() -> None:
    driver = Driver(row("a"), row("b", "other", 4))
    driver.hold()
    driver.settle(driver.stopped("a", ConsumerEnd.DONE))

    assert driver.table["a"].owner == driver.table["a"].stealer == "other"


def test_stopping_worker_takes_nothing_and_hands_over_what_it_held() -> None:
    """Consumers stop first, with a checkpoint that works; then the lease goes straight to a live worker."""
    driver = Driver(row("a"), row("b", "other", 4), row("f", checkpoint="SHARD_END"))
    driver.hold()
    driver.now += 6
    driver.others_renew()
    driver.settle(driver.scan())
    commands = driver.settle(driver.send(events.StopRequested()))
    assert [stop.reason for stop in only(commands, events.StopConsumer)] == [ShutdownReason.STOLEN]
    assert not driver.holdings.is_drained

    assert answers(driver.settle(driver.checkpoint("a", "i9"))) == [(1, "stored")]
    driver.settle(driver.stopped("a"))
    assert driver.holdings.is_drained
    assert driver.table["a"] == row("a", "other", 3, stealer="other", checkpoint="i9")


def test_stopping_worker_avoids_a_neighbour_that_is_leaving_too() -> None:
    """The leaving one is less loaded, and would be chosen otherwise."""
    driver = Driver(
        row("a"), row("b", "leaving", 4), row("c", "leaving", 4), row("d", "staying", 4), row("e", "staying", 4)
    )
    driver.hold()
    driver.now += 6
    driver.others_renew()
    driver.table["c"] = row("c", "staying", 6, stealer="staying")
    driver.settle(driver.scan())
    driver.send(events.StopRequested())
    driver.settle(driver.stopped("a"))

    assert driver.table["a"].owner == "staying"


def stopped_alone() -> tuple[Driver, LeaseWrite]:
    """A worker that stops with nobody there, and what it writes once its consumer has ended."""
    driver = reader()
    assert writes(driver.send(events.StopRequested())) == []
    (write,) = writes(driver.stopped("a"))
    assert not driver.holdings.is_drained
    return driver, write


def test_stopping_worker_without_living_neighbours_frees_its_rows_for_who_comes_next() -> None:
    driver, release = stopped_alone()
    driver.settle(driver.answer(release))

    assert driver.holdings.is_drained
    assert driver.table["a"] == row("a", "", 2, checkpoint="i1")
    newcomer = Driver(driver.table["a"])
    started = only(newcomer.hold(), events.StartConsumer)
    assert [(start.shard_info.shard_id, start.checkpoint) for start in started] == [("a", "i1")]


@pytest.mark.parametrize("is_applied", [True, False])
def test_a_release_without_an_answer_is_read_back_and_sent_again_if_it_was_not_applied(is_applied: bool) -> None:
    driver, release = stopped_alone()
    if is_applied:
        driver.land(release)
    driver.answer(release, WriteOutcome.UNCERTAIN)
    driver.now += 3
    driver.settle([*driver.read_back("a"), *driver.renew()])

    assert driver.table["a"].owner == ""
    assert driver.holdings.is_drained


def test_a_lease_that_cannot_be_released_is_left_to_run_out() -> None:
    driver, release = stopped_alone()
    error = ConfigurationError("no verb for it")
    driver.send(events.Answered(events.WriteLease(release), WriteOutcome.UNCERTAIN, driver.now, error=error))

    assert driver.holdings.is_drained
    assert driver.table["a"].owner == "me"


def test_take_accepted_after_the_stop_is_handed_on() -> None:
    driver = Driver(row("a"), row("b", "other", 4))
    (take,) = writes(driver.scan())
    driver.send(events.StopRequested())
    assert not driver.holdings.is_drained
    driver.settle(driver.answer(take))

    assert driver.table["a"].owner == driver.table["a"].stealer == "other"
    assert driver.holdings.is_drained


def test_stopping_worker_passes_on_what_is_handed_to_it(driver: Driver) -> None:
    driver.table |= {"b": row("b", "other", 4), "c": row("c", "me", 4, stealer="me")}
    driver.send(events.StopRequested())
    driver.settle(driver.scan())

    assert driver.table["c"].owner == driver.table["c"].stealer == "other"
