"""A worker's own session: how it begins, lives, ends, and who has a name that two processes use."""

from __future__ import annotations

from collections.abc import Sized
from itertools import count
from typing import Any

import pytest
from attrs import evolve, fields

from streamclient.core import membership
from streamclient.core.membership import SessionState, WorkerRow, WorkerWrite
from streamclient.core.session import REMOVALS_AT_MOST, News, Session
from streamclient.core.write_rules import WorkerWriteKind, WriteOutcome, apply_write, permits

DURATION = 20.0
ACCEPTED, REFUSED, UNCERTAIN = WriteOutcome.ACCEPTED, WriteOutcome.REFUSED, WriteOutcome.UNCERTAIN


class Table:
    """One row, and processes that use its name; each has the prefix of its nonces."""

    def __init__(self) -> None:
        self.row: Any = None
        """A `WorkerRow`, if there is one."""
        self.now = 100.0

    def process(self, prefix: str = "n") -> Session:
        numbers = count(1)
        return Session(
            "w1", "stream", DURATION, lambda: f"{prefix}{next(numbers)}", lambda tries: max(0.0, tries - 1.0)
        )

    def land(self, write: WorkerWrite) -> WriteOutcome:
        if not permits(self.row, write):
            return REFUSED
        self.row = apply_write(self.row, write)
        return ACCEPTED

    def read(self, session: Session, asked_at: float | None = None) -> News:
        return session.read(self.row, self.now if asked_at is None else asked_at, self.now)

    def write(self, session: Session, answer: WriteOutcome | None = None, *, lands: bool = True) -> News:
        """Send what is due; ``answer`` instead of the true one."""
        write = self.due(session)
        outcome = self.land(write) if lands else UNCERTAIN
        return session.answered(write, answer or outcome, self.now, self.now)

    def begin(self, session: Session) -> Session:
        self.read(session)
        assert self.write(session) is News.BEGUN
        return session

    def due(self, session: Session, *, is_beat: bool = False) -> WorkerWrite:
        """The write that is due now; it is neither applied nor answered."""
        session.is_beat_due |= is_beat
        write = session.next_write(self.now)
        assert write is not None
        return write

    def beat(self, session: Session, answer: WriteOutcome | None = None, *, lands: bool = True) -> News:
        session.is_beat_due = True
        return self.write(session, answer, lands=lands)


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture
def session(table: Table) -> Session:
    """One that has begun."""
    return table.begin(table.process())


def test_a_worker_looks_first_and_then_registers(table: Table) -> None:
    session = table.process()
    assert (session.needs_read, session.next_write(table.now)) == (True, None)
    table.begin(session)

    assert table.row == WorkerRow("w1", "stream", nonce="n1.1", beat=1)
    assert session.is_valid(100.0 + 18.9)
    assert not session.is_valid(100.0 + 19.0)


def test_beats_prolong_it_from_the_time_before_they_were_sent(session: Session, table: Table) -> None:
    table.now = 106.0
    write = table.due(session, is_beat=True)
    table.land(write)
    session.answered(write, ACCEPTED, 106.0, 109.0)

    assert session.valid_until == 125.0
    assert session.next_write(109.0) is None


def test_one_write_is_under_way_at_a_time(session: Session, table: Table) -> None:
    session.is_beat_due = True
    assert session.next_write(table.now) is not None
    assert session.next_write(table.now) is None


def test_a_session_whose_beats_fail_is_over_and_a_new_one_has_another_nonce(session: Session, table: Table) -> None:
    table.now = 119.0
    assert session.check_validity(118.9) is News.NOTHING
    assert session.check_validity(table.now) is News.OVER
    assert not session.is_valid(table.now)
    table.begin(session)

    assert (table.row.nonce, table.row.beat) == ("n1.2", 1)


def test_a_beat_whose_answer_was_lost_counts_from_when_it_was_sent(session: Session, table: Table) -> None:
    table.now = 106.0
    assert table.beat(session, UNCERTAIN) is News.NOTHING
    assert session.needs_read
    table.now = 108.0
    assert table.read(session) is News.NOTHING

    assert session.valid_until == 125.0
    assert session.row == table.row


def test_a_beat_that_landed_after_it_was_taken_for_lost_counts_from_its_first_try(
    session: Session, table: Table
) -> None:
    table.now = 106.0
    late = table.due(session, is_beat=True)
    session.answered(late, UNCERTAIN, 106.0, 107.0)
    table.now = 107.0
    table.read(session)
    table.now = 110.0
    session.is_leaving = True
    again = table.due(session)
    table.land(late)
    session.answered(again, table.land(again), 110.0, 110.0)
    table.read(session)

    assert session.valid_until == 125.0
    assert session.row == table.row == WorkerRow("w1", "stream", nonce="n1.1", beat=2)
    assert table.write(session) is News.NOTHING
    assert (table.row.beat, table.row.state) == (3, SessionState.LEAVING)


def test_a_landed_beat_is_seen_by_any_read(session: Session, table: Table) -> None:
    table.now = 106.0
    late = table.due(session, is_beat=True)
    session.answered(late, UNCERTAIN, 106.0, 107.0)
    table.read(session)
    table.land(late)
    table.now = 107.5
    table.read(session)

    assert (session.row, session.valid_until) == (table.row, 125.0)


def test_failing_beats_are_repeated_with_growing_pauses(session: Session, table: Table) -> None:
    table.beat(session, lands=False)
    table.read(session)
    assert table.write(session, lands=False) is News.NOTHING
    table.read(session)

    assert session.next_write(table.now) is None
    assert session.doubt.not_before == table.now + 1.0
    table.now += 1.0
    assert session.next_write(table.now) is not None


def test_a_read_that_was_asked_for_before_the_answer_does_not_clear_up_a_doubt(session: Session, table: Table) -> None:
    before = table.row
    table.now = 106.0
    table.beat(session, UNCERTAIN)
    assert session.read(before, 105.0, 106.0) is News.NOTHING

    assert session.needs_read


def test_whose_name_it_is_any_read_since_the_registration_tells(session: Session, table: Table) -> None:
    table.now = 106.0
    table.beat(session, UNCERTAIN)
    assert session.read(WorkerRow("w1", "stream", "stranger", 1), 105.0, 106.0) is News.OUSTED


def test_a_registration_whose_answer_was_lost_is_a_registration(table: Table) -> None:
    session = table.process()
    table.read(session)
    table.write(session, UNCERTAIN)
    table.now = 102.0

    assert table.read(session) is News.BEGUN
    assert (session.valid_until, session.since) == (119.0, 102.0)


def test_a_registration_that_lands_late_is_replaced_by_the_next_one(table: Table) -> None:
    session = table.process()
    table.read(session)
    late = table.due(session)
    session.answered(late, UNCERTAIN, table.now, table.now)
    table.read(session)
    second = table.due(session)
    table.land(late)
    session.answered(second, table.land(second), table.now, table.now)
    table.read(session)
    table.now += 1.0

    assert table.write(session) is News.BEGUN
    assert table.row.nonce == "n1.3"


def test_any_registration_of_a_long_outage_is_known_as_an_own_one_and_none_is_remembered(
    session: Session, table: Table
) -> None:
    """It may land after any number of later ones; the process would take itself for ousted."""
    table.now = 200.0
    assert session.check_validity(table.now) is News.OVER
    table.read(session)
    tries = []
    for _ in range(2_000):
        write = table.due(session)
        tries.append(write)
        session.answered(write, UNCERTAIN, table.now, table.now)
        table.read(session)
        table.now = max(table.now, session.doubt.not_before)
    assert table.land(tries[0]) is ACCEPTED
    assert table.read(session) is News.NOTHING
    assert table.write(session) is News.BEGUN

    sizes = {each.name: getattr(session, each.name) for each in fields(Session)}
    assert [name for name, value in sizes.items() if isinstance(value, Sized) and len(value) > 100] == []


def test_whoever_was_killed_loses_its_session_at_the_next_look_and_begins_another(
    session: Session, table: Table
) -> None:
    table.land(membership.kill(table.row))
    assert table.read(session) is News.OVER
    table.begin(session)

    assert table.row.nonce == "n1.2"


def test_whoever_was_killed_finds_its_next_beat_refused(session: Session, table: Table) -> None:
    table.land(membership.kill(table.row))
    assert table.beat(session) is News.NOTHING

    assert table.read(session) is News.OVER


def test_a_row_that_somebody_deleted_is_put_back(session: Session, table: Table) -> None:
    table.row = None
    table.read(session)
    table.now = 103.0
    assert table.write(session) is News.NOTHING

    assert table.row == WorkerRow("w1", "stream", nonce="n1.1", beat=2)
    assert session.valid_until == 122.0


# --- two processes with one name -----------------------------------------------------------------------------------


def test_a_restarted_worker_takes_its_name_over_at_once(table: Table) -> None:
    table.begin(table.process("old"))
    table.begin(table.process("new"))

    assert table.row.nonce == "new1.1"


@pytest.mark.parametrize("by_beat", [True, False])
def test_the_older_of_two_processes_is_ousted_for_good(table: Table, by_beat: bool) -> None:
    old = table.begin(table.process("old"))
    new = table.begin(table.process("new"))
    if by_beat:
        table.beat(old)
    assert table.read(old) is News.OUSTED

    assert not old.is_valid(table.now)
    old.is_beat_due = True
    assert old.next_write(table.now) is None
    assert table.read(old) is News.NOTHING
    assert table.beat(new) is News.NOTHING
    assert new.is_valid(table.now)


def test_a_process_that_was_away_does_not_take_the_name_back(table: Table) -> None:
    """Frozen for longer than its session, while a supervisor started another process in its place."""
    old = table.begin(table.process("old"))
    table.begin(table.process("new"))
    table.now = 200.0
    assert old.check_validity(table.now) is News.OVER

    assert table.read(old) is News.OUSTED


def test_of_two_processes_that_start_together_one_is_ousted(table: Table) -> None:
    first, second = table.process("a"), table.process("b")
    table.read(first)
    table.read(second)
    assert table.write(first) is News.BEGUN
    assert table.write(second) is News.NOTHING
    table.read(second)
    assert table.write(second) is News.BEGUN

    assert table.read(first) is News.OUSTED
    assert second.is_valid(table.now)


def test_a_read_from_before_the_registration_ousts_nobody(table: Table) -> None:
    table.begin(table.process("old"))
    before = table.row
    table.now = 101.0
    new = table.begin(table.process("new"))

    assert new.read(before, 100.5, 102.0) is News.NOTHING
    assert new.is_valid(102.0)


# --- state, information, wakes, the end ------------------------------------------------------------------------------


def test_leaving_is_written_at_once(session: Session, table: Table) -> None:
    session.is_leaving = True
    table.write(session)

    assert table.row.state is SessionState.LEAVING
    assert session.next_write(table.now) is None


def test_information_travels_with_beats_and_only_when_it_changed(table: Table) -> None:
    session = table.process()
    session.info = "first"
    table.begin(session)
    table.beat(session)
    session.info = "second"
    assert session.next_write(table.now) is None
    write = table.due(session, is_beat=True)
    assert ("info" in write.changes, write.result and write.result.info) == (True, "second")


def test_a_wake_is_noticed_once(session: Session, table: Table) -> None:
    assert not session.take_wake(table.row)
    woken = membership.woken(table.row)

    assert session.take_wake(woken)
    assert not session.take_wake(evolve(woken, beat=2))


def test_at_the_end_the_row_is_removed(session: Session, table: Table) -> None:
    write = session.removal()
    assert write is not None
    assert session.removal() is None
    session.answered(write, table.land(write), table.now, table.now)

    assert (table.row, session.is_ended) == (None, True)


def test_a_row_that_cannot_be_removed_is_left(session: Session, table: Table) -> None:
    for _ in range(REMOVALS_AT_MOST):
        write = session.removal()
        assert write is not None
        assert write.kind is WorkerWriteKind.REMOVE
        session.answered(write, UNCERTAIN, table.now, table.now)

    assert session.is_ended
    assert session.removal() is None


def test_without_a_session_there_is_nothing_to_remove(table: Table) -> None:
    session = table.process()
    assert session.removal() is None
    assert session.is_ended
