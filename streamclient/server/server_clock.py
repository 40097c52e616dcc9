"""The server's clock: the machine's time plus an offset that tests increase.

Laws:

- While the server runs, its time never goes back. If the machine's time goes back, the server's time goes on at half
  the pace, until the machine's time has caught up.
- If the machine's time jumps ahead by more than ``LONGEST_STEP_MICROS`` while the server runs, the server ignores the
  jump. Otherwise retention and time to live would delete fresh data. The two times agree again when the machine's clock
  is set back, or when the server restarts.
- At a start, the server goes on from the time of the last commit, if that time is at most ``LARGEST_LEAD_MICROS`` ahead
  of the machine's time. A larger lead shows that an earlier clock was wrong. Then the server takes the machine's time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from streamclient.base import logs
from streamclient.base.times import MICROS_PER_HOUR, MICROS_PER_SECOND, now_micros

_log = logs.logger(__name__)

LATEST_MICROS = 9_214_646_399_000_000
"""The end of the year 2261, in microseconds since 1970. The clock goes no further, because answers about tunnels have
times as nanoseconds in signed 64-bit integers, which end in April 2262."""

LARGEST_LEAD_MICROS = 2 * MICROS_PER_HOUR
"""The largest lead over the machine's time, in microseconds, with which the server starts. It covers a clock that is
wrong by one hour because daylight saving was set twice. The machine's time catches up with such a lead in four
hours. Until then, older data may expire too early, by at most the lead."""

LONGEST_STEP_MICROS = 24 * MICROS_PER_HOUR
"""The largest forward step of the machine's time, in microseconds, that the server follows. It equals the shortest time
to live and the usual retention, so such a step deletes no fresh data. A virtual machine that slept overnight makes a
smaller step."""

_CHECK_MICROS = MICROS_PER_HOUR
"""The change of the machine's time, in microseconds, after which the clock compares this time with the steady clock."""

_NOISE_MICROS = MICROS_PER_SECOND
"""The size, in microseconds, below which a step of the machine's time may be noise: the two clocks are read one after
the other."""

_CATCH_UP_DIVISOR = 2
"""The factor by which the server's time runs slower while the machine's time catches up."""


_BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)
"""The id of the system's clock that also counts the time while the machine is suspended; ``None`` if the system has no
such clock."""


def _steady_micros() -> int:
    return (time.monotonic_ns() if _BOOT_CLOCK is None else time.clock_gettime_ns(_BOOT_CLOCK)) // 1000


class Clock:
    """A clock that returns microseconds since 1970 and never goes back. Safe to use from any thread."""

    def __init__(
        self, wall_micros: Callable[[], int] | None = None, steady_micros: Callable[[], int] | None = None
    ) -> None:
        """Read the machine's time and steady clock from the given functions, by default from the operating system.

        With ``wall_micros`` and without ``steady_micros``, the clock follows every forward step. After a step back, the
        clock stands still until ``wall_micros`` has caught up.
        """
        if wall_micros is None:
            wall_micros, steady_micros = now_micros, steady_micros or _steady_micros
        self._machine_micros = wall_micros
        self._is_checked = steady_micros is not None
        self._steady_micros = steady_micros or (lambda: 0)
        self._lock = threading.Lock()
        self._offset_micros = 0
        self._latest_micros = 0
        self._ahead_since: tuple[int, int] | None = None
        """The server's time and the steady clock's time when ``now_micros`` noticed a step back of the machine's time.
        ``None`` if the machine's time need not catch up."""
        self._checked_at = (wall_micros(), self._steady_micros()) if self._is_checked else (0, 0)
        """The machine's time and the steady clock's time at their last comparison."""
        self._not_followed_micros = 0
        """The sum, in microseconds, of the forward steps of the machine's time that the clock ignores."""

    @property
    def offset_micros(self) -> int:
        """The total number of microseconds by which ``advance`` moved the clock ahead of the machine's time."""
        return self._offset_micros

    def now_micros(self) -> int:
        """Return the present time in microseconds since 1970.

        The result is the machine's time plus the offset. If that sum is before an earlier result, the time goes on from
        the earlier result at half the pace.
        """
        with self._lock:
            now = min(self._wall_micros() + self._offset_micros, LATEST_MICROS)
            if self._ahead_since is not None:
                noticed, steady = self._ahead_since
                passed = (self._steady_micros() - steady) // _CATCH_UP_DIVISOR
                self._latest_micros = min(max(self._latest_micros, noticed + passed), LATEST_MICROS)
            if now >= self._latest_micros:
                self._ahead_since = None
                self._latest_micros = now
            elif self._ahead_since is None:
                self._ahead_since = (self._latest_micros, self._steady_micros())
            return self._latest_micros

    def _wall_micros(self) -> int:
        """Return the machine's time without the forward steps that the clock ignores."""
        wall = self._machine_micros()
        if self._is_checked and (self._not_followed_micros or abs(wall - self._checked_at[0]) > _CHECK_MICROS):
            self._check(wall, self._steady_micros())
        return wall - self._not_followed_micros

    def _check(self, wall: int, steady: int) -> None:
        checked_wall, checked_steady = self._checked_at
        step = wall - checked_wall - (steady - checked_steady)
        if self._not_followed_micros and abs(step) < _NOISE_MICROS:
            return  # no comparison is noted, so that real small steps add up, and noise does not
        self._checked_at = (wall, steady)
        if step > LONGEST_STEP_MICROS:
            self._not_followed_micros += step
            _log.warning(
                "the machine's clock jumped %d s ahead of the elapsed time; the server ignores the jump, so that it "
                "deletes no fresh data. If the machine's clock is right now, restart the server",
                step // MICROS_PER_SECOND,
            )
        elif step < 0:
            left = self._not_followed_micros + step
            self._not_followed_micros = left if left >= _NOISE_MICROS else 0

    def advance(self, seconds: float) -> None:
        """Move the clock forward, so that retention and time to live take effect without waiting.

        The clock cannot move back, because then stored versions and stream records would have times in the future.

        Raises:
            ValueError: ``seconds`` is negative, or moves the clock past the year 2261.
        """
        if not seconds >= 0:
            raise ValueError(f"the clock only moves forward: got {seconds} seconds, expected 0 or more")
        now = self.now_micros()
        with self._lock:
            step = round(seconds * MICROS_PER_SECOND)
            if now + step > LATEST_MICROS:
                raise ValueError(f"the clock cannot move past the year 2261: got {seconds} seconds")
            self._offset_micros += step
            if self._ahead_since is not None:
                self._latest_micros += step
                self._ahead_since = None

    def resume(self, offset_micros: int, latest_micros: int) -> bool:
        """Continue after an earlier run on the same data; return whether that run's clock was wrong.

        ``offset_micros`` is the offset of that run's clock, and ``latest_micros`` is the time of its last commit. The
        clock was wrong if this time is more than ``LARGEST_LEAD_MICROS`` ahead of the present time. In this case, take
        over only the offset. Otherwise, the clock also goes on from the time of the last commit.
        """
        with self._lock:
            self._offset_micros = max(self._offset_micros, offset_micros)
            lead = latest_micros - self._wall_micros() - self._offset_micros
            if lead > LARGEST_LEAD_MICROS:
                _log.warning(
                    "the last commit is %d s after the machine's time, so an earlier clock was wrong; the server comes "
                    "back to the machine's time",
                    lead // MICROS_PER_SECOND,
                )
                return True
            self._latest_micros = min(max(self._latest_micros, latest_micros), LATEST_MICROS)
            return False
