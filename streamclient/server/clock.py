"""The server's clock: the machine's time plus an offset that tests move forward, and never backwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_MICROS_PER_SECOND = 1_000_000

LATEST_MICROS = 253_402_300_799_000_000
"""The end of the year 9999, which dates can still name; in milliseconds and nanoseconds it fits into 64 bits."""


def _wall_micros() -> int:
    return time.time_ns() // 1000


def _steady_micros() -> int:
    return time.monotonic_ns() // 1000


class Clock:
    """Microseconds since 1970, never decreasing. Safe to use from any thread."""

    def __init__(self, wall_micros: Callable[[], int] | None = None) -> None:
        """With a clock of one's own, time stands still where that steps back; else it goes on at its pace."""
        self._wall_micros = _wall_micros if wall_micros is None else wall_micros
        self._steady_micros = _steady_micros if wall_micros is None else lambda: 0
        self._lock = threading.Lock()
        self._offset_micros = 0
        self._latest_micros = 0
        self._ahead_since: tuple[int, int] | None = None
        """While the machine's time is behind: the time when that was noticed, and the steady clock's."""

    @property
    def offset_micros(self) -> int:
        """How far the clock was moved ahead of the machine's time."""
        return self._offset_micros

    def now_micros(self) -> int:
        """The present time: the machine's, or while that is behind an earlier answer, that answer and what passed."""
        with self._lock:
            now = self._wall_micros() + self._offset_micros
            if now >= self._latest_micros:
                self._ahead_since = None
                self._latest_micros = now
                return now
            if self._ahead_since is None:
                self._ahead_since = (self._latest_micros, self._steady_micros())
            noticed, steady = self._ahead_since
            self._latest_micros = max(self._latest_micros, noticed + self._steady_micros() - steady)
            return self._latest_micros

    def advance(self, seconds: float) -> None:
        """Move the clock forward, for retention and time to live to take effect without waiting.

        Raises:
            ValueError: ``seconds`` is negative, as stored versions and stream records would lie in the future, or
                leads behind the year 9999.
        """
        if not seconds >= 0:
            raise ValueError(f"the clock only moves forward: got {seconds} seconds, expected 0 or more")
        now = self.now_micros()
        with self._lock:
            step = round(seconds * _MICROS_PER_SECOND)
            if now + step > LATEST_MICROS:
                raise ValueError(f"the clock does not move behind the year 9999: got {seconds} seconds")
            self._offset_micros += step
            if self._ahead_since is not None:
                self._latest_micros += step
                self._ahead_since = None

    def resume(self, offset_micros: int, latest_micros: int) -> None:
        """Go on where an earlier run on the same data ended, unless this clock is already further ahead."""
        with self._lock:
            self._offset_micros = max(self._offset_micros, offset_micros)
            self._latest_micros = max(self._latest_micros, latest_micros)
