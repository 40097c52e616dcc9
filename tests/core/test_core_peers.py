"""What one worker concludes from the rows of the others: who lives, whom to watch, who stood still for too long."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from streamclient.core.membership import SessionState, WorkerRow
from streamclient.core.peers import MEMORY_DURATIONS, WATCHED, Peers

DURATION = 20.0


def row(name: str, beat: int = 1, **fields: Any) -> WorkerRow:
    return evolve(WorkerRow(name, "stream", nonce=f"{name}-1", beat=beat), **fields)


def peers(me: str = "m", *names: str, at: float = 0.0) -> Peers:
    made = Peers(me, DURATION)
    made.observe_all([row(me), *(row(name) for name in names)], at)
    return made


def test_each_worker_watches_the_two_that_follow_it_in_the_ring_of_names() -> None:
    names = list("abcmxyz")
    watched = {me: peers(me, *(name for name in names if name != me)).watched() for me in names}

    assert watched["m"] == ["x", "y"]
    assert watched["y"] == ["z", "a"]
    assert watched["z"] == ["a", "b"]
    assert {name: sum(name in others for others in watched.values()) for name in names} == dict.fromkeys(names, WATCHED)


def test_small_fleets_watch_whom_they_have() -> None:
    assert peers("m").watched() == []
    assert peers("m", "a").watched() == ["a"]


def test_a_session_stands_still_if_two_reads_more_than_a_duration_apart_show_the_same_beat() -> None:
    seen = peers("m", "a", at=100.0)
    seen.observe(["a"], [row("a")], 120.0)
    assert seen.standing_still() == []
    seen.observe(["a"], [row("a")], 120.001)
    assert seen.standing_still() == [row("a")]
    seen.observe(["a"], [row("a", beat=2)], 121.0)
    assert seen.standing_still() == []


def test_not_having_looked_is_no_sign_of_death() -> None:
    seen = peers("m", "a", "b", at=100.0)
    seen.observe(["b"], [row("b")], 500.0)
    assert seen.standing_still() == [row("b")]


def test_a_new_session_under_the_same_name_is_watched_anew() -> None:
    seen = peers("m", "a", at=100.0)
    seen.observe(["a"], [row("a", nonce="a-2")], 119.0)
    seen.observe(["a"], [row("a", nonce="a-2")], 130.0)

    assert seen.standing_still() == []


def test_the_verdict_may_come_a_duration_after_the_beat_was_first_seen() -> None:
    seen = peers("m", "a", "b", at=100.0)
    seen.observe(["b"], [row("b", beat=2)], 105.0)

    assert seen.verdict_at(["a", "b"]) == 120.0
    assert seen.verdict_at(["b"]) == 125.0
    assert seen.verdict_at(["c"]) is None


def test_more_are_watched_while_one_is_late() -> None:
    names = [f"w{number:02}" for number in range(30)]
    seen = peers("m", *names, at=100.0)
    assert len(seen.watched()) == 2
    seen.observe(["w00", "w01"], [row("w00"), row("w01", beat=2)], 111.0)
    assert len(seen.watched()) == 10
    seen.observe(["w00"], [row("w00", beat=2)], 111.4)
    assert len(seen.watched()) == 2


def test_after_a_verdict_that_was_not_accepted_only_another_read_tells() -> None:
    seen = peers("m", "a", at=100.0)
    seen.observe(["a"], [row("a")], 121.0)
    seen.look_again("a")
    seen.look_again("stranger")
    assert seen.standing_still() == []
    seen.observe(["a"], [row("a")], 121.4)
    assert seen.standing_still() == [row("a")]


def test_killed_is_final_for_a_session() -> None:
    """A read that began before the verdict returns after it."""
    seen = peers("m", "a")
    seen.note_killed("a", "a-1")
    seen.observe(["a"], [row("a")], 1.0)
    assert seen.killed == {"a"}
    seen.observe_all([row("a", beat=2)], 2.0)
    assert seen.killed == {"a"}
    seen.observe(["a"], [row("a", nonce="a-2")], 3.0)
    assert seen.killed == frozenset()


def test_a_verdict_on_another_session_does_not_count() -> None:
    seen = peers("m", "a")
    seen.note_killed("a", "a-0")
    seen.note_killed("z", "z-1")

    assert seen.killed == frozenset()


def test_a_killed_worker_is_not_watched_and_gets_nothing() -> None:
    seen = peers("m", "a", "b", "c")
    seen.observe(["a", "b"], [row("a", state=SessionState.KILLED), row("b", state=SessionState.LEAVING)], 1.0)

    assert seen.watched() == ["b", "c"]
    assert seen.others == ["b", "c"]
    assert seen.staying_others == ["c"]
    assert seen.is_over("a")
    assert seen.is_leaving("b")
    assert seen.has_session("a")


def test_a_worker_that_removed_its_row_is_known_to_have_ended() -> None:
    seen = peers("m", "a", "b")
    assert not seen.is_over("stranger")
    seen.observe(["a"], [], 1.0)
    assert seen.is_over("a")
    assert not seen.has_session("a")
    seen.observe_all([row("a", nonce="a-2")], 2.0)
    assert not seen.is_over("a")
    assert seen.is_over("b")


def test_names_that_are_gone_are_forgotten_in_time() -> None:
    seen = peers("m", "a", "b")
    seen.observe_all([row("b")], 1.0)
    seen.observe_all([], 2.0 + MEMORY_DURATIONS * DURATION)

    assert not seen.is_over("a")
    assert seen.is_over("b")


def test_whoever_was_away_itself_begins_to_watch_anew() -> None:
    """After an outage that stopped everybody nobody is taken for dead."""
    seen = peers("m", "a", at=0.0)
    seen.watch_anew(100.0)
    seen.observe(["a"], [row("a")], 119.0)
    assert seen.standing_still() == []
    seen.observe(["a"], [row("a")], 121.0)
    assert seen.standing_still() == [row("a")]


def test_killed_rows_are_kept_for_ten_durations() -> None:
    seen = Peers("m", DURATION)
    dead = row("a", state=SessionState.KILLED)
    seen.observe_all([dead], 50.0)

    assert seen.forgettable(50.0 + MEMORY_DURATIONS * DURATION) == []
    assert seen.forgettable(51.0 + MEMORY_DURATIONS * DURATION) == [dead]


def test_it_says_what_it_sees() -> None:
    seen = peers("m", "a", "b")
    seen.note_killed("a", "a-1")
    assert repr(seen) == "Peers(m: 1 others live, 1 killed)"
