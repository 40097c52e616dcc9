"""How long tests wait: for what must come, so long that only a fault takes longer, on any machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from tests.datasource.query_process import NOT_STARTED

Result = TypeVar("Result")

PATIENCE_SECONDS = 600.0
"""Longest wait for what must come. Nothing is gained by less: a test that passes never waits for it to end."""

FOREVER_SECONDS = 3_600.0
"""For what must not come by itself within any test: whoever waits for it is found out. The longest delay that the local
server injects."""

FOREVER_MILLIS = round(FOREVER_SECONDS * 1_000)


def until(condition: Callable[[], bool], what: str | Callable[[], object] = "what was waited for") -> None:
    """Return as soon as the condition holds. ``what`` says, or tells when asked, what did not come."""
    pause, deadline = threading.Event(), time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {PATIENCE_SECONDS:.0f} s: {what() if callable(what) else what}")
        pause.wait(0.01)


def however_late_planners_start(work: Callable[[], Result]) -> Result:
    """Do work with a streaming query, and anew where Spark gave its planner up.

    Spark gives the process that plans for a source ten seconds to start, which no setting changes and a machine with
    much to do exceeds. The query has done nothing by then; whatever else ends it is a failure.
    """
    while True:
        try:
            return work()
        except Exception as error:
            if NOT_STARTED not in str(error):
                raise
