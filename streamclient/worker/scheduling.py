"""The three ticks of a worker: asked for by APScheduler, which no other module of it knows, and watched by the owner.

The jobs only post a message to the owner thread. Everything that must be right in spite of a late or missed tick (a
step of the wall clock, which APScheduler follows, or a starved process) is the owner's business: it watches its own
monotonic clock and does not wait for a tick that is overdue.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, Protocol

from attrs import frozen

from streamclient.worker.loop import OwnerLoop

_log = logging.getLogger(__name__)

_scheduler_log = logging.getLogger(f"{__name__}.apscheduler")
"""Where APScheduler's own lines would go: every job added and run, which says nothing to anybody. What is wrong is
reported here by ``_report``."""
_scheduler_log.setLevel(logging.CRITICAL + 1)

SCHEDULER_THREADS = 2
"""The jobs return at once, so even one thread would do; the second covers a moment's delay in starting it."""


@frozen
class Job:
    """A function to run now and then at a fixed rate."""

    name: str
    interval_millis: int
    function: Callable[[], object]


class Schedule(Protocol):
    """Running jobs."""

    def stop(self) -> None:
        """Start no job any more, and wait for those that run. Safe to call twice."""


class SchedulerSchedule:
    """Runs jobs on a ``BackgroundScheduler`` of its own; the first run of each is at once."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        # Imported here: APScheduler takes a tenth of the SDK's time, and a schedule of the user's own does without it.
        from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_MISSED  # noqa: PLC0415
        from apscheduler.schedulers.background import BackgroundScheduler  # noqa: PLC0415

        self._scheduler = BackgroundScheduler(
            logger=_scheduler_log,
            executors={"default": _quiet_executor()},
            # Without a grace time of None a late heartbeat would be dropped, with no more than a warning.
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
            timezone=timezone.utc,
            daemon=True,
        )
        self._scheduler.add_listener(_report, EVENT_JOB_ERROR | EVENT_JOB_MISSED)
        for job in jobs:
            self._scheduler.add_job(
                job.function,
                "interval",
                seconds=timedelta(milliseconds=job.interval_millis).total_seconds(),
                next_run_time=datetime.now(timezone.utc),
                id=job.name,
                name=job.name,
            )
        self._scheduler.start()

    def stop(self) -> None:
        """Start no job any more, and wait for those that run."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=True)


class SharedSchedule:
    """The jobs of several owners on one schedule: jobs of one name, which have one interval, run together.

    Thread-safe. Nothing runs before the first owner joins.
    """

    def __init__(self, start: Callable[[Sequence[Job]], Schedule]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._functions: dict[str, list[Callable[[], object]]] = {}
        self._schedule: Schedule | None = None

    def join(self, jobs: Sequence[Job]) -> None:
        """Run these too from now on, each at once for the first time."""
        with self._lock:
            for job in jobs:
                self._functions.setdefault(job.name, []).append(job.function)
            if self._schedule is None:
                run = [Job(job.name, job.interval_millis, partial(self._run, job.name)) for job in jobs]
                self._schedule = self._start(run)
                return
        for job in jobs:
            job.function()

    def stop(self) -> None:
        """Start no job any more, and wait for those that run."""
        if self._schedule is not None:
            self._schedule.stop()

    def _run(self, name: str) -> None:
        for function in tuple(self._functions[name]):
            function()


def start_schedule(jobs: Sequence[Job]) -> Schedule:
    """Start the jobs."""
    return SchedulerSchedule(jobs)


def _quiet_executor() -> Any:
    """Logs where its scheduler does, not under its own name in the program's log."""
    from apscheduler.executors.pool import ThreadPoolExecutor  # noqa: PLC0415

    class QuietExecutor(ThreadPoolExecutor):  # type: ignore[misc]  # the library has no types
        def start(self, scheduler: Any, alias: str) -> None:
            super().start(scheduler, alias)
            self._logger = _scheduler_log

    return QuietExecutor(SCHEDULER_THREADS)


def _report(event: Any) -> None:
    error = getattr(event, "exception", None)
    if error is None:
        _log.warning("scheduled job %s was missed at %s", event.job_id, event.scheduled_run_time)
    else:
        _log.error("scheduled job %s failed", event.job_id, exc_info=error)


OVERDUE_SHARE = 1.5
"""A tick that is later than this many intervals is made by the owner itself. A third of the lease duration is the
longest sensible heartbeat interval, so half an interval of delay costs no lease."""

SHORTEST_DELAY_SECONDS = 0.5
"""Less than this is an ordinary hiccup of a busy machine, however short the interval."""


class Recurring:
    """One recurring event. At most one tick of it waits in the inbox."""

    def __init__(self, name: str, interval_millis: int, loop: OwnerLoop, happen: Callable[[], None]) -> None:
        self._name = name
        self._interval_millis = interval_millis
        self._loop = loop
        self._happen = happen
        interval_seconds = interval_millis / 1_000
        self._longest_seconds = max(interval_seconds * OVERDUE_SHARE, interval_seconds + SHORTEST_DELAY_SECONDS)
        self._ticked(loop.now())
        self._waits = False
        self._warned = False

    def job(self) -> Job:
        """What the scheduler has to run."""
        return Job(self._name, self._interval_millis, self.request)

    def request(self) -> None:
        """Tick, unless one is waiting already. Any thread."""
        if not self._waits:
            self._waits = True
            self._loop.post(self._requested)

    def make_up_for_delay(self) -> None:
        """Tick here and now if the scheduler is late: its clock may have been set back. Owner thread."""
        now = self._loop.now()
        if now <= self.overdue_at:
            return
        late = now - self._last
        if not self._warned:
            self._warned = True
            _log.warning("%s is %.1f s after its last tick; the worker goes on without the scheduler", self._name, late)
        self._run()

    def _requested(self) -> None:
        self._waits = False
        self._warned = False
        self._run()

    def _run(self) -> None:
        self._ticked(self._loop.now())
        self._happen()

    def _ticked(self, now: float) -> None:
        self._last = now
        self.overdue_at = now + self._longest_seconds
        """When the owner has to look again."""
