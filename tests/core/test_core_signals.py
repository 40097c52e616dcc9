"""Wakes and signals in ``Holdings``: who is woken, who scans when, and how a worker that stops says so."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from attrs import evolve
from holdings_driver import kinds, only, row, scanned, writes
from membership_driver import FleetDriver, session, started, texts

from streamclient.core import events, membership
from streamclient.core.membership import SessionState
from streamclient.core.write_rules import WriteKind, WriteOutcome
from streamclient.model import Shard

REFUSED, UNCERTAIN = WriteOutcome.REFUSED, WriteOutcome.UNCERTAIN


@pytest.fixture
def driver() -> FleetDriver:
    """It reads ``s1``, beside worker ``x``."""
    return started(row("s1"), workers=["x"])


# --- wakes -----------------------------------------------------------------------------------------------------------


def test_whoever_is_woken_scans_within_the_signal_interval() -> None:
    driver = started(workers=["a"])
    driver.run(0.1, ticks=False)
    driver.workers["me"] = membership.woken(driver.workers["me"])
    woken_at = driver.now
    driver.run(2.0, ticks=False)

    assert len(driver.scans) == 1
    assert driver.scans[0] - woken_at <= 0.45


def test_a_wake_that_comes_while_a_scan_is_under_way_is_followed_by_another_scan(driver: FleetDriver) -> None:
    """What it is for may have come after the leases were read."""
    driver.now += 30
    driver.settle(driver.send(events.Tick()))
    driver.owed.clear()
    driver.send(events.TakeDue())
    assert events.ReadRows() in driver.owed
    rows = tuple(driver.table.values())
    woken = membership.woken(driver.workers["me"])
    assert only(driver.send(scanned(rows, workers=(woken, driver.workers["x"]))), events.ReadRows)
    assert not only(driver.send(scanned(rows, workers=(woken, driver.workers["x"]))), events.ReadRows)


def test_the_owner_is_woken_after_a_mark_and_the_receiver_after_a_hand_over() -> None:
    driver = started(workers=["a"])
    driver.table |= {f"s{number}": row(f"s{number}", "a", 5) for number in range(4)}
    driver.now += 12
    marks = [write for write in writes(driver.start()) if write.kind is WriteKind.STEAL]
    assert len(marks) == 2
    assert set(driver.woken) == {"a"}
    mine = started(row("s1"), row("s2"), workers=["x"])
    mine.now += 6
    (key,) = mine.holdings.held
    mine.table[key] = evolve(mine.table[key], stealer="x")
    mine.settle(mine.renew())
    mine.woken.clear()
    mine.settle(mine.stopped(key))

    assert mine.table[key].owner == "x"
    assert mine.woken == ["x"]


def test_everybody_is_woken_after_registering_and_after_saying_goodbye() -> None:
    driver = FleetDriver(row("s1"), workers=["x", "y"])
    driver.start()
    assert set(driver.woken) == {"x", "y"}
    driver.woken.clear()
    driver.settle(driver.send(events.StopRequested()))

    assert set(driver.woken) == {"x", "y"}


def test_everybody_is_woken_after_rows_were_created() -> None:
    driver = started(workers=["a", "b"])
    driver.settle(driver.list_shards(Shard("s1"), Shard("s2")))
    assert set(driver.woken) == {"a", "b"}


def test_holders_of_children_are_woken_when_their_parent_is_finished() -> None:
    child = row("c1", "b", 5, parent_shard_ids=frozenset({"p"}))
    driver = started(row("p"), child, row("other", "a", 5), workers=["a", "b"])
    driver.settle(driver.checkpoint("p", "SHARD_END"))

    assert driver.woken == ["b"]


def test_a_wake_that_failed_is_repeated_after_a_pause() -> None:
    driver = started(workers=["a"])
    driver.holdings._state.signals.wake(["a"])
    (command,) = only(driver.send(events.Tick()), events.WakeWorkers)
    driver.send(events.Answered(events.WakeWorkers(command.names), error=ConnectionError("no answer")))
    driver.woken.clear()
    driver.run(0.9, ticks=False)
    assert driver.woken == []
    driver.run(0.5, ticks=False)

    assert driver.woken == ["a"]


def test_workers_without_a_live_session_are_not_woken() -> None:
    driver = started(workers=["a", session("b", state=SessionState.KILLED)])
    driver.holdings._state.signals.wake(["a", "b", "java", "me"])
    driver.settle(driver.send(events.Tick()))

    assert driver.woken == ["a"]


# --- signals and turns -----------------------------------------------------------------------------------------------


def test_signals_are_the_own_row_and_those_of_the_two_successors() -> None:
    driver = started(workers=["a", "b", "x", "y", "z"])
    driver.run(4.0, ticks=False)

    assert set(driver.reads) == {("me", "x", "y")}
    assert 8 <= len(driver.reads) <= 10


def test_signals_that_cannot_be_read_are_asked_for_with_growing_pauses() -> None:
    driver = started(workers=["a"])
    driver.run(0.5, ticks=False)
    asked = []
    for _ in range(5):
        deadline = driver.holdings.next_deadline(driver.now)
        assert deadline is not None
        driver.now = deadline
        if only(driver.send(events.Tick()), events.ReadSignals):
            asked.append(driver.now)
            driver.send(events.Answered(events.ReadSignals(()), error=ConnectionError("no answer")))
    pauses = [second - first for first, second in pairwise(asked)]

    assert len([text for text in texts(driver) if "worker rows cannot be read" in text]) == 1
    assert pauses == sorted(pauses)
    assert pauses[0] >= 0.4
    assert pauses[-1] > 1


def test_signals_and_scans_are_never_read_at_the_same_time() -> None:
    driver = started(workers=["a"])
    driver.now += 10
    assert kinds(driver.send(events.TakeDue())) in (["ReadSignals"], ["ReadRows"])
    more = driver.send(events.Tick()) + driver.send(events.TakeDue())

    assert not only(more, events.ReadSignals)
    assert not only(more, events.ReadRows)


@pytest.mark.parametrize(("others", "least", "most"), [(0, 9, 11), (1, 4, 6), (4, 1, 3), (9, 0, 2)])
def test_in_a_fleet_of_sessions_each_worker_scans_in_its_turn(others: int, least: int, most: int) -> None:
    """Sixty seconds hold ten intervals, whoever of the fleet makes the scan."""
    driver = started(row("s1"), workers=[f"w{number}" for number in range(others)])
    driver.run(60.0)
    driver.scans.clear()
    driver.run(60.0)

    assert least <= len(driver.scans) <= most


def test_beside_a_worker_without_a_session_every_worker_scans_in_every_interval() -> None:
    driver = started(row("s1"), row("s2", "java", 5), workers=[f"w{number}" for number in range(9)])
    for _ in range(60):
        driver.run(1.0, ticks=_ % 6 == 0)
        driver.table["s2"] = evolve(driver.table["s2"], counter=driver.table["s2"].counter + 1)

    assert len(driver.scans) >= 9


def test_when_a_worker_without_a_session_shows_up_the_others_are_told() -> None:
    driver = started(row("s1"), row("s2", "w", 5), workers=["w"])
    driver.table["s2"] = evolve(driver.table["s2"], stealer="java")
    driver.run(14.0)

    assert "w" in driver.woken
    assert any("workers without sessions" in text and "java" in text for text in texts(driver))


def test_a_scan_that_failed_is_repeated_after_a_pause() -> None:
    driver = started(row("s1"), workers=[f"w{number}" for number in range(9)])
    driver.workers["me"] = membership.woken(driver.workers["me"])
    driver.now += 0.5
    (read,) = only(driver.send(events.Tick()), events.ReadSignals)
    assert only(driver.carry_out(read), events.ReadRows)
    driver.send(events.Answered(events.ReadRows(), error=ConnectionError("no answer")))
    driver.scans.clear()
    driver.run(1.5, ticks=False)

    assert len(driver.scans) == 1


def test_one_worker_lists_shards_for_all_and_the_others_in_their_turn() -> None:
    listings = {}
    for name, others in (("aa", ["b", "c", "d"]), ("me", ["a", "b", "c"])):
        driver = FleetDriver(row("s1"), workers=others, name=name)
        driver.shards = (Shard("s1"),)
        driver.start()
        driver.run(21.0)
        listings[name] = len(only(driver.run(120.0), events.ListShards))

    assert listings["aa"] >= 11
    assert 2 <= listings["me"] <= 5


def test_the_row_of_a_shard_that_left_is_deleted_although_its_owner_renews_it_all_the_time() -> None:
    """The leader's last scan may be minutes old, so it scans before it deletes."""
    driver = FleetDriver(row("s1", "x", 5, checkpoint="SHARD_END"), row("s2"), workers=["x", "y", "z"])
    driver.shards = (Shard("s2"),)
    driver.start()
    for _ in range(60):
        driver.run(6.0)
        driver.others_renew()
    deletes = [write for write in writes(driver.log) if write.kind is WriteKind.DELETE]

    assert "s1" not in driver.table
    assert len(deletes) == 1


def test_a_worker_that_finds_only_rows_that_others_created_wakes_nobody(driver: FleetDriver) -> None:
    create = driver.list_shards(Shard("s1"), Shard("s2"))
    (command,) = only(create, events.WriteLease)
    driver.table["s2"] = row("s2")
    driver.settle([command])

    assert driver.woken == []


# --- stopping --------------------------------------------------------------------------------------------------------


def test_a_stopping_worker_scans_says_goodbye_hands_over_and_removes_its_row() -> None:
    driver = started(*(row(f"s{number}") for number in range(4)), workers=["a", "b"])
    mine = sorted(driver.holdings.held)
    driver.table.update({key: row(key, "a", 5) for key in driver.table if key not in mine})
    driver.settle(driver.send(events.StopRequested()))
    assert driver.workers["me"].state is SessionState.LEAVING
    for key in mine:
        driver.settle(driver.stopped(key))

    assert {driver.table[key].owner for key in mine} <= {"a", "b"}
    assert driver.holdings.is_drained
    assert "me" not in driver.workers


def test_what_a_stopping_worker_leaves_is_spread_evenly_by_what_is_true_now() -> None:
    """What it saw last may be minutes old: meanwhile a has got four leases more."""
    mine = [row(f"m{number}") for number in range(4)]
    driver = started(*mine, workers=[])
    driver.workers |= {name: session(name) for name in ("a", "b")}
    driver.run(7.0)
    driver.table.update({f"x{number}": row(f"x{number}", "a", 9) for number in range(4)})
    driver.settle(driver.send(events.StopRequested()))
    for key in sorted(driver.holdings.held):
        driver.settle(driver.stopped(key))

    assert Counter(lease.owner for lease in driver.table.values()) == {"a": 4, "b": 4}


def test_if_that_scan_fails_leases_are_handed_over_all_the_same(driver: FleetDriver) -> None:
    commands = driver.send(events.StopRequested())
    (identifier,) = [c.consumer_id for c in only(commands, events.StopConsumer)]
    assert not [w for w in writes(driver.stopped("s1", identifier=identifier)) if w.kind is WriteKind.TRANSFER]
    for command in list(driver.owed):
        if isinstance(command, events.ReadSignals):
            driver.settle(driver.carry_out(command))
    commands = driver.send(events.Answered(events.ReadRows(), error=ConnectionError("no answer")))

    assert [write.result and write.result.owner for write in writes(commands)] == ["x"]


def stopping_without_an_answer() -> FleetDriver:
    """It reads ``s1`` beside worker ``x`` and is stopped; its consumer has ended, and its scan gets no answer."""
    driver = started(row("s1"), workers=["x"])
    commands = driver.send(events.StopRequested())
    (identifier,) = [c.consumer_id for c in only(commands, events.StopConsumer)]
    assert not writes(driver.stopped("s1", identifier=identifier))
    return driver


def test_if_that_scan_does_not_answer_leases_are_handed_over_before_long() -> None:
    driver = stopping_without_an_answer()
    assert driver.holdings.next_deadline(driver.now) == 104.0
    assert not writes(driver.tick_at(103.9))
    commands = driver.tick_at(104.0)

    assert [write.result and write.result.owner for write in writes(commands)] == ["x"]


def test_a_short_time_for_the_stop_shortens_the_wait_for_that_scan() -> None:
    driver = started(row("s1"), workers=["x"], shutdown_timeout_millis=5_000)
    driver.send(events.StopRequested())

    assert driver.holdings.next_deadline(driver.now) == 101.0


def test_leases_that_wait_for_that_scan_are_renewed() -> None:
    driver = stopping_without_an_answer()
    driver.now = 103.0
    (renewal,) = writes(driver.renew())
    assert renewal.kind is WriteKind.RENEW
    assert not writes(driver.tick_at(104.0))
    (transfer,) = writes(driver.answer(renewal))

    assert (transfer.kind, transfer.seen.counter) == (WriteKind.TRANSFER, 2)


def test_a_lease_whose_consumer_stalled_is_not_renewed_while_it_waits_for_that_scan() -> None:
    driver = started(row("s1"), workers=["x"])
    identifier = driver.holdings.held["s1"].identifier
    driver.send(events.ConsumerStalled("s1", identifier, "it hangs"))
    driver.send(events.StopRequested())
    driver.stopped("s1", identifier=identifier)
    driver.now = 103.0

    assert not writes(driver.renew())


def test_leases_are_not_handed_to_workers_that_are_leaving() -> None:
    driver = started(row("s1"), workers=["x", "y"])
    driver.workers["x"] = session("x", 2, state=SessionState.LEAVING)
    driver.settle(driver.send(events.StopRequested()))
    driver.settle(driver.stopped("s1"))

    assert driver.table["s1"].owner == "y"


def test_a_mark_of_a_worker_that_is_leaving_is_erased(driver: FleetDriver) -> None:
    driver.workers["x"] = session("x", 2, state=SessionState.LEAVING)
    driver.run(7.0)
    assert "s1" in driver.holdings.held
    driver.table["s1"] = evolve(driver.table["s1"], stealer="x")
    driver.run(14.0)

    assert (driver.table["s1"].owner, driver.table["s1"].stealer) == ("me", "")
    assert not only(driver.log, events.StopConsumer)


def test_the_row_stays_until_all_wakes_were_answered(driver: FleetDriver) -> None:
    """The process may end as soon as the row is gone, and with it what is still on its way."""
    driver.settle(driver.send(events.StopRequested()))
    (transfer,) = only(driver.stopped("s1"), events.WriteLease)
    commands = driver.carry_out(transfer)
    assert only(commands, events.WakeWorkers)
    assert not only(commands, events.WriteWorker)
    assert not driver.holdings.is_drained
    driver.settle(driver.send(events.Answered(events.WakeWorkers(("x",)))))

    assert driver.holdings.is_drained
    assert "me" not in driver.workers
