"""The repeated reading of one fleet for a page in a browser, by a thread that reads while a page wants the fleet.

Laws:

* A fleet that no page wants is not read.
* From the beginning of a reading to the beginning of the next reading at least 2 seconds pass, and at least ten times
  the length of the earlier reading.
* After a failed reading, pages still get the last good reading, with its time and the error. The pause before the next
  try is 2, 4, ... 60 seconds.
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
"""The shortest time between the beginnings of two readings, in seconds. A person does not look at a page more often."""

INTERVAL_ROUNDS = 10
"""The shortest time between the beginnings of two readings, as a multiple of the last reading's length. So at most a
tenth of the time is spent reading."""

LONGEST_PAUSE_SECONDS = 60.0
"""The longest pause after failed readings, in seconds. Within this time the console notices that the service is
back."""

JITTER = 0.25
"""The share of a pause after failed readings that is random, so that many consoles do not repeat calls together."""

JOIN_TIMEOUT_SECONDS = 1.0
"""The longest time, in seconds, for which ``close`` waits for the thread. A longer reading goes on after ``close``."""


@frozen(kw_only=True)
class FleetReading:
    """The results of the last reading of a fleet, and of the last good reading."""

    view: Overview | None = None
    """The content of a screen, from the last good reading; ``None`` before the first good reading."""
    verdict: FleetVerdict | None = None
    """The verdict of the last reading, even if that reading failed."""
    read_micros: int | None = None
    """The time of the last good reading, by the service's clock."""
    problem: str | None = None
    """The error of the last reading; ``None`` if that reading was good."""
    round_seconds: float = 0.0
    """The length of the last reading, in seconds, without the time to make documents."""
    next_seconds: float = 0.0
    """The seconds from the beginning of the last reading, or from its end if it failed, to the next reading."""


class FleetFollower:
    """Reads one fleet repeatedly, in a thread that runs from the first wanted reading until ``close``. Thread-safe."""

    def __init__(
        self,
        site: Site,
        *,
        noted: Callable[[FleetReading], object],
        made: Callable[[FleetReading], object],
        monotonic: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Prepare to read the fleet at ``site``; read nothing yet.

        After a good reading, the thread that read calls ``noted``. After every reading, good or failed, it calls
        ``made``. ``follow`` with ``stirred`` makes the thread call ``made`` once more, with the last reading.
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
        """Begin to read the fleet repeatedly if it is ``wanted``; otherwise stop.

        With ``stirred``, have the thread call ``made`` immediately, even if no reading is due.

        Raises:
            NoThreadError: the system refused the thread; call this method again.
        """
        with self._changed:
            self._is_wanted, self._is_stirred = wanted, self._is_stirred or stirred
            if wanted and self._thread is None and not self._is_closed:
                self._thread = start_thread(self._run, f"console-{self._site.data_table}")
            self._changed.notify_all()

    def look(self, use: Callable[[FleetReading], Result]) -> Result:
        """Call ``use`` with the last reading, and return its result. Read the fleet first if a reading is due."""
        with self._reading:
            if self._monotonic() >= self._due:
                self._read()
            return use(self.reading)

    def hasten(self) -> None:
        """Make the next reading due immediately, because the caller changed something."""
        with self._changed:
            self._due = float("-inf")
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread. If the thread waits for a call of the service, it ends when this call has returned."""
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
        """Wait until the thread has something to do, and return ``True``. After ``close``, return ``False``."""
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
        # Include the time that ``made`` takes, because making a large document takes longer than reading its rows.
        self._due = ended + pause if self._failures else began + self._pause(self._monotonic() - began)

    def _pause(self, seconds: float) -> float:
        """Return the seconds to the next reading, after a reading that took ``seconds``.

        The seconds count from the beginning of a good reading, but from the end of a failed reading.
        """
        if not self._failures:
            return max(INTERVAL_SECONDS, INTERVAL_ROUNDS * seconds)
        longest = min(LONGEST_PAUSE_SECONDS, INTERVAL_SECONDS * 2.0 ** min(self._failures - 1, 10))
        return longest * (1 - JITTER * self._chance())

    def _call(self, made: Callable[[FleetReading], object]) -> None:
        """Call ``made``. If the call fails, log its error, and go on."""
        try:
            made(self.reading)
        except Exception:
            _log.exception("showing the fleet of table %s failed", self._site.data_table)
