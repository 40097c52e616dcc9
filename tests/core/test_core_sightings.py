"""What one worker has seen, and what it may conclude."""

from __future__ import annotations

from holdings_driver import row
from hypothesis import given, settings
from hypothesis import strategies as st

from streamclient.core.sightings import LeaseView
from streamclient.model import Progress


def view_of(*scans: tuple[float, list[object]]) -> LeaseView:
    view = LeaseView("me", 20.0)
    for at, rows in scans:
        view.observe(rows, at, at)  # type: ignore[arg-type]
    return view


def test_row_expires_only_after_strictly_more_than_the_duration() -> None:
    view = view_of((100, [row("a", "x", 1)]), (120, [row("a", "x", 1)]))
    assert not view.is_expired("a", 120)
    assert view.is_expired("a", 120.001)


def test_new_row_without_owner_is_free_at_once_and_one_with_owner_gets_full_grace() -> None:
    assert view_of((100, [row("a"), row("b", "x", 7)])).expired_keys(100) == ["a"]


def test_moving_counter_keeps_a_row_alive_and_a_mark_does_not() -> None:
    view = view_of((100, [row("a", "x", 1)]), (119, [row("a", "x", 2)]), (138, [row("a", "x", 2, stealer="y")]))
    assert not view.is_expired("a", 139)
    assert view.is_expired("a", 139.1)


def test_counter_that_began_anew_and_came_to_the_same_number_again_is_no_standstill() -> None:
    """The row was put anew while this worker saw nothing; its owner made progress since."""
    view = view_of((100, [row("a", "x", 6, checkpoint="i1")]), (133, [row("a", "x", 6, checkpoint="i5")]))
    assert not view.is_expired("a", 140)


def test_any_row_tells_that_records_were_processed_unless_all_are_set_back() -> None:
    done, none = Progress(1, 5, 50), Progress(0, 0, 0)
    set_back = [row("a", progress=done), row("b", checkpoint="i1", progress=none), row("c", checkpoint="i1")]
    view = view_of((100, list(set_back)))
    before = view.has_progress
    view.note(row("a", "x", 1, checkpoint="i5", progress=done), 101)
    view.observe(set_back[1:], 102, 102)  # its row is gone

    assert (before, view.has_progress) == (False, True)
    assert view_of((100, [row("a", checkpoint="SHARD_END", progress=done)])).has_progress


def test_lease_in_transit_counts_for_its_stealer() -> None:
    view = view_of((100, [row("a", "x", 1, stealer="me"), row("b", "me", 1, stealer="me"), row("c", "x", 1)]))
    assert view.credits(100) == {"me": 2, "x": 1}


def test_scan_that_began_before_an_own_write_does_not_hide_it() -> None:
    view = view_of((100, [row("a", "x", 1)]))
    view.note(row("a", "me", 2), 106)
    view.note(row("b"), 106)
    view.observe([row("a", "x", 1)], 105, 107)

    assert view.rows == {"a": row("a", "me", 2), "b": row("b")}


def test_vanished_row_is_remembered_while_its_shard_is_listed() -> None:
    view = view_of((100, [row("a", "x", 1, checkpoint="i5")]), (106, []))
    assert view.vanished == {"a": row("a", "x", 1, checkpoint="i5")}
    view.forget_vanished(["b"])

    assert view.vanished == {}


def test_owner_of_a_row_that_stood_still_is_presumed_dead_until_it_moves_something() -> None:
    view = view_of((100, [row("a", "x", 1)]), (121, [row("a", "x", 1)]))
    assert view.is_presumed_dead("x")
    assert view.live_workers(121) == ["me"]
    view.observe([row("a", "x", 2)], 125, 125)

    assert not view.is_presumed_dead("x")


def test_owner_that_lets_one_lease_expire_but_renews_another_is_alive() -> None:
    view = view_of((100, [row("a", "x", 1), row("b", "x", 1)]), (121, [row("a", "x", 1), row("b", "x", 2)]))
    assert not view.is_presumed_dead("x")


def test_being_handed_a_lease_is_no_sign_of_life_but_marking_is() -> None:
    view = view_of((100, [row("a", "x", 1), row("b", "x", 1)]))
    view.observe([row("a", "y", 2, stealer="y"), row("b", "x", 1, stealer="z")], 106, 106)
    assert [name for name in ("x", "y", "z") if view.last_sign_of_life(name) == 106] == ["x", "z"]


def test_worker_that_gives_away_unasked_is_leaving_until_it_takes_again() -> None:
    view = view_of((100, [row("a", "x", 1), row("b")]), (106, [row("a", "y", 2, stealer="y"), row("b")]))
    assert view.is_leaving("x")
    view.observe([row("a", "y", 3), row("b", "x", 1)], 112, 112)

    assert not view.is_leaving("x")


def test_worker_that_gave_nothing_away_for_a_lease_duration_is_not_leaving() -> None:
    """A mark that came and was served between two scans looks like giving away unasked."""
    view = view_of((100, [row("a", "x", 1)]), (106, [row("a", "y", 2, stealer="y")]), (126, [row("a", "y", 3)]))
    assert view.is_leaving("x")
    view.observe([row("a", "y", 3)], 126.1, 126.1)

    assert not view.is_leaving("x")


def test_giving_away_a_finished_lease_is_no_sign_of_leaving() -> None:
    """It is done in balancing too."""
    given = row("a", "y", 2, stealer="y", checkpoint="SHARD_END")
    assert not view_of((100, [row("a", "x", 1, checkpoint="SHARD_END")]), (106, [given])).is_leaving("x")


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.floats(0.1, 30), st.booleans()), min_size=1, max_size=12))
def test_row_is_expired_exactly_if_it_stood_still_for_longer_than_the_duration(steps: list[tuple[float, bool]]) -> None:
    view, now, counter, moved_at = LeaseView("me", 20.0), 0.0, 1, 0.0
    view.observe([row("a", "x", counter)], now, now)
    for seconds, moves in steps:
        now += seconds
        counter += moves
        moved_at = now if moves else moved_at
        view.observe([row("a", "x", counter)], now, now)

        assert view.is_expired("a", now) == (now - moved_at > 20.0)


def test_suspicion_ends_with_a_sign_of_life_and_silence_afterwards_is_no_proof() -> None:
    """A worker that moved a lease again and then owns none is idle, not dead."""
    view = view_of((100, [row("a", "x", 1)]), (121, [row("a", "x", 1)]), (125, [row("a", "x", 2)]))
    for at in (130, 140, 150):
        view.observe([row("a", "me", 3 + at)], at, at)

    assert not view.is_presumed_dead("x")
