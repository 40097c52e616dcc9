"""Loops that are cancelled and killed over HTTP, in every test run; ``make loop-drill`` does so often, and measures.

A body that blocks its event loop stands in ``test_async_for.py``, where heartbeats are counted in place of seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from streamclient.server import LocalTablestore
from tests.loops.drill import play
from tests.loops.drill_figures import FIGURES, Row
from tests.loops.drill_judge import BEGINNING, END, Change, Done, Event, Given, Stored, judge


@pytest.mark.slow
def test_a_loop_that_is_cancelled_and_killed_leaves_no_gap_and_stores_nothing_that_is_not_finished(
    tmp_path: Path,
) -> None:
    shown = play(1, tmp_path / "drill", cancellations=10, kills=3)

    assert shown.problems == []
    assert (shown.cancellations.total() >= 10, shown.kills) == (True, 3)
    assert min(shown.changes, shown.bodies, shown.finished, shown.stored) > 0, str(shown)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*FIGURES} - {"blocked"}))
def test_leases_leave_loops(name: str, local: LocalTablestore) -> None:
    """How soon is told by the drill alone."""
    assert FIGURES[name](local).trouble == ""


# --- the judge -----------------------------------------------------------------------------------------------------


def given(position: str, *changes: tuple[str, int, int], shard: str = "s") -> Given:
    """A body's beginning; a change is its key, its number and its place."""
    return Given(shard, position, tuple(Change(key, number, (place,)) for key, number, place in changes))


FIRST, SECOND = given("p2", ("a", 1, 1), ("b", 1, 2)), given("p4", ("a", 2, 3), ("b", 2, 4))
CHILD = given("p4", ("a", 2, 1), ("b", 2, 2), shard="child")
WRITTEN = {"a": 2, "b": 2}


def done(position: str, shard: str = "s") -> Done:
    return Done(shard, position)


def stored(position: str, shard: str = "s") -> Stored:
    return Stored(shard, position)


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([FIRST, done("p2"), stored("p2"), SECOND, done("p4"), stored("p4")], id="in order"),
        pytest.param([FIRST, done("p2"), SECOND, stored("p2"), done("p4"), stored("p4")], id="beside the next body"),
        pytest.param([stored(BEGINNING), FIRST, done("p2"), SECOND, done("p4"), stored(END)], id="to the end"),
        pytest.param([FIRST, FIRST, done("p2"), SECOND, SECOND, done("p4"), stored("p4")], id="left and repeated"),
        pytest.param([FIRST, done("p2"), FIRST, done("p2"), SECOND, done("p4"), stored("p2")], id="finished twice"),
        pytest.param(
            [Given("s", "p4", (*FIRST.changes, *SECOND.changes)), done("p4"), stored("p4"), SECOND, stored("p4")],
            id="in one batch, and again from another place",
        ),
        pytest.param(
            [FIRST, done("p2"), stored(END), CHILD, done("p4", "child"), stored("p4", "child")],
            id="in a parent and a child",
        ),
    ],
)
def test_what_may_be_is_clean(events: Sequence[Event]) -> None:
    assert judge(events, WRITTEN) == []


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        pytest.param(
            [FIRST, done("p2"), given("p4", ("a", 2, 3)), done("p4"), stored("p4")],
            "key b: 2 changes were written, and 1 finished",
            id="lost at the end",
        ),
        pytest.param(
            [given("p2", ("a", 1, 1)), done("p2"), SECOND, done("p4")],
            "key b: change 2 is finished after change 0",
            id="lost in between",
        ),
        pytest.param(
            [FIRST, SECOND, done("p4"), done("p2")],
            "key a: change 2 is finished after change 0",
            id="batches swapped",
        ),
        pytest.param(
            [given("p4", ("a", 2, 3), ("a", 1, 1), ("b", 1, 2), ("b", 2, 4)), done("p4")],
            "shard s: the batch up to p4 is out of order",
            id="swapped in a batch",
        ),
        pytest.param(
            [FIRST, stored("p2"), done("p2"), SECOND, done("p4")],
            "shard s is stored up to p2, and 2 changes up to there are not finished, such as 1 of key a",
            id="stored before the end of the body",
        ),
        pytest.param(
            [FIRST, SECOND, done("p2"), stored("p4"), done("p4")],
            "shard s is stored up to p4, and 2 changes up to there are not finished, such as 2 of key a",
            id="stored beyond a body that was left",
        ),
        pytest.param(
            [FIRST, done("p2"), SECOND, stored(END), done("p4")],
            "shard s is stored up to SHARD_END, and 2 changes up to there are not finished, such as 2 of key a",
            id="end stored beside an open body",
        ),
        pytest.param(
            [FIRST, done("p2"), stored("p9"), SECOND, done("p4")],
            "shard s is stored up to p9, where no batch ended",
            id="stored where no batch ended",
        ),
        pytest.param(
            [
                given("p1", ("a", 1, 1)),
                given("p2", ("b", 1, 2)),
                done("p2"),
                stored("p2"),
                done("p1"),
                SECOND,
                done("p4"),
            ],
            "shard s is stored up to p2, and 1 changes up to there are not finished, such as 1 of key a",
            id="stored beyond an earlier body",
        ),
    ],
)
def test_what_must_not_be_is_found(events: Sequence[Event], problem: str) -> None:
    assert problem in judge(events, WRITTEN)


@pytest.mark.parametrize(
    ("row", "end"),
    [
        (Row("moves", 0.5, 1.0), "0.50 s  ok"),
        (Row("moves", 1.0, 1.0), "1.00 s  takes 1 s or more"),
        (Row("keeps", 6.0, None), "6.00 s  ok"),
        (Row("keeps", 0.5, 1.0, "the lease is lost"), "0.50 s  the lease is lost"),
    ],
)
def test_a_figure_says_what_is_wrong(row: Row, end: str) -> None:
    assert str(row).endswith(end)
