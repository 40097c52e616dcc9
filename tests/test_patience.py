"""A query is run again for the one reason that says nothing of it."""

from __future__ import annotations

import pytest
from pyspark.errors import StreamingQueryException

from tests.datasource.query_process import NOT_STARTED
from tests.patience import with_planners


def test_a_query_is_run_again_only_if_its_planner_came_too_late() -> None:
    came = iter([f"[STREAM_FAILED] {NOT_STARTED}.", f"[STREAM_FAILED] {NOT_STARTED}.", "a record was lost"])

    def run() -> None:
        raise StreamingQueryException(next(came))

    with pytest.raises(StreamingQueryException, match="a record was lost"):
        with_planners(run)
    assert with_planners(lambda: 1) == 1
