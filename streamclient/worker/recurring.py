"""Ticks: asked for by the scheduler, watched by the owner."""

from __future__ import annotations

import logging
from collections.abc import Callable

from streamclient.worker.loop import OwnerLoop
from streamclient.worker.scheduling import Job

_log = logging.getLogger(__name__)

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
