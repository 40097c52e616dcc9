"""The server's clock: the machine's time plus an offset that tests move forward, and never backwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_MICROS_PER_SECOND = 1_000_000


def _wall_micros() -> int:
    return time.time_ns() // 1000


class Clock:
    """Microseconds since 1970, never decreasing. Safe to use from any thread."""

    def __init__(self, wall_micros: Callable[[], int] = _wall_micros) -> None:
        self._wall_micros = wall_micros
        self._lock = threading.Lock()
        self._offset_micros = 0
        self._latest_micros = 0

    @property
    def offset_micros(self) -> int:
        """How far the clock was moved ahead of the machine's time."""
        return self._offset_micros

    def now_micros(self) -> int:
        """The present time; equal to the last answer when the machine's time stepped back."""
        with self._lock:
            self._latest_micros = max(self._latest_micros, self._wall_micros() + self._offset_micros)
            return self._latest_micros

    def advance(self, seconds: float) -> None:
        """Move the clock forward, for retention and time to live to take effect without waiting.

        Raises:
            ValueError: ``seconds`` is negative; stored versions and stream records would lie in the future.
        """
        if not seconds >= 0:
            raise ValueError(f"the clock only moves forward: got {seconds} seconds, expected 0 or more")
        with self._lock:
            self._offset_micros += round(seconds * _MICROS_PER_SECOND)

    def ensure_offset(self, offset_micros: int) -> None:
        """Take over the offset of an earlier run on the same data, unless this clock is already further ahead."""
        with self._lock:
            self._offset_micros = max(self._offset_micros, offset_micros)
