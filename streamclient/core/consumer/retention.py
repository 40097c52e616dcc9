"""Lag, time to loss and pace of a shard. Arithmetic only.

Record times are the service's, so "now" has to be the service's too. It is estimated as the later of two clocks: this
machine's, and the newest record time seen anywhere in the stream, advanced since it was seen. So traffic corrects a
slow machine clock. A machine clock that is ahead by some seconds makes every lag larger and every time to loss smaller
by as much: it warns early. No lease depends on this clock.

The age of unread records is known as a bound: the oldest unread record is not older than the last processed record, nor
than the moment of a read that found nothing more. Reports err towards more lag and less time.
"""

from __future__ import annotations

from collections import deque

from attrs import frozen

from streamclient.base.times import MICROS_PER_SECOND, rough_duration

PACE_WINDOW_SECONDS = 300.0
"""Window of the pace, five minutes: long enough to even out large batches, short enough to follow a change."""

PACE_STEP_SECONDS = 5.0
"""Moments of progress closer together than this count as one moment, so that at most sixty are remembered."""

LEAST_PACE_SECONDS = 10.0
"""Shortest span of time from which a forecast is made."""

SAME_PACE = 0.001
"""Smallest difference to the pace of time that counts; smaller ones change an hour's lag by seconds in an hour."""


class RecordClock:
    """An estimate of the service's time. One per stream; the module's docstring names its error."""

    def __init__(self) -> None:
        self._ahead_micros: float | None = None

    def saw(self, record_micros: int, now: float) -> None:
        """Record that a record of time ``record_micros`` was read at ``now`` (monotonic seconds)."""
        ahead = record_micros - now * MICROS_PER_SECOND
        if self._ahead_micros is None or ahead > self._ahead_micros:
            self._ahead_micros = ahead

    def micros(self, wall_micros: int, now: float) -> int:
        """Return microseconds since 1970, given this machine's clock and monotonic seconds."""
        if self._ahead_micros is None:
            return wall_micros
        return max(wall_micros, int(self._ahead_micros + now * MICROS_PER_SECOND))


@frozen
class RetentionReport:
    """The retention fields of ``ShardStatus``, which describes them."""

    lag_seconds: float | None = None
    time_to_loss_seconds: float | None = None
    forecast: str = ""


NOTHING_KNOWN = RetentionReport()
CAUGHT_UP = RetentionReport(lag_seconds=0.0, forecast="caught up")


class Backlog:
    """The unread records of one shard, as far as they can be known. ``now`` is monotonic seconds everywhere."""

    def __init__(self, last_processed_micros: int | None = None) -> None:
        self._unread_micros = last_processed_micros
        self._caught_up_at: float | None = None
        self._moments: deque[tuple[float, int]] = deque()

    @property
    def unread_micros(self) -> int | None:
        """Lower bound for the time of the oldest unread record, by the service's clock; ``None`` if unknown."""
        return self._unread_micros

    def came(self, first_micros: int, now: float) -> None:
        """Record that a page was read whose first record has the time ``first_micros``; 0 tells nothing."""
        if first_micros:
            self._moved_to(first_micros, now)
        self._caught_up_at = None

    def dealt_with(self, last_micros: int, now: float) -> None:
        """Record that everything up to a record of time ``last_micros`` was processed or parked; 0 tells nothing."""
        if last_micros:
            self._moved_to(last_micros, now)

    def was_read_up_to(self, micros: int, now: float) -> None:
        """Record the time of the position at which the shard was begun, unless more is known by now."""
        if self._unread_micros is None:
            self.dealt_with(micros, now)

    def caught_up(self, service_micros: int, now: float) -> None:
        """Record that a read made at ``service_micros`` found nothing more."""
        self._moved_to(max(service_micros, self._unread_micros or 0), now)
        self._caught_up_at = now

    def forget(self) -> None:
        """Forget everything: reading goes on elsewhere."""
        self._unread_micros = self._caught_up_at = None
        self._moments.clear()

    def report(
        self, now: float, service_micros: int, *, expiration_micros: int | None, fresh_seconds: float
    ) -> RetentionReport:
        """Return the shard's report. A read that found nothing more counts for ``fresh_seconds``."""
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
        """Return seconds of records dealt with per second; ``None`` as long as the time observed is too short."""
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
        """Drop the moments before the window except for the latest, so that a shard that stands still has a pace."""
        while len(self._moments) > 1 and self._moments[1][0] <= now - PACE_WINDOW_SECONDS:
            self._moments.popleft()


def forecast(lag_seconds: float, left_seconds: float | None, pace: float | None) -> str:
    """Return in words when a shard with that lag, time to loss and pace catches up or loses records.

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
