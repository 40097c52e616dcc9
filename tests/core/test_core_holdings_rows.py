"""One path per rule of rows: those that vanish, are reset, or are not there yet."""

from __future__ import annotations

import pytest
from attrs import evolve
from holdings_driver import Driver, only, row, writes

from streamclient.core import events, leases
from streamclient.core.events import Severity
from streamclient.core.held import Intention
from streamclient.core.write_rules import WriteOutcome
from streamclient.model import CheckpointPosition, InitialPosition, Lease, Shard, ShardState, ShutdownReason

# --- rows that vanish or are reset -----------------------------------------------------------------------------------


def test_deleted_row_of_a_listed_shard_is_created_again_where_it_stood(driver: Driver) -> None:
    driver.settle(driver.checkpoint("a", "i5"))
    del driver.table["a"]
    assert only(driver.renew_later(), events.ListShards)
    driver.settle(driver.list_shards(Shard("a")))

    assert driver.table["a"] == row("a", "me", 3, checkpoint="i5")
    assert not only(driver.log, events.StopConsumer)


def test_deleted_row_of_an_expired_shard_is_given_up_loudly(driver: Driver) -> None:
    del driver.table["a"]
    driver.renew_later()
    commands = driver.list_shards(Shard("b"))

    assert not driver.holdings.held
    assert [r.severity for r in only(commands, events.Report) if r.lease_key == "a"] == [Severity.ERROR]


def test_reset_row_is_taken_back_with_its_checkpoint(driver: Driver) -> None:
    driver.settle(driver.checkpoint("a", "i5"))
    driver.table["a"] = row("a")
    driver.renew_later()

    assert driver.table["a"] == row("a", "me", 3, checkpoint="i5")
    assert not only(driver.log, events.StopConsumer)


class CountingDriver(Driver):
    """A driver over a store whose writes only add 1 to the counter."""

    sets_counters = False


@pytest.mark.parametrize("changed", [row("a"), row("a", "me", 1, checkpoint="i5")], ids=["reset", "put back"])
def test_a_row_whose_counter_went_back_is_kept_if_the_store_only_counts(changed: Lease) -> None:
    driver = CountingDriver(row("a", checkpoint="i5"))
    driver.hold()
    for _ in range(3):
        driver.renew_later()
    driver.table["a"] = changed
    driver.renew_later()
    for stop in only(driver.log, events.StopConsumer):
        driver.settle(driver.stopped("a", identifier=stop.consumer_id))
    driver.scan_later()
    before = len(driver.log)
    for _ in range(3):
        driver.renew_later()

    assert all(write.result and write.result.counter == write.seen.counter + 1 for write in writes(driver.log))
    assert (driver.table["a"].owner, driver.table["a"].checkpoint) == ("me", "i5")
    assert not only(driver.log[before:], events.StopConsumer)
    assert not [report.text for report in only(driver.log, events.Report) if report.severity is Severity.ERROR]


def test_a_row_that_was_put_back_is_told_from_another_process_with_the_same_name(driver: Driver) -> None:
    for _ in range(3):
        driver.renew_later()
    driver.table["a"] = row("a", "me", 1, checkpoint="i1")
    reports = only(driver.renew_later(), events.Report)

    (text,) = [report.text for report in reports if "put back" in report.text]
    assert text.startswith("worker me, shard a: its row was put back from outside, perhaps from a backup: known a (")


def test_a_mark_is_noticed_in_a_row_that_a_write_under_way_has_moved(driver: Driver) -> None:
    """The answer comes after the scan; a busy shard always has a write under way, and renews by checkpoints alone."""
    (checkpoint,) = writes(driver.checkpoint("a", "i5"))
    driver.table["a"] = evolve(driver.table["a"], stealer="other")
    driver.land(checkpoint)
    driver.scan()
    driver.send(events.Answered(events.WriteLease(checkpoint), WriteOutcome.ACCEPTED, driver.now))
    driver.now += 0.1

    assert driver.holdings.held["a"].intention is Intention.GIVE_AWAY
    (stop,) = only(driver.log, events.StopConsumer)
    assert stop.reason is ShutdownReason.STOLEN


def test_a_write_that_was_sent_before_a_row_was_reset_never_lands_after_it(driver: Driver) -> None:
    """The counter of a reset row begins at 0, and grows past all that were compared with."""
    (late,) = writes(driver.checkpoint("a", "i5"))
    driver.settle(driver.answer(late, WriteOutcome.UNCERTAIN))
    driver.table["a"] = row("a")
    outcomes = set()
    for turn in range(5):
        driver.renew_later()
        outcomes.add(driver.land(late))
        driver.settle(driver.checkpoint("a", f"i{7 + turn}"))

    assert outcomes == {WriteOutcome.REFUSED}
    assert driver.table["a"].checkpoint == "i11"


# --- shards ----------------------------------------------------------------------------------------------------------


def test_rows_are_created_parents_first_and_taken_without_waiting_for_the_next_round() -> None:
    driver = Driver()
    driver.scan()
    commands = driver.settle(driver.list_shards(Shard("c", "p"), Shard("p")))

    assert [(write.kind.value, write.lease_key) for write in writes(commands)][:2] == [("create", "p"), ("create", "c")]
    assert [start.shard_info.shard_id for start in only(commands, events.StartConsumer)] == ["p"]


def test_child_row_waits_until_its_parents_row_is_known_to_exist() -> None:
    driver = Driver()
    driver.scan()
    (create,) = writes(driver.list_shards(Shard("c", "p"), Shard("p")))

    assert writes(driver.answer(create, WriteOutcome.UNCERTAIN)) == []


def test_start_at_latest_is_looked_up_before_the_row_is_created() -> None:
    driver, shards = Driver(row("p", "other", 3), position=InitialPosition.latest()), (Shard("p"), Shard("c", "p"))
    driver.scan()
    commands = driver.list_shards(*shards, Shard("n"))

    assert only(commands, events.ResolveAndCreate) == [events.ResolveAndCreate(row("n"), 777)]
    assert writes(commands) == []
    assert [write.result for write in writes(driver.list_shards(*shards))] == [row("c", parent_shard_ids={"p"})]


def test_a_child_starts_at_the_latest_record_as_its_parent_does() -> None:
    driver = Driver(position=InitialPosition.latest())
    driver.scan()
    (resolve,) = only(driver.list_shards(Shard("p"), Shard("c", "p")), events.ResolveAndCreate)
    created = leases.create(evolve(resolve.lease, checkpoint="i7"))
    commands = driver.answer(created, WriteOutcome.ACCEPTED)

    child = events.ResolveAndCreate(row("c", parent_shard_ids={"p"}), 777)
    assert only(commands, events.ResolveAndCreate) == [child]

    driver.table["p"] = row("p", checkpoint="i7")
    failed = driver.settle(driver.answer(leases.create(child.lease), WriteOutcome.UNCERTAIN))
    assert only([*failed, *driver.list_shards(Shard("p"), Shard("c", "p"))], events.ResolveAndCreate) == [child]


def test_a_child_that_was_opened_later_starts_at_its_beginning_without_a_look_up() -> None:
    driver = Driver(position=InitialPosition.latest())
    driver.scan()
    (resolve,) = only(driver.list_shards(Shard("p")), events.ResolveAndCreate)
    driver.settle(driver.answer(leases.create(evolve(resolve.lease, checkpoint="i7"))))
    commands = driver.list_shards(Shard("p"), Shard("c", "p"))

    assert not only(commands, events.ResolveAndCreate)
    assert [write.result for write in writes(commands)] == [row("c", parent_shard_ids={"p"})]


@pytest.mark.parametrize("creates_child", [False, True])
def test_a_child_is_left_to_the_worker_that_was_first_to_create_its_parents_row(creates_child: bool) -> None:
    """That worker may have started earlier, and its latest record with it. If it dies, the child is read wholly."""
    driver, shards = Driver(position=InitialPosition.latest()), (Shard("p"), Shard("c", "p"), Shard("g", "c"))
    driver.scan()
    (resolve,) = only(driver.list_shards(*shards), events.ResolveAndCreate)
    driver.table["p"] = row("p", "other", checkpoint="i5")
    driver.answer(leases.create(evolve(resolve.lease, checkpoint="i7")), WriteOutcome.REFUSED)
    driver.settle(driver.scan())
    assert list(driver.table) == ["p"]

    if creates_child:
        driver.table["c"] = row("c", "other", checkpoint="i6", parent_shard_ids={"p"})
        driver.settle(driver.scan())
    assert not only(driver.settle(driver.list_shards(*shards)), events.ResolveAndCreate)
    expected = "i6" if creates_child else CheckpointPosition.TRIM_HORIZON
    assert [driver.table[key].checkpoint for key in ("c", "g")] == [expected, CheckpointPosition.TRIM_HORIZON]


def test_a_child_of_a_row_that_was_restored_starts_at_its_beginning() -> None:
    """The restored row was read from its own position on, and not from the start of the worker that restored it."""
    driver = Driver(row("p", "other", 3, checkpoint="i5"), position=InitialPosition.latest())
    shards = (Shard("p"), Shard("c", "p"))
    driver.scan()
    assert writes(driver.list_shards(*shards)) == []
    del driver.table["p"]
    driver.settle(driver.scan())
    commands = driver.settle(driver.list_shards(*shards))

    assert driver.table["p"].checkpoint == "i5"
    assert not only([*commands, *driver.settle(driver.list_shards(*shards))], events.ResolveAndCreate)
    assert driver.table["c"].checkpoint == CheckpointPosition.TRIM_HORIZON


def test_only_one_scan_and_one_listing_are_under_way() -> None:
    driver = Driver()
    assert driver.send(events.TakeDue()) == [events.ReadRows()]
    assert driver.send(events.TakeDue()) == []
    assert driver.send(events.SyncDue()) == [events.ListShards()]
    assert driver.send(events.SyncDue()) == []


def test_absent_parent_row_blocks_until_a_listing_shows_that_the_parent_is_gone() -> None:
    driver = Driver(row("c", parent_shard_ids={"p"}))
    assert not only(driver.hold(), events.StartConsumer)
    driver.settle(driver.list_shards(Shard("p"), Shard("c", "p")))
    assert "p" in driver.table
    assert driver.holdings.held["c"].state is ShardState.WAITING_ON_PARENT_SHARDS

    gone = Driver(row("c", parent_shard_ids={"p"}))
    gone.hold()
    assert only(gone.list_shards(Shard("c", "p")), events.StartConsumer)
