"""Lag, time to loss and pace of a shard, computed from times that the caller passes.

The times of records come from the service's clock, so the present time must be the service's, too. It is estimated as
the later of two times. One is the time of this machine's clock. The other is the newest record time seen anywhere in
the stream, plus the time that has passed since then. So traffic corrects a machine clock that is slow. If the machine
clock is some seconds fast, every lag is larger and every time to loss is smaller by these seconds: warnings come early.
No lease depends on this estimate.

Only a bound is known for the age of unread records. The oldest unread record is at least as new as the last processed
record, and as the time of the last read that found no more records. So a report may show too much lag and too little
time to loss, but never the opposite.
"""

from __future__ import annotations

from collections import deque

from attrs import frozen

from streamclient.base.times import MICROS_PER_SECOND, rough_duration

PACE_WINDOW_SECONDS = 300.0
"""The time over which the pace of a shard is measured: five minutes. This time is long enough to even out large
batches, and short enough to follow a change."""

PACE_STEP_SECONDS = 5.0
"""The smallest time between two remembered moments of progress. Moments that are closer together count as one moment,
so at most sixty moments are remembered."""

LEAST_PACE_SECONDS = 10.0
"""The shortest time for which a shard must be observed before a forecast is made."""

SAME_PACE = 0.001
"""The smallest difference between a pace and 1 that counts. At a pace of 1 the lag does not change. With a difference
below this value, the lag changes by only seconds in an hour."""


class RecordClock:
    """An estimate of the service's time, one for each stream. The module's docstring states its error."""

    def __init__(self) -> None:
        self._ahead_micros: float | None = None

    def saw(self, record_micros: int, now: float) -> None:
        """Record that a record with the time ``record_micros`` was read at ``now`` (monotonic seconds)."""
        ahead = record_micros - now * MICROS_PER_SECOND
        if self._ahead_micros is None or ahead > self._ahead_micros:
            self._ahead_micros = ahead

    def micros(self, wall_micros: int, now: float) -> int:
        """Return the estimated service time in microseconds since 1970.

        ``wall_micros`` and ``now`` are the present times of the wall clock and of the monotonic clock.
        """
        if self._ahead_micros is None:
            return wall_micros
        return max(wall_micros, int(self._ahead_micros + now * MICROS_PER_SECOND))


@frozen
class RetentionReport:
    """The values for the fields of ``ShardStatus`` that concern retention. ``ShardStatus`` describes them."""

    lag_seconds: float | None = None
    time_to_loss_seconds: float | None = None
    forecast: str = ""


NOTHING_KNOWN = RetentionReport()
CAUGHT_UP = RetentionReport(lag_seconds=0.0, forecast="caught up")


class Backlog:
    """The unread records of one shard, as far as they can be known. ``now`` is always in monotonic seconds."""

    def __init__(self, last_processed_micros: int | None = None) -> None:
        self._unread_micros = last_processed_micros
        self._caught_up_at: float | None = None
        self._moments: deque[tuple[float, int]] = deque()

    @property
    def unread_micros(self) -> int | None:
        """A lower bound for the time of the oldest unread record, by the service's clock; ``None`` if it is unknown."""
        return self._unread_micros

    def came(self, first_micros: int, now: float) -> None:
        """Record that a page was read whose first record has the time ``first_micros``; 0 means an unknown time."""
        if first_micros:
            self._moved_to(first_micros, now)
        self._caught_up_at = None

    def dealt_with(self, last_micros: int, now: float) -> None:
        """Record that all records up to the time ``last_micros`` were processed or parked; 0 means an unknown time."""
        if last_micros:
            self._moved_to(last_micros, now)

    def was_read_up_to(self, micros: int, now: float) -> None:
        """Record the time of the position at which reading began. If a time is known already, do nothing."""
        if self._unread_micros is None:
            self.dealt_with(micros, now)

    def caught_up(self, service_micros: int, now: float) -> None:
        """Record that a read at the service's time ``service_micros`` found no more records."""
        self._moved_to(max(service_micros, self._unread_micros or 0), now)
        self._caught_up_at = now

    def may_follow(self) -> None:
        """Record that a read found no record, but records may follow. The oldest unread record stays as it was."""
        self._caught_up_at = None

    def forget(self) -> None:
        """Forget everything, because reading continues at another position."""
        self._unread_micros = self._caught_up_at = None
        self._moments.clear()

    def report(
        self, now: float, service_micros: int, *, expiration_micros: int | None, fresh_seconds: float
    ) -> RetentionReport:
        """Return the shard's lag, time to loss and forecast at ``now``.

        ``service_micros`` is the same time by the service's clock. ``expiration_micros`` is the stream's retention, or
        ``None`` if it is unknown. A shard counts as caught up for ``fresh_seconds`` after a read that found no more
        records.
        """
        if self._caught_up_at is not None and now - self._caught_up_at <= fresh_seconds:
            return CAUGHT_UP
        if self._unread_micros is None:
            return NOTHING_KNOWN
        lag_seconds = max(0.0, (service_micros - self._unread_micros) / MICROS_PER_SECOND)
        if expiration_micros is None:
            return RetentionReport(lag_seconds, None, forecast(lag_seconds, None, self.pace(now)))
        left_seconds = expiration_micros / MICROS_PER_SECOND - lag_seconds
        return RetentionReport(lag_seconds, left_seconds, forecast(lag_seconds, left_seconds, self.pace(now)))

    def pace(self, now: float) -> float | None:
        """Return the pace: the seconds of record time processed per second; ``None`` while that is unknown."""
        self._drop_old(now)
        if not self._moments or self._unread_micros is None:
            return None
        since, micros = self._moments[0]
        if now - since < LEAST_PACE_SECONDS:
            return None
        return (self._unread_micros - micros) / MICROS_PER_SECOND / (now - since)

    def _moved_to(self, micros: int, now: float) -> None:
        self._unread_micros = micros
        if not self._moments or now - self._moments[-1][0] >= PACE_STEP_SECONDS:
            self._moments.append((now, micros))
            self._drop_old(now)

    def _drop_old(self, now: float) -> None:
        """Drop the moments before the window, except the latest of them.

        With that moment, even a shard that stands still has a pace.
        """
        while len(self._moments) > 1 and self._moments[1][0] <= now - PACE_WINDOW_SECONDS:
            self._moments.popleft()


def forecast(lag_seconds: float, left_seconds: float | None, pace: float | None) -> str:
    """Return in words when a shard with this lag, time to loss and pace catches up or loses records.

    Example:
        >>> forecast(600.0, 82_800.0, 3.0)
        'catches up in about 5 min'
        >>> forecast(82_800.0, 3_600.0, 0.5)
        'falls behind: records are lost in about 2 h'
        >>> forecast(82_800.0, 3_600.0, 0.0)
        'stands still: records are lost in about 60 min'
    """
    if left_seconds is not None and left_seconds <= 0:
        return "past the stream's retention: records may be lost already"
    if pace is None:
        return ""
    if pace > 1 + SAME_PACE:
        return f"catches up in about {rough_duration(lag_seconds / (pace - 1))}"
    if pace >= 1 - SAME_PACE:
        return "keeps its lag"
    how = "stands still" if pace <= 0 else "falls behind"
    if left_seconds is None:
        return how
    return f"{how}: records are lost in about {rough_duration(left_seconds / (1 - max(0.0, pace)))}"
