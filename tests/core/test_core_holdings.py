"""One path per rule of the lease protocol."""

from __future__ import annotations

import pytest
from holdings_driver import Driver, answers, only, row, scanned, writes

from streamclient.core import events, leases
from streamclient.core.events import ConsumerEnd, Severity
from streamclient.core.write_rules import WriteKind, WriteOutcome
from streamclient.model import ShardState, ShutdownReason

# --- taking ----------------------------------------------------------------------------------------------------------


def test_free_lease_is_taken_and_read(driver: Driver) -> None:
    assert driver.table["a"] == row("a", "me", 1, checkpoint="i1")
    assert driver.holdings.held["a"].state is ShardState.PROCESSING
    assert repr(driver.holdings) == "Holdings(me: 1 held, 0 marked, 0 expired)"


def test_each_take_is_registered_by_itself() -> None:
    """A failing take does not drop the leases taken in the same pass."""
    driver = Driver(row("a"), row("b"))
    first, second = writes(driver.scan())
    driver.answer(first)
    driver.answer(second, WriteOutcome.UNCERTAIN)
    driver.fail_to_read_back("b")

    assert list(driver.holdings.held) == [first.lease_key]


def test_take_whose_answer_was_lost_is_repeated_and_held_from_the_time_that_one_was_sent() -> None:
    """The row shows that some write of this worker moved it, not when."""
    driver = Driver(row("a"))
    (take,) = writes(driver.scan())
    driver.land(take)
    driver.now += 5
    driver.answer(take, WriteOutcome.UNCERTAIN, 100.0)
    (again,) = writes(driver.read_back("a"))
    assert not driver.holdings.held
    driver.answer(again)

    assert driver.table["a"] == row("a", "me", 2)
    assert driver.holdings.held["a"].valid_until == pytest.approx(driver.now + 19)


def test_late_write_of_an_earlier_tenancy_does_not_pass_for_a_take(driver: Driver) -> None:
    """Others count from when it landed, long before the take was sent."""
    driver.now += 6
    (renewal,) = writes(driver.renew())
    driver.answer(renewal, WriteOutcome.UNCERTAIN)
    driver.fail_to_read_back("a")
    driver.tick_at(driver.now + 13)
    driver.stopped("a", identifier="t1")
    driver.send(events.Answered(events.ReadRow("a"), driver.table["a"]))
    driver.land(renewal)
    landed_at, stale = driver.now, row("a", "me", 1, checkpoint="i1")
    driver.now += 15
    driver.send(events.TakeDue())
    (take,) = writes(driver.send(scanned((stale,))))
    driver.answer(take)
    (again,) = writes(driver.read_back("a"))
    assert not driver.holdings.held
    driver.answer(again)

    assert driver.table["a"].counter == 3
    assert driver.holdings.held["a"].valid_until > landed_at + 20


def test_validity_counts_from_the_earliest_write_that_may_have_moved_the_row(driver: Driver) -> None:
    """The first renewal landed late, so the second one was refused.

    Read back, the row looks as the second would have left it, but others saw it move before that was sent.
    """
    driver.now += 6
    (first,) = writes(driver.renew())
    first_sent_at = driver.now
    (second,) = writes(driver.answer_and_read_back(first))
    driver.now += 3
    driver.land(first)
    driver.now += 3
    driver.answer(second, sent_at=driver.now)
    driver.read_back("a")

    assert driver.holdings.held["a"].lease.counter == 2
    assert driver.holdings.held["a"].valid_until == pytest.approx(first_sent_at + 19)


def test_take_answered_after_its_validity_is_not_held() -> None:
    driver = Driver(row("a"))
    (take,) = writes(driver.scan())
    driver.now += 19
    driver.answer(take, sent_at=100.0)

    assert not driver.holdings.held


def test_rows_of_an_earlier_life_are_taken_at_once() -> None:
    driver = Driver(row("a", "me", 8, checkpoint="i5"))
    assert [str(write) for write in writes(driver.scan())] == [
        "take a (owner me, counter 8, at i5) -> a (owner me, counter 9, at i5)"
    ]


def test_marked_row_of_an_earlier_life_is_handed_over_at_once() -> None:
    """Nobody would ever read it otherwise."""
    driver = Driver(row("a", "me", 8, stealer="other"))

    (write,) = writes(driver.scan())
    before = "a (owner me, asked for by other, counter 8, at TRIM_HORIZON)"
    assert str(write) == f"transfer {before} -> a (owner other, handed over, counter 9, at TRIM_HORIZON)"


def test_handed_over_lease_is_taken_at_once_again_after_a_late_renewal_of_the_old_owner() -> None:
    """An old owner may move the counter once more."""
    driver = Driver(row("a", "me", 8, stealer="me"))
    (take,) = writes(driver.scan())
    driver.table["a"] = row("a", "me", 9, stealer="me")
    driver.answer(take)
    driver.settle(driver.read_back("a"))

    assert driver.table["a"] == row("a", "me", 10)
    assert "a" in driver.holdings.held


def test_transfer_that_crossed_a_take_is_not_mistaken_for_it() -> None:
    """Both lead to the same owner and counter; only the take clears the stealer."""
    driver = Driver(row("a", "other", 8, stealer="me"))
    driver.scan()
    driver.now += 21
    (take,) = writes(driver.scan())
    driver.table["a"] = row("a", "me", 9, stealer="me")
    driver.answer(take)
    driver.settle(driver.read_back("a"))

    assert driver.table["a"] == row("a", "me", 10)


def test_row_in_my_name_that_somebody_else_moves_is_left_alone_and_reported() -> None:
    driver = Driver(row("a", "me", 8))
    (take,) = writes(driver.scan())
    driver.answer(take, WriteOutcome.UNCERTAIN)
    driver.fail_to_read_back("a")
    driver.now += 6
    driver.table["a"] = row("a", "me", 11)
    commands = driver.scan()

    assert writes(commands) == []
    assert [report.severity for report in only(commands, events.Report)] == [Severity.ERROR]


# --- renewing --------------------------------------------------------------------------------------------------------


def test_renewal_moves_the_counter_and_extends_validity_from_its_sending(driver: Driver) -> None:
    driver.now += 6
    (renewal,) = writes(driver.renew())
    sent_at = driver.now
    driver.now += 3
    driver.answer(renewal, sent_at=sent_at)

    assert renewal.kind is WriteKind.RENEW
    assert driver.holdings.held["a"].valid_until == pytest.approx(sent_at + 19)


def test_lease_under_a_pending_write_gets_no_second_one(driver: Driver) -> None:
    driver.now += 6
    assert len(writes(driver.renew())) == 1
    driver.now += 6

    assert writes(driver.renew()) == []
    assert writes(driver.checkpoint("a", "i2")) == []


def test_recent_checkpoint_spares_a_renewal_only_while_a_third_of_the_duration_is_kept(driver: Driver) -> None:
    driver.settle(driver.checkpoint("a", "i2"))
    driver.now += 0.5
    assert writes(driver.renew()) == []
    driver.now += 1.0
    assert len(writes(driver.renew())) == 1


def test_applied_renewal_whose_answer_was_lost_keeps_the_lease(driver: Driver) -> None:
    driver.now += 6
    (renewal,) = writes(driver.renew())
    driver.land(renewal)
    assert only(driver.answer(renewal, WriteOutcome.UNCERTAIN), events.ReadRow) == [events.ReadRow("a")]
    driver.read_back("a")

    assert driver.holdings.held["a"].lease == row("a", "me", 2, checkpoint="i1")
    assert not only(driver.log, events.StopConsumer)


def test_lost_renewal_is_sent_again_first_at_once_then_after_growing_pauses(driver: Driver) -> None:
    driver.now += 6
    (renewal,) = writes(driver.renew())
    pauses = []
    for _ in range(4):
        driver.answer(renewal, WriteOutcome.UNCERTAIN)
        again = driver.read_back("a")
        start = driver.now
        while not writes(again):
            deadline = driver.holdings.next_deadline(driver.now)
            assert deadline is not None
            driver.now = deadline
            again = driver.send(events.Tick())
        pauses.append(driver.now - start)

    assert pauses == pytest.approx([0, 1, 2, 4])


def test_unrenewed_lease_stops_being_read_before_others_may_take_it(driver: Driver) -> None:
    """The worker lives on, and takes the lease again when the table is back."""
    identifier = driver.holdings.held["a"].identifier
    driver.now = driver.holdings.next_deadline(driver.now) or 0
    commands = driver.send(events.Tick())
    assert only(commands, events.StopConsumer) == [events.StopConsumer("a", identifier, ShutdownReason.ZOMBIE)]
    assert not driver.holdings.held

    driver.stopped("a", identifier=identifier)
    started = only(driver.hold(), events.StartConsumer)
    assert [start.shard_info.lease_identifier for start in started] == ["t2"]


def test_shard_is_not_read_again_before_its_old_consumer_is_gone(driver: Driver) -> None:
    old = driver.holdings.held["a"].identifier
    driver.tick_at(driver.now + 20)
    assert writes(driver.scan()) == []

    commands = driver.stopped("a", identifier=old)
    assert only(driver.settle(commands), events.StartConsumer)


def test_late_answer_of_an_old_tenancy_does_not_harm_the_new_one(driver: Driver) -> None:
    old = driver.holdings.held["a"].identifier
    driver.now += 18
    (renewal,) = writes(driver.renew())
    driver.tick_at(driver.now + 5)
    driver.stopped("a", identifier=old)
    assert writes(driver.scan()) == []
    driver.settle(driver.answer(renewal, WriteOutcome.UNCERTAIN, 118.0))
    driver.hold()

    assert driver.holdings.held["a"].lease.counter == driver.table["a"].counter


def test_lease_taken_by_another_worker_is_lost(driver: Driver) -> None:
    driver.table["a"] = row("a", "other", 2, checkpoint="i1")
    commands = driver.renew_later()

    assert [stop.reason for stop in only(commands, events.StopConsumer)] == [ShutdownReason.ZOMBIE]
    assert not driver.holdings.held


def test_process_with_the_same_name_makes_this_one_give_way(driver: Driver) -> None:
    """Five refusals in a row that look like own successes are no accident."""
    for _ in range(5):
        driver.now += 6
        driver.others_renew(me="nobody")
        driver.settle(driver.renew())

    assert not driver.holdings.held
    assert any(report.severity is Severity.ERROR for report in only(driver.log, events.Report))


def test_single_false_refusals_do_not_cost_a_lease(driver: Driver) -> None:
    for _ in range(12):
        driver.now += 6
        (renewal,) = writes(driver.renew())
        driver.land(renewal)
        driver.answer(renewal, WriteOutcome.REFUSED)
        driver.read_back("a")
        driver.now += 1
        driver.settle(driver.checkpoint("a", f"i{driver.now}"))

    assert "a" in driver.holdings.held


def lapsing(driver: Driver, times: int) -> None:
    """Each time the worker takes its lease, and the answer to its heartbeat does not come in time."""
    for _ in range(times):
        driver.hold()
        assert set(driver.holdings.held) == {"a"}
        driver.now += 6
        (heartbeat,) = writes(driver.renew())
        driver.tick_at(driver.now + 13)
        assert not driver.holdings.held
        driver.answer(heartbeat, sent_at=driver.now - 13)


def test_leases_that_are_lost_again_and_again_for_want_of_answers_in_time_are_told() -> None:
    driver = Driver(row("a", checkpoint="SHARD_END"))
    lapsing(driver, 4)
    assert driver.holdings.trouble == ""
    lapsing(driver, 1)
    assert driver.holdings.trouble.startswith("leases were lost again and again for 76 s, because takes or heartbeats")
    driver.hold()
    for _ in range(11):
        driver.renew_later()

    assert driver.holdings.trouble == ""


def test_takes_that_are_answered_too_late_are_told_too() -> None:
    driver = Driver(row("a", checkpoint="SHARD_END"))
    for _ in range(5):
        (take,) = writes(driver.scan())
        driver.now += 19
        driver.answer(take, sent_at=driver.now - 19)
        assert not driver.holdings.held

    assert driver.holdings.trouble.startswith("leases were lost again and again for 76 s")


def test_leases_that_were_lost_once_are_no_trouble() -> None:
    driver = Driver(row("a", checkpoint="SHARD_END"), max_duration_before_last_successful_renew_or_take_lease=1)
    lapsing(driver, 1)
    assert driver.holdings.trouble == ""


# --- checkpoints -----------------------------------------------------------------------------------------------------


def test_checkpoints_are_stored_one_by_one_and_equal_ones_together(driver: Driver) -> None:
    (first,) = writes(driver.checkpoint("a", "i2", 1))
    driver.checkpoint("a", "i3", 2)
    driver.checkpoint("a", "i3", 3)
    driver.checkpoint("a", "i4", 4)
    commands = driver.settle(driver.answer(first))

    assert answers(commands) == [(1, "stored"), (2, "stored"), (3, "stored"), (4, "stored")]
    assert [write.result and write.result.checkpoint for write in writes(commands)] == ["i3", "i4"]


def test_checkpoint_of_another_tenancy_is_refused(driver: Driver) -> None:
    assert answers(driver.send(events.CheckpointRequested(7, "a", "t99", "i2"))) == [(7, "lease_lost")]
    assert answers(driver.send(events.CheckpointRequested(8, "b", "t1", "i2"))) == [(8, "lease_lost")]


@pytest.mark.parametrize("lands", [True, False])
def test_uncertain_checkpoint_is_read_back(driver: Driver, lands: bool) -> None:
    (write,) = writes(driver.checkpoint("a", "i2"))
    if lands:
        driver.land(write)
    driver.answer(write, WriteOutcome.UNCERTAIN)
    commands = driver.settle(driver.read_back("a"))

    assert answers(commands) == [(1, "stored")]
    assert driver.table["a"].checkpoint == "i2"
    assert len(writes(commands)) == (0 if lands else 1)


def test_checkpoint_that_lands_after_an_earlier_renewal_of_unknown_fate_is_sent_again(driver: Driver) -> None:
    driver.now += 6
    (renewal,) = writes(driver.renew())
    driver.answer(renewal, WriteOutcome.UNCERTAIN)
    (again,) = writes(driver.read_back("a"))
    driver.checkpoint("a", "i2")
    driver.answer(again, WriteOutcome.UNCERTAIN)
    driver.read_back("a")
    driver.now += 1
    (write,) = writes(driver.send(events.Tick()))
    driver.land(renewal)
    driver.answer(write)

    assert answers(driver.settle(driver.read_back("a"))) == [(1, "stored")]
    assert driver.table["a"] == row("a", "me", 3, checkpoint="i2")


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (row("a", "other", 2, checkpoint="i1"), "lease_lost"),
        (row("a", "other", 3, checkpoint="i2"), "stored"),
        (row("a", "other", 9, checkpoint="i7"), "unknown"),
    ],
)
def test_checkpoint_in_doubt_on_a_lost_lease_is_answered_by_what_the_row_shows(
    driver: Driver, found: leases.Lease, outcome: str
) -> None:
    (write,) = writes(driver.checkpoint("a", "i2"))
    driver.answer(write, WriteOutcome.UNCERTAIN)
    driver.table["a"] = found
    driver.checkpoint("a", "i3", 2)
    commands = driver.read_back("a")

    assert answers(commands) == [(1, outcome), (2, "lease_lost")]
    assert [stop.reason for stop in only(commands, events.StopConsumer)] == [ShutdownReason.ZOMBIE]


def test_checkpoint_is_unknown_when_the_table_stays_out_of_reach(driver: Driver) -> None:
    (write,) = writes(driver.checkpoint("a", "i2", 1))
    driver.checkpoint("a", "i3", 2)
    driver.answer(write, WriteOutcome.UNCERTAIN)
    driver.fail_to_read_back("a")

    assert answers(driver.tick_at(driver.now + 19)) == [(1, "unknown"), (2, "lease_lost")]


def test_stored_shard_end_asks_for_the_children_and_lets_them_start() -> None:
    driver = Driver(row("p"), row("c", parent_shard_ids={"p"}))
    driver.hold()
    assert driver.holdings.held["c"].state is ShardState.WAITING_ON_PARENT_SHARDS
    commands = driver.settle(driver.checkpoint("p", "SHARD_END"))

    assert only(commands, events.ListShards)
    assert [start.shard_info.shard_id for start in only(commands, events.StartConsumer)] == ["c"]
    driver.settle(driver.stopped("p", ConsumerEnd.SHARD_END))
    assert driver.holdings.held["p"].state is ShardState.SHUTDOWN_COMPLETE
