"""What is waited for has the processor; a query is run again for the one reason that says nothing of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pyspark.errors import StreamingQueryException

from tests import patience
from tests.patience import NOT_STARTED, until, with_planners


def test_pauses_are_twice_as_long_as_the_looks_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that computes would slow down what it looks for, and every other test."""
    seconds, clock, pauses = iter([0.001, 1.0, 0.0]), [0.0], list[float]()

    def look() -> bool:
        clock[0] += next(seconds)
        return len(pauses) == 2

    monkeypatch.setattr(patience, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(patience, "threading", SimpleNamespace(Event=lambda: SimpleNamespace(wait=pauses.append)))
    until(look)

    assert pauses == pytest.approx([0.01, 2.0])


def test_a_query_is_run_again_only_if_its_planner_came_too_late() -> None:
    came = iter([f"[STREAM_FAILED] {NOT_STARTED}.", f"[STREAM_FAILED] {NOT_STARTED}.", "a record was lost"])

    def run() -> None:
        raise StreamingQueryException(next(came))

    with pytest.raises(StreamingQueryException, match="a record was lost"):
        with_planners(run)
    assert with_planners(lambda: 1) == 1


def test_a_planner_that_never_starts_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PATIENCE_SECONDS", -1.0)

    def run() -> None:
        raise StreamingQueryException(NOT_STARTED)

    with pytest.raises(StreamingQueryException, match=NOT_STARTED):
        with_planners(run)
