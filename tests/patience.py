"""How long tests wait: for what must come, so long that only a fault takes longer, on any machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from streamclient.base.cron import CronSchedule

_Result = TypeVar("_Result")

PATIENCE_SECONDS = 600.0
"""Longest wait for what must come. Nothing is gained by less: a test that passes never waits for it to end."""

FOREVER_SECONDS = 3_600.0
"""For what must not come by itself within any test: whoever waits for it is found out. The longest delay that the local
server injects."""

FOREVER_MILLIS = round(FOREVER_SECONDS * 1_000)

NOT_STARTED = "Python worker failed to connect back"
"""What Spark says of a planner that did not start within its ten seconds, as on a machine with too much to do."""


def until(condition: Callable[[], bool], what: str | Callable[[], object] = "what was waited for") -> None:
    """Return as soon as the condition holds. ``what`` says, or tells when asked, what did not come.

    The pauses are twice as long as the looks: what is waited for needs the processor meanwhile.
    """
    pause, deadline = threading.Event(), time.monotonic() + PATIENCE_SECONDS
    while True:
        began = time.monotonic()
        if condition():
            return
        looked = time.monotonic()
        if looked > deadline:
            raise AssertionError(f"not within {PATIENCE_SECONDS:.0f} s: {what() if callable(what) else what}")
        pause.wait(max(0.01, 2 * (looked - began)))


def with_planners(run: Callable[[], _Result]) -> _Result:
    """Run again what failed since the planner of a query, which had done nothing yet, came too late for Spark."""
    from pyspark.errors import StreamingQueryException  # most tests have no Spark

    deadline = time.monotonic() + PATIENCE_SECONDS  # one that cannot start at all looks the same
    while True:
        try:
            return run()
        except StreamingQueryException as error:
            if NOT_STARTED not in str(error) or time.monotonic() > deadline:
                raise


def run_job(schedule: CronSchedule, name: str, *, late_by: timedelta = timedelta()) -> None:
    """Let the time of a job be now, or have been; return when the run is over, so that the next one is not left out."""
    from apscheduler.events import EVENT_JOB_EXECUTED  # most tests plan nothing

    over = threading.Event()
    note = lambda event: over.set() if event.job_id == name else None  # noqa: E731
    schedule.scheduler.add_listener(note, EVENT_JOB_EXECUTED)
    schedule.scheduler.modify_job(name, next_run_time=datetime.now(timezone.utc) - late_by)
    until(over.is_set, f"the end of job {name}")
    schedule.scheduler.remove_listener(note)
