"""A fleet that is followed for a page. A thread of its own reads it again and again while it is wanted.

Laws:

* A fleet that is not wanted is not read.
* A reading begins at the earliest 2 seconds, or ten times the length of the reading before, after that one began.
* After a failure the last good reading stays, with the problem and its age; the next try waits 2, 4, ... 60 seconds.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from attrs import evolve, frozen

from streamclient.base import logs
from streamclient.base.pools import start_thread
from streamclient.errors import StreamClientError, printable
from streamclient.operate.fleet_watch import FleetWatch
from streamclient.operate.overview import Overview
from streamclient.operate.site import Site, text_of
from streamclient.operate.verdict import FleetVerdict

_log = logs.logger(__name__)

Result = TypeVar("Result")

INTERVAL_SECONDS = 2.0
"""The shortest time between the beginnings of two readings, in seconds: about as often as a person looks."""

INTERVAL_ROUNDS = 10
"""The shortest time between the beginnings of two readings, as a multiple of the last reading's length. So at most a
tenth of the time is spent reading."""

LONGEST_PAUSE_SECONDS = 60.0
"""The longest pause after failures, in seconds. A service that is back is noticed within this time."""

JITTER = 0.25
"""The part of a pause after failures that is left to chance, so that consoles do not come back all at once."""

JOIN_TIMEOUT_SECONDS = 1.0
"""The seconds for which the end waits for a reading: a call of the service may last longer, and its thread then ends by
itself."""


@frozen(kw_only=True)
class FleetReading:
    """The present knowledge of a fleet."""

    view: Overview | None = None
    """The last good reading; ``None`` before the first."""
    verdict: FleetVerdict | None = None
    """The verdict of the last reading, even if that reading failed."""
    read_micros: int | None = None
    """The time of the last good reading, by the service's clock."""
    problem: str | None = None
    """The error of the last reading; ``None`` if it was good."""
    round_seconds: float = 0.0
    """The length of the last reading, in seconds, including the time to make its documents."""
    next_seconds: float = 0.0
    """The time from the beginning of the last reading to the next one."""


class FleetFollower:
    """Follows one fleet. Thread-safe; its thread begins with the first wish and lasts until ``close``."""

    def __init__(
        self,
        site: Site,
        *,
        noted: Callable[[FleetReading], object],
        made: Callable[[FleetReading], object],
        monotonic: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Store the parts; nothing is read yet.

        After each reading ``noted`` is called, if it was good, and then ``made``, in the thread that read. ``made`` is
        called by ``follow``, too, for the last reading once more.
        """
        self._watch = FleetWatch(site, monotonic)
        self._site = site
        self._noted = noted
        self._made = made
        self._monotonic = monotonic
        self._chance = chance
        self._changed = threading.Condition()
        self._reading = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_wanted = self._is_stirred = self._is_closed = False
        self._due = float("-inf")
        self._failures = 0
        self.reading = FleetReading()

    def follow(self, *, wanted: bool, stirred: bool = False) -> None:
        """Read the fleet from now on, or no longer. With ``stirred``, call ``made`` at once.

        Raises:
            NoThreadError: the system refused the thread; call this again.
        """
        with self._changed:
            self._is_wanted, self._is_stirred = wanted, self._is_stirred or stirred
            if wanted and self._thread is None and not self._is_closed:
                self._thread = start_thread(self._run, f"console-{self._site.data_table}")
            self._changed.notify_all()

    def look(self, use: Callable[[FleetReading], Result]) -> Result:
        """Return the result of ``use`` for a reading that is not older than the interval. If necessary, read now."""
        with self._reading:
            if self._monotonic() >= self._due:
                self._read()
            return use(self.reading)

    def hasten(self) -> None:
        """Begin the next reading at once, because something was changed."""
        with self._changed:
            self._due = float("-inf")
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread, or leave it to its last call."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(JOIN_TIMEOUT_SECONDS)

    def _run(self) -> None:
        while self._awaited():
            with self._reading:
                if self._is_wanted and self._monotonic() >= self._due:
                    self._read()
                elif self._is_wanted:
                    self._call(self._made)

    def _awaited(self) -> bool:
        """Wait until something is to be done. Return ``False`` at the end."""
        with self._changed:
            while not self._is_closed:
                left = self._due - self._monotonic()
                if self._is_wanted and (left <= 0 or self._is_stirred):
                    break
                self._changed.wait(left if self._is_wanted else None)
            self._is_stirred = False
            return not self._is_closed

    def _read(self) -> None:
        began = self._monotonic()
        view, problem = None, None
        try:
            view = self._watch.next()
        except StreamClientError as error:
            problem = printable(text_of(error))
        except Exception:
            _log.exception("reading the fleet of table %s failed", self._site.data_table)
            problem = "reading the fleet failed inside the console; see its log"
        if view is not None:
            self.reading = evolve(self.reading, view=view, read_micros=view.facts.now_micros)
        self.reading = evolve(self.reading, verdict=self._watch.verdict, problem=problem)
        if view is not None:
            self._call(self._noted)
        ended = self._monotonic()
        self._failures = 0 if view is not None else self._failures + 1
        pause = self._pause(ended - began)
        self.reading = evolve(self.reading, round_seconds=round(ended - began, 3), next_seconds=round(pause, 1))
        self._call(self._made)
        # A large document takes longer to make than its rows to read, and counts as well.
        self._due = ended + pause if self._failures else began + self._pause(self._monotonic() - began)

    def _pause(self, seconds: float) -> float:
        """Return the time to the next reading.

        It counts from the beginning of a good reading, but from the end of a failed one.
        """
        if not self._failures:
            return max(INTERVAL_SECONDS, INTERVAL_ROUNDS * seconds)
        longest = min(LONGEST_PAUSE_SECONDS, INTERVAL_SECONDS * 2.0 ** min(self._failures - 1, 10))
        return longest * (1 - JITTER * self._chance())

    def _call(self, made: Callable[[FleetReading], object]) -> None:
        """Call ``made``. If it fails, the thread goes on."""
        try:
            made(self.reading)
        except Exception:
            _log.exception("showing the fleet of table %s failed", self._site.data_table)
