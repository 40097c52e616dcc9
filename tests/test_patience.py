"""A query is run again for the one reason that says nothing of it."""

from __future__ import annotations

import pytest
from pyspark.errors import StreamingQueryException

from tests import patience
from tests.patience import NOT_STARTED, with_planners


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
