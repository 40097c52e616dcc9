"""What all consumers of one stream share to tell how far behind they are. Owner thread."""

from __future__ import annotations

from collections.abc import Callable

from streamclient.core.consumer.retention import MICROS_PER_HOUR, Backlog, RecordClock, RetentionReport
from streamclient.worker.health import CallWatchdog

FRESH_MARGIN_SECONDS = 5.0
"""A caught-up shard is read again within the longest idle pause; if it was not for so much longer, it is held up, and
what may have come meanwhile counts as unread."""


class StreamFacts:
    """The stream's retention, and an estimate of the service's time."""

    def __init__(self, wall_micros: Callable[[], int], longest_idle_millis: int) -> None:
        self._wall_micros = wall_micros
        self._fresh_seconds = longest_idle_millis / 1_000 + FRESH_MARGIN_SECONDS
        self._clock = RecordClock()
        self.reads = CallWatchdog("no read of the stream succeeded")
        """Of any shard."""
        self.expiration_micros: int | None = None
        """How long the stream keeps a record; ``None`` until it was described."""

    def described(self, expiration_hours: int | None) -> None:
        """DescribeStream answered."""
        if expiration_hours is not None:
            self.expiration_micros = expiration_hours * MICROS_PER_HOUR

    def saw(self, record_micros: int, now: float) -> None:
        """A record of that time was read."""
        self._clock.saw(record_micros, now)

    def service_micros(self, now: float) -> int:
        """The service's time, about."""
        return self._clock.micros(self._wall_micros(), now)

    def report(self, backlog: Backlog, now: float) -> RetentionReport:
        """How a shard with that backlog stands."""
        return backlog.report(
            now,
            self.service_micros(now),
            expiration_micros=self.expiration_micros,
            fresh_seconds=self._fresh_seconds,
        )

    def loss_micros(self, backlog: Backlog) -> float:
        """When the shard's oldest unread record is deleted; the smaller, the more urgent. Unknown counts as now."""
        unread_micros = backlog.unread_micros
        return 0.0 if unread_micros is None else float(unread_micros + (self.expiration_micros or 0))
