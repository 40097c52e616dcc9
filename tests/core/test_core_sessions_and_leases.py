"""Sessions in ``Holdings``: what may be held, and who is dead."""

from __future__ import annotations

import pytest
from attrs import evolve
from holdings_driver import answers, kinds, only, row, scanned, writes
from membership_driver import FleetDriver, session, started, texts

from streamclient.core import events, leases, membership
from streamclient.core.membership import SessionState
from streamclient.core.write_rules import WorkerWriteKind, WriteKind, WriteOutcome, apply_write

REFUSED, UNCERTAIN = WriteOutcome.REFUSED, WriteOutcome.UNCERTAIN


@pytest.fixture
def driver() -> FleetDriver:
    return started(row("s1"))


def verdicts(commands: list[events.Command]) -> list[str]:
    found = only(commands, events.WriteWorker)
    return [command.write.worker_id for command in found if command.write.kind is WorkerWriteKind.KILL]


# --- nothing is held without a session -----------------------------------------------------------------------------


def test_a_worker_registers_before_it_scans_and_takes() -> None:
    driver = FleetDriver(row("s1"))
    first = driver.send(events.TakeDue())
    assert first == [events.ReadSignals(("me",))]
    after_read = driver.carry_out(first[0])
    assert kinds(after_read) == ["WriteWorker"]
    after_registration = driver.carry_out(after_read[0])
    assert "ReadRows" in kinds(after_registration)
    driver.settle(after_registration)

    assert set(driver.holdings.held) == {"s1"}
    assert driver.workers["me"].state is SessionState.RUNNING


def test_a_tenancy_ends_with_the_session_although_its_lease_was_renewed(driver: FleetDriver) -> None:
    driver.answers_worker = lambda write: UNCERTAIN
    driver.run(18.9)
    assert set(driver.holdings.held) == {"s1"}
    assert driver.holdings.held["s1"].valid_until > 119.0
    assert driver.holdings.session_valid_until == 119.0
    commands = driver.run(0.2)

    assert dict(driver.holdings.held) == {}
    assert [command.reason.value for command in only(commands, events.StopConsumer)] == ["ZOMBIE"]


def test_checkpoints_that_were_sent_are_in_doubt_when_the_session_ends(driver: FleetDriver) -> None:
    driver.checkpoint("s1", "i1")
    driver.now = 119.0
    assert (1, "unknown") in answers(driver.send(events.Tick()))


def test_a_take_that_is_answered_after_the_session_is_over_is_not_held() -> None:
    driver = FleetDriver(row("s1"))
    (write,) = writes(driver.settle_until_take())
    driver.now = 119.5
    driver.answer(write, sent_at=110.0)

    assert dict(driver.holdings.held) == {}


def test_a_scan_that_returns_when_the_session_is_over_is_followed_by_nothing(driver: FleetDriver) -> None:
    driver.now += 6
    driver.owed.clear()
    driver.send(events.TakeDue())
    assert events.ReadRows() in driver.owed
    driver.now = 119.5
    driver.table["s2"] = row("s2")
    rows = tuple(driver.table.values())

    assert writes(driver.send(scanned(rows, workers=(driver.workers["me"],)))) == []


def test_nothing_is_planned_before_it_is_known_why_a_beat_was_refused(driver: FleetDriver) -> None:
    """Perhaps somebody else has the name, and the rows in it are not this process's."""
    driver.now += 6
    driver.answers_worker = lambda write: REFUSED
    driver.owed.clear()
    driver.send(events.TakeDue())
    assert events.ReadRows() in driver.owed
    (beat,) = only(driver.renew(), events.WriteWorker)
    driver.now += 0.1
    driver.carry_out(beat)
    driver.table["s2"] = row("s2")
    rows = tuple(driver.table.values())
    commands = driver.send(scanned(rows, workers=(driver.workers["me"],)))
    assert not [write for write in writes(commands) if write.kind is WriteKind.TAKE]
    driver.settle(commands)

    assert "s2" in driver.holdings.held


def test_a_take_that_was_sent_before_the_present_session_began_is_not_held() -> None:
    """Whoever saw the former session killed may take the lease with the counter that this take wrote."""
    driver = FleetDriver(row("s1"))
    (write,) = writes(driver.settle_until_take())
    sent_at = driver.now
    driver.kill("me")
    driver.run(1.0, ticks=False)
    assert driver.workers["me"].nonce == "t1.2"
    driver.answer(write, sent_at=sent_at)

    assert dict(driver.holdings.held) == {}
    assert any("took" not in text and "too late" in text for text in texts(driver))
    driver.run(7.0)
    assert set(driver.holdings.held) == {"s1"}
    assert driver.table["s1"].counter >= 2


def test_whoever_was_killed_stops_reading_and_begins_anew(driver: FleetDriver) -> None:
    driver.kill("me")

    assert only(driver.run(0.6, ticks=False), events.StopConsumer)
    assert driver.workers["me"].nonce != "t1.1"
    assert driver.workers["me"].is_live


def test_beats_go_out_with_the_heartbeats_of_leases(driver: FleetDriver) -> None:
    driver.now += 6
    assert {"WriteLease", "WriteWorker"} <= set(kinds(driver.renew()))


def test_a_process_whose_name_another_one_took_stays_without_leases_for_good() -> None:
    driver = started(row("s1"), row("s2"))
    mine = driver.workers["me"]
    driver.land_worker(membership.register(mine, session("me", nonce="another")))
    driver.run(0.6, ticks=False)
    assert dict(driver.holdings.held) == {}
    assert driver.holdings.is_ousted
    reports = only(driver.log, events.Report)
    assert [
        report.severity.value for report in reports if "another process was started under its name" in report.text
    ] == ["error"]
    before = dict(driver.workers)
    driver.table["s1"] = row("s1", counter=9)
    commands = driver.run(120.0)

    assert driver.workers == before
    assert not writes(commands)
    driver.settle(driver.send(events.StopRequested()))
    assert driver.holdings.next_deadline(driver.now) is None
    for key, identifier in [(c.lease_key, c.consumer_id) for c in only(driver.log, events.StopConsumer)]:
        driver.settle(driver.stopped(key, identifier=identifier))
    assert driver.holdings.is_drained


@pytest.mark.parametrize("is_stopping", [False, True])
def test_the_end_of_a_session_says_whether_another_one_begins(driver: FleetDriver, is_stopping: bool) -> None:
    if is_stopping:
        driver.settle(driver.send(events.StopRequested()))
    driver.tick_at(119.0)

    (said,) = [text for text in texts(driver) if "its session is over" in text]
    assert said.endswith("it begins another") is not is_stopping


def test_a_stop_does_not_wait_for_the_fate_of_a_write_whose_session_is_over(driver: FleetDriver) -> None:
    """With the table away, it would wait for reads that are repeated for as long as anybody waits for them."""
    driver.settle(driver.send(events.StopRequested()))
    (release,) = writes(driver.stopped("s1"))
    driver.answer(release, UNCERTAIN)
    driver.tick_at(118.9)
    assert not driver.holdings.is_drained
    driver.tick_at(119.0)

    assert driver.holdings.is_drained


def test_an_epoch_is_used_only_after_a_later_look_at_the_own_row() -> None:
    """A newer process with this name may have taken the lease, and would be refused by what has seen this number."""
    driver = FleetDriver(row("s1"))
    (take,) = driver.settle_until_take()
    (draw,) = only(driver.answer(take.write), events.DrawEpoch)
    driver.now += 0.1
    driver.owed.clear()
    drawn = driver.draw(draw.lease_key)
    assert not only(drawn, events.StartConsumer)
    assert driver.said("s1") == "waiting for a look at its worker's row"
    (look,) = only(drawn, events.ReadSignals)
    assert only(driver.carry_out(look), events.StartConsumer)


def test_a_shard_that_waited_is_read_only_after_a_look_since_it_can_be() -> None:
    """A newer process with this name may have taken the lease meanwhile."""
    driver = FleetDriver(row("s1"))
    driver.settle(driver.send(events.PauseRequested("s1", "maintenance")))
    driver.start()
    driver.run(1.0, ticks=False)
    driver.land_worker(membership.register(driver.workers["me"], session("me", nonce="another")))
    driver.now += 0.1
    resumed = driver.send(events.ResumeRequested("s1"))
    assert driver.said("s1") == "waiting for a look at its worker's row"
    driver.settle(resumed)

    assert driver.holdings.is_ousted
    assert not only(driver.log, events.StartConsumer)


def test_an_epoch_that_was_drawn_after_another_process_took_the_name_is_never_used() -> None:
    driver = FleetDriver(row("s1"))
    (take,) = driver.settle_until_take()
    (draw,) = only(driver.answer(take.write), events.DrawEpoch)
    driver.land_worker(membership.register(driver.workers["me"], session("me", nonce="another")))
    driver.now += 0.1
    driver.settle(driver.draw(draw.lease_key))

    assert driver.holdings.is_ousted
    assert not only(driver.log, events.StartConsumer)


@pytest.mark.parametrize("is_replaced", [True, False])
def test_nothing_is_written_on_a_row_that_moved_in_this_workers_name_before_a_look_at_the_own_row(
    driver: FleetDriver, is_replaced: bool
) -> None:
    """A newer process with this name may have taken the lease, and reads on from what it took."""
    driver.now += 1.0
    driver.settle(driver.send(events.Tick()))
    if is_replaced:
        driver.land_worker(membership.register(driver.workers["me"], session("me", nonce="another")))
    driver.table["s1"] = evolve(driver.table["s1"], counter=driver.table["s1"].counter + 1)
    (write,) = writes(driver.checkpoint("s1", "i7"))
    driver.answer(write)
    driver.now += 0.1
    found = driver.read_back("s1")
    assert not writes(found)
    (look,) = only(found, events.ReadSignals)
    seen = driver.carry_out(look)

    assert driver.holdings.is_ousted is is_replaced
    assert [each.kind for each in writes(seen)] == ([] if is_replaced else [WriteKind.CHECKPOINT])


def test_a_store_without_worker_rows_knows_no_sessions() -> None:
    from holdings_driver import Driver

    driver = Driver(row("s1"))
    driver.hold()

    assert driver.holdings.session_valid_until == float("inf")
    assert not only(driver.log, events.ReadSignals)
    assert not only(driver.log, events.WriteWorker)


# --- the dead --------------------------------------------------------------------------------------------------------


def test_a_worker_that_stands_still_for_a_lease_duration_is_killed_and_everybody_is_woken() -> None:
    driver = started(row("s1", "a", 5), workers=["a", "b"])
    driver.silent = {"a"}
    driver.woken.clear()

    assert verdicts(driver.run(20.6)) == ["a"]
    assert driver.workers["a"].state is SessionState.KILLED
    assert "b" in driver.woken
    assert "a" not in driver.woken


def test_leases_of_a_killed_session_are_taken_without_waiting() -> None:
    driver = started(row("s1", "a", 5), workers=["a"])
    driver.kill("a")
    driver.land_worker(membership.beat(driver.workers["me"]))
    driver.workers["me"] = membership.woken(driver.workers["me"])
    driver.run(0.6, ticks=False)

    assert set(driver.holdings.held) == {"s1"}


def test_a_lease_that_was_read_after_the_verdict_is_not_taken() -> None:
    """It may belong to the killed worker's next session; the next scan tells."""
    driver = started(row("s1", "a", 5), row("s2"), workers=["a"])
    driver.send(events.TakeDue())
    assert driver.send(events.SyncDue()) is not None
    driver.now += 7
    asked = driver.send(events.TakeDue())
    assert events.ReadRows() in asked or events.ReadRows() in driver.owed
    killed = evolve(driver.workers["a"], state=SessionState.KILLED)
    view = driver.holdings._state.view
    driver.now += 0.1
    view.note(row("s1", "a", 6), driver.now)
    driver.now += 0.1
    rows = (row("s1", "a", 5), driver.table["s2"])
    commands = driver.send(scanned(rows, workers=(killed, driver.workers["me"])))

    assert not [write for write in writes(commands) if write.lease_key == "s1"]


def test_a_worker_whose_row_is_gone_leaves_its_leases_to_expire() -> None:
    """Somebody may have deleted the row of a worker that lives."""
    driver = started(row("s1", "a", 5), workers=["a"])
    del driver.workers["a"]
    driver.run(15.0)
    assert dict(driver.holdings.held) == {}
    driver.run(20.0)
    assert set(driver.holdings.held) == {"s1"}


def test_a_lease_of_a_live_session_that_stands_still_is_taken() -> None:
    """Its owner stopped renewing it on purpose, for example because its consumer hangs."""
    driver = started(row("s1", "a", 5), row("s2", "a", 5), workers=["a"])
    for _ in range(40):
        driver.run(1.0)
        driver.table["s2"] = apply_write(driver.table["s2"], leases.renew(driver.table["s2"])) or row("s2")

    assert driver.table["s1"].owner == "me"


def test_a_verdict_that_is_refused_is_not_repeated_before_the_row_was_read_again() -> None:
    driver = started(workers=["a"])
    driver.silent = {"a"}
    driver.answers_worker = lambda write: REFUSED if write.worker_id == "a" else driver.land_worker(write)

    assert 2 <= len(verdicts(driver.run(22.1))) <= 6


def test_nobody_is_judged_by_a_worker_that_was_away_itself() -> None:
    driver = started(row("s1", "a", 5), workers=["a"])
    driver.silent = {"a"}
    driver.now += 300
    driver.others_beat()

    assert verdicts(driver.run(15.0)) == []
    assert verdicts(driver.run(10.0)) == ["a"]


def test_killed_rows_are_removed_by_the_leader_after_ten_lease_durations() -> None:
    driver = started(workers=["b", "c"], name="me")
    driver.kill("b")
    driver.run(195.0)
    assert "b" in driver.workers
    driver.run(20.0)
    assert "b" in driver.workers, "c is the leader"
    leader = started(workers=[session("z", state=SessionState.KILLED)])
    leader.run(195.0)
    assert "z" in leader.workers
    leader.run(20.0)
    assert "z" not in leader.workers
