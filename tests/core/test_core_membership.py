"""The rule of worker rows: what each write needs, and that a killed session never comes back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from streamclient.core import membership
from streamclient.core.membership import SessionState, WorkerRow, WorkerWrite
from streamclient.core.write_rules import WorkerWriteKind, apply_write, permits, was_applied

ROW = WorkerRow("w1", "stream", nonce="n1", beat=5, wake=3, info="text")


def test_a_beat_moves_the_beat_and_leaves_wake_and_information() -> None:
    write = membership.beat(ROW)
    assert apply_write(evolve(ROW, wake=9), write) == evolve(ROW, beat=6, wake=9)


def test_a_beat_may_bring_state_and_information() -> None:
    write = membership.beat(ROW, state=SessionState.LEAVING, info="other")
    assert apply_write(ROW, write) == evolve(ROW, beat=6, state=SessionState.LEAVING, info="other")


def test_a_registration_keeps_the_wake_of_the_row_that_it_replaces() -> None:
    write = membership.register(ROW, WorkerRow("w1", "stream", nonce="n2", beat=1, info="new"))
    assert write.result == WorkerRow("w1", "stream", nonce="n2", beat=1, wake=3, info="new")
    assert apply_write(evolve(ROW, wake=4), write) == evolve(write.result, wake=4)


def test_a_nonce_is_never_used_for_two_sessions() -> None:
    with pytest.raises(ValueError, match="needs a new nonce"):
        membership.register(ROW, evolve(ROW, beat=1))


@pytest.mark.parametrize("write", [membership.beat, membership.restore])
def test_a_killed_session_has_no_beat_to_send(write: Callable[[WorkerRow], WorkerWrite]) -> None:
    with pytest.raises(ValueError, match="cannot beat: killed is final"):
        write(evolve(ROW, state=SessionState.KILLED))


def test_a_write_that_is_not_permitted_is_not_applied() -> None:
    with pytest.raises(ValueError, match="does not permit beat"):
        apply_write(evolve(ROW, beat=6), membership.beat(ROW))


def test_a_row_that_was_read_back_tells_whether_a_write_was_applied() -> None:
    write = membership.beat(ROW)

    assert was_applied(evolve(ROW, beat=6, wake=77), write)
    assert not was_applied(ROW, write)
    assert not was_applied(evolve(ROW, beat=6, state=SessionState.KILLED), write)
    assert not was_applied(None, write)
    assert was_applied(None, membership.remove(ROW))


def test_rows_and_writes_are_readable() -> None:
    assert str(membership.kill(ROW)) == "kill w1(running, n1, 5) -> w1(killed, n1, 5)"
    assert str(membership.remove(ROW)) == "remove w1(running, n1, 5) -> absent"


KINDS = ("beat", "leave", "kill", "register", "restore", "remove", "wake")


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 3)), max_size=30))
def test_no_beat_is_ever_accepted_after_a_kill_of_its_session(steps: list[tuple[str, int]]) -> None:
    """Writers act on any earlier sight of the row, and their writes land in any order."""
    row: WorkerRow | None = None
    sights: list[WorkerRow | None] = [None]
    killed: set[str] = set()
    for number, (kind, age) in enumerate(steps):
        seen = sights[-1 - age % len(sights)]
        if kind == "wake":
            row = None if row is None else membership.woken(row)
            sights.append(row)
            continue
        write = _write(kind, seen, f"n{number}")
        if write is None or not permits(row, write):
            continue
        if write.kind is WorkerWriteKind.BEAT and row is not None:
            assert row.nonce not in killed
        row = apply_write(row, write)
        if row is None:
            killed.clear()  # Whoever may restore a session that somebody deleted knows that it was not over.
        elif not row.is_live:
            killed.add(row.nonce)
        assert row is None or row.is_live or row.nonce in killed
        sights.append(row)


def _write(kind: str, seen: WorkerRow | None, nonce: str) -> WorkerWrite | None:
    if kind == "register":
        return membership.register(seen, WorkerRow("w1", "stream", nonce=nonce, beat=1))
    if seen is None or (not seen.is_live and kind not in ("kill", "remove")):
        return None
    if kind == "leave":
        return membership.beat(seen, state=SessionState.LEAVING)
    makers = {
        "beat": membership.beat,
        "kill": membership.kill,
        "restore": membership.restore,
        "remove": membership.remove,
    }
    return makers[kind](seen)
