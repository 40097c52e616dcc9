"""Pauses by operators and by the worker's own program; rewinds and releases under a worker's hands."""

from __future__ import annotations

import pytest
from attrs import evolve
from holdings_driver import Driver, answers, only, row, scanned, writes

from streamclient.core import events, leases
from streamclient.core.leases import LeaseWrite
from streamclient.core.write_rules import WriteKind, WriteOutcome
from streamclient.errors import ConfigurationError
from streamclient.model import Lease, Pause, ShardState, ShutdownReason

PAUSE = Pause("r1", "ann", "weekly maintenance")
WALL_START = 777
"""Of the driver, at 100 s by its own clock."""


def operate(driver: Driver, write: LeaseWrite) -> None:
    """An operator's write lands."""
    assert driver.land(write) is WriteOutcome.ACCEPTED


def pause(driver: Driver, wanted: Pause | None = PAUSE) -> list[events.Command]:
    """An operator pauses or resumes, and the worker scans."""
    operate(driver, leases.set_pause(driver.table["a"], wanted))
    driver.now += 6
    return driver.settle(driver.scan())


@pytest.fixture
def paused(driver: Driver) -> Driver:
    """A driver whose lease is paused, and has acknowledged that."""
    pause(driver)
    driver.settle(driver.stopped("a"))
    assert driver.table["a"].is_paused_by_owner
    return driver


def stops(commands: list[events.Command]) -> list[str]:
    return [stop.reason.name for stop in only(commands, events.StopConsumer)]


def starts(commands: list[events.Command]) -> list[str]:
    return [start.checkpoint for start in only(commands, events.StartConsumer)]


# --- an operator's pause ---------------------------------------------------------------------------------------------


def test_a_pause_stops_the_consumer_and_is_acknowledged_when_nothing_reads_any_more(driver: Driver) -> None:
    assert stops(pause(driver)) == ["PAUSED"]
    assert answers(driver.settle(driver.checkpoint("a", "i2"))) == [(1, "stored")]
    assert driver.table["a"].pause_taken == ""

    driver.settle(driver.stopped("a"))
    assert driver.table["a"] == row("a", "me", 3, checkpoint="i2", pause=PAUSE, pause_taken="r1 me")
    assert driver.said("a") == "paused by ann: weekly maintenance"
    assert driver.holdings.held["a"].state is ShardState.PAUSED


def test_a_paused_lease_is_still_renewed_and_its_pause_is_acknowledged_once(paused: Driver) -> None:
    kinds = []
    for _ in range(3):
        paused.now += 6
        kinds += [write.kind for write in writes([*paused.settle(paused.renew()), *paused.settle(paused.scan())])]

    assert kinds == [WriteKind.RENEW] * 3


def test_a_resumed_shard_is_read_on_from_its_checkpoint(paused: Driver) -> None:
    assert starts(pause(paused, None)) == ["i1"]
    assert paused.table["a"].pause_taken == ""


def test_a_pause_ends_by_itself_at_its_time_by_the_wall_clock_as_the_last_scan_showed_it(driver: Driver) -> None:
    operate(driver, leases.set_pause(driver.table["a"], evolve(PAUSE, until_micros=60_000_000)))
    driver.now = 106.0
    driver.send(events.TakeDue())
    commands = driver.send(scanned(tuple(driver.table.values()), wall_micros=50_000_000))
    assert stops(driver.settle(commands)) == ["PAUSED"]
    driver.settle(driver.stopped("a"))
    assert driver.said("a") == ("paused by ann: weekly maintenance until 1970-01-01T00:01:00.000Z")

    assert driver.holdings.next_deadline(driver.now) == pytest.approx(116.0)
    driver.now = driver.holdings.next_deadline(driver.now) or 0
    assert starts(driver.settle(driver.send(events.Tick()))) == ["i1"]
    assert driver.table["a"].pause_taken == ""


def test_a_pause_that_was_over_before_it_was_seen_is_ignored(driver: Driver) -> None:
    assert stops(pause(driver, evolve(PAUSE, until_micros=WALL_START))) == []


def test_a_paused_lease_is_taken_acknowledged_and_not_read() -> None:
    """The pause outlives its owner."""
    driver = Driver(row("a", checkpoint="i1", pause=PAUSE, pause_taken="r1 other"))
    commands = driver.hold()

    assert starts(commands) == []
    assert driver.table["a"].is_paused_by_owner
    assert only(commands, events.DrawEpoch)


def test_a_pause_is_not_acknowledged_while_a_consumer_that_was_ended_still_runs(driver: Driver) -> None:
    """It may be inside user code yet, although none of its checkpoints will be stored."""
    old = driver.holdings.held["a"].identifier
    operate(driver, leases.rewind(driver.table["a"], "i0"))
    driver.now += 6
    assert stops(driver.settle(driver.renew())) == ["ZOMBIE"]
    pause(driver)
    assert driver.table["a"].pause_taken == ""
    driver.settle(driver.stopped("a", identifier=old))

    assert driver.table["a"].is_paused_by_owner


def test_a_new_pause_is_acknowledged_anew(paused: Driver) -> None:
    pause(paused, evolve(PAUSE, request_id="r2", reason="and on"))
    assert paused.table["a"].pause_taken == "r2 me"
    assert paused.said("a") == "paused by ann: and on"


@pytest.mark.parametrize("is_marked", [True, False])
def test_a_paused_lease_is_handed_over_when_it_is_marked_or_its_worker_stops(paused: Driver, is_marked: bool) -> None:
    if is_marked:
        operate(paused, leases.steal(paused.table["a"], "other"))
        paused.scan_later()
    else:
        paused.table["b"] = row("b", "other", 4)
        paused.scan_later()
        paused.settle(paused.send(events.StopRequested()))

    assert paused.table["a"] == row("a", "other", 3, stealer="other", checkpoint="i1", pause=PAUSE, pause_taken="r1 me")
    assert not paused.holdings.held


def test_a_finished_lease_is_named_finished_and_its_pause_is_acknowledged() -> None:
    driver = Driver(row("a", checkpoint="SHARD_END", pause=PAUSE))
    driver.hold()

    assert driver.table["a"].is_paused_by_owner
    assert driver.said("a") == "finished"


def test_a_scan_that_began_before_the_row_was_read_back_does_not_undo_what_it_showed(driver: Driver) -> None:
    old = driver.table["a"]
    driver.send(events.TakeDue())
    driver.now += 1
    operate(driver, leases.set_pause(old, PAUSE))
    (renewal,) = writes(driver.renew())
    driver.land(renewal)
    driver.answer(renewal, WriteOutcome.UNCERTAIN)
    assert stops(driver.read_back("a")) == ["PAUSED"]
    driver.settle(driver.stopped("a"))

    assert starts(driver.send(scanned((old,)))) == []
    assert driver.holdings.held["a"].lease.pause == PAUSE


def test_a_pause_that_cannot_be_acknowledged_is_obeyed_and_the_lease_is_kept(driver: Driver) -> None:
    pause(driver)
    (write,) = writes(driver.stopped("a"))
    assert write.kind is WriteKind.TAKE_PAUSE
    error = ConfigurationError("no verb for it")
    driver.settle(
        driver.send(events.Answered(events.WriteLease(write), WriteOutcome.UNCERTAIN, driver.now, error=error))
    )
    for _ in range(5):
        driver.now += 6
        assert {write.kind for write in writes(driver.settle(driver.renew()))} == {WriteKind.RENEW}

    assert driver.said("a") == "paused by ann: weekly maintenance"


def test_nothing_is_read_again_before_the_row_says_that_the_pause_is_not_obeyed_any_more(paused: Driver) -> None:
    """An operator who compares the counter is sure that nothing reads as long as the row says so."""
    seen = paused.table["a"]
    operate(paused, leases.set_pause(seen, None))
    paused.now += 6
    (write,) = writes(paused.scan())
    assert write.kind is WriteKind.LEAVE_PAUSE
    assert paused.said("a") == "its pause is over; waiting until its row says so"
    assert starts(paused.answer(write)) == ["i1"]

    assert paused.land(leases.release(seen)) is WriteOutcome.REFUSED
    assert paused.land(leases.rewind(seen, "i0")) is WriteOutcome.REFUSED


def test_a_lease_that_was_released_while_paused_is_not_read_when_the_pause_ends(driver: Driver) -> None:
    """A worker that never saw the row takes it at once."""
    pause(driver, evolve(PAUSE, until_micros=WALL_START + 20_000_000))
    driver.settle(driver.stopped("a"))
    operate(driver, leases.release(driver.table["a"]))
    operate(driver, leases.take(driver.table["a"], "other"))
    driver.now = 120.0

    assert starts(driver.settle(driver.send(events.Tick()))) == []
    assert not driver.holdings.held
    assert driver.table["a"].owner == "other"


def test_an_acknowledgement_in_doubt_counts_as_given(driver: Driver) -> None:
    pause(driver)
    (write,) = writes(driver.stopped("a"))
    operate(driver, leases.set_pause(driver.table["a"], None))
    driver.now += 6
    assert starts(driver.scan()) == []
    driver.land(write)
    driver.answer(write, WriteOutcome.UNCERTAIN)
    commands = driver.settle(driver.read_back("a"))

    assert [write.kind for write in writes(commands)] == [WriteKind.LEAVE_PAUSE]
    assert starts(commands) == ["i1"]


def test_a_worker_takes_back_what_it_acknowledged_in_an_earlier_life() -> None:
    over = evolve(PAUSE, until_micros=1)
    driver = Driver(row("a", "me", 8, checkpoint="i1", pause=over, pause_taken="r1 me"))
    commands = driver.hold()

    assert [write.kind for write in writes(commands)] == [WriteKind.TAKE, WriteKind.LEAVE_PAUSE]
    assert starts(commands) == ["i1"]


def test_a_late_renewal_does_not_pass_for_taking_the_acknowledgement_back(paused: Driver) -> None:
    late = leases.renew(paused.table["a"])
    operate(paused, leases.set_pause(paused.table["a"], evolve(PAUSE, until_micros=1)))
    paused.now += 6
    (write,) = writes(paused.scan())
    paused.land(late)
    paused.answer(write, WriteOutcome.UNCERTAIN)
    commands = paused.read_back("a")
    assert starts(commands) == []

    assert starts(paused.settle(commands)) == ["i1"]
    assert paused.table["a"].pause_taken == ""


# --- the program's own pause -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["a", None])
def test_the_programs_own_pause_stops_and_resumes_without_any_write(driver: Driver, key: str | None) -> None:
    commands = driver.send(events.PauseRequested(key, "database upgrade"))
    assert stops(commands) == ["PAUSED"]
    commands += driver.stopped("a")
    assert driver.said("a") == "paused by its own program: database upgrade"
    assert driver.holdings.held["a"].state is ShardState.PAUSED

    commands += driver.send(events.ResumeRequested(key))
    assert starts(commands) == ["i1"]
    assert writes(commands) == []


def test_a_pause_of_the_whole_worker_holds_for_leases_taken_later_and_one_shard_may_stay_paused() -> None:
    driver = Driver(row("a"), row("b"))
    driver.send(events.PauseRequested(None, "all"))
    driver.send(events.PauseRequested("b", "only b"))
    assert starts(driver.hold()) == []
    commands = driver.send(events.ResumeRequested(None))

    assert [start.shard_info.shard_id for start in only(commands, events.StartConsumer)] == ["a"]
    assert driver.said("b") == "paused by its own program: only b"


def test_an_operators_pause_outlives_the_programs_own(paused: Driver) -> None:
    paused.send(events.PauseRequested(None, "all"))
    assert starts(paused.send(events.ResumeRequested(None))) == []
    assert paused.said("a") == "paused by ann: weekly maintenance"


# --- rewinds and releases --------------------------------------------------------------------------------------------


def test_a_paused_lease_that_was_rewound_is_resumed_at_the_new_checkpoint(paused: Driver) -> None:
    operate(paused, leases.rewind(paused.table["a"], "i0"))
    paused.renew_later()
    assert paused.holdings.held["a"].checkpoint == "i0"

    assert starts(pause(paused, None)) == ["i0"]


def test_a_finished_shard_that_was_rewound_is_read_again() -> None:
    driver = Driver(row("a", checkpoint="SHARD_END"))
    driver.hold()
    operate(driver, leases.rewind(driver.table["a"], "TRIM_HORIZON"))

    assert starts(driver.renew_later()) == ["TRIM_HORIZON"]


def test_a_running_consumer_never_goes_on_past_a_rewind(driver: Driver) -> None:
    old = driver.holdings.held["a"].identifier
    operate(driver, leases.rewind(driver.table["a"], "i0"))
    commands = driver.settle(driver.checkpoint("a", "i2"))
    assert answers(commands) == [(1, "lease_lost")]
    assert only(commands, events.StopConsumer) == [events.StopConsumer("a", old, ShutdownReason.ZOMBIE)]
    assert answers(driver.send(events.CheckpointRequested(2, "a", old, "i3"))) == [(2, "lease_lost")]
    driver.settle(commands)
    commands = driver.stopped("a", identifier=old)

    assert starts(commands) == ["i0"]
    (start,) = only(commands, events.StartConsumer)
    assert start.identifier != old
    assert start.shard_info.lease_identifier == old, "the lease was not acquired again"
    assert driver.table["a"].checkpoint == "i0"


def test_a_rewind_beside_a_checkpoint_of_unknown_fate_ends_the_tenancy_too(driver: Driver) -> None:
    """The checkpoint landed, then the rewind: the row moved twice under this worker's name."""
    (write,) = writes(driver.checkpoint("a", "i2"))
    driver.land(write)
    driver.answer(write, WriteOutcome.UNCERTAIN)
    operate(driver, leases.rewind(driver.table["a"], "i0"))
    commands = driver.settle(driver.read_back("a"))

    assert answers(commands) == [(1, "unknown")]
    assert stops(commands) == ["ZOMBIE"]
    driver.stopped("a", identifier="t1")
    driver.now += 6
    assert starts(driver.hold()) == ["i0"]


def test_a_late_renewal_of_ones_own_is_no_rewind(driver: Driver) -> None:
    (write,) = writes(driver.checkpoint("a", "i2"))
    driver.land(leases.renew(driver.table["a"]))
    driver.answer(write)

    assert stops(driver.settle(driver.read_back("a"))) == []
    assert driver.table["a"].checkpoint == "i2"


def test_a_released_lease_is_lost_and_left_alone_for_a_lease_duration(driver: Driver) -> None:
    operate(driver, leases.release(driver.table["a"]))
    assert stops(driver.renew_later()) == ["ZOMBIE"]
    assert not driver.holdings.held
    driver.stopped("a", identifier="t1")
    assert driver.table["a"] == row("a", "", 2, checkpoint="i1")
    released_at = driver.now
    while driver.now <= released_at + 20:
        assert writes(driver.scan()) == []
        driver.now += 6

    assert starts(driver.hold()) == ["i1"]


def test_a_reset_row_is_no_release(driver: Driver) -> None:
    driver.settle(driver.checkpoint("a", "i5"))
    driver.table["a"] = row("a", counter=9)
    driver.renew_later()

    assert driver.table["a"] == Lease("a", "stream", "me", 10, checkpoint="i5")
