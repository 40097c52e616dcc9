"""The progress of a replication, the estimate of its remaining time, and the line that shows them to the user."""

from __future__ import annotations

from attrs import define, evolve, field, frozen

from streamclient.base.reasons import counted
from streamclient.base.times import MICROS_PER_SECOND, rough_duration, utc

BAR_WIDTH = 12
"""The width of the progress bar in characters. It leaves room for the rate and the remaining time in a line of 80
characters."""

FULL_DATA, CHANGES = "full data", "changes"
"""The names of a replication's two stages: it copies the table's rows first, and then the table's changes."""


@frozen(kw_only=True)
class Snapshot:
    """The progress of a replication at one time. Its times are in microseconds since 1970, or 0 if unknown."""

    stage: str
    """The current stage of the replication: ``FULL_DATA`` or ``CHANGES``."""
    rows: int = 0
    """The number of rows that this process has written to the destination."""
    rows_per_second: float | None = None
    """The average number of rows written per second since the start; ``None`` shortly after the start."""
    channels_done: int = 0
    channels_total: int = 0
    parts: str = "channels"
    """The noun for the parts that ``channels_done`` and ``channels_total`` count: "channels" or "pieces"."""
    created_micros: int = 0
    """The time from which on the replication reads changes."""
    consumed_micros: int = 0
    """The time up to which the replication has copied the changes of all channels or shards."""
    is_past: bool = False
    """Whether the settings have an end time, and all changes up to this time were read."""
    now_micros: int = 0
    end_micros: int | None = None
    retried_rows: int = 0
    refused_rows: int = 0
    least_share: float | None = None
    """The share in the previous progress line of this stage. New changes and channels make the measured share smaller,
    but ``share`` never falls below this value."""

    @property
    def target_micros(self) -> int:
        """The time up to which changes should be copied by now: the end time if it has passed, or the present."""
        return self.now_micros if self.end_micros is None else min(self.end_micros, self.now_micros)

    @property
    def share(self) -> float | None:
        """The completed share of the current stage, from 0 to 1; ``None`` if it is unknown.

        For changes, the share is the copied part of a time range. The range begins at ``created_micros``, and ends at
        the end time. Without an end time, the range ends at the present.
        """
        shares = [share for share in (self._measured_share, self.least_share) if share is not None]
        return max(shares, default=None)

    @property
    def _measured_share(self) -> float | None:
        if self.stage == FULL_DATA:
            return self.channels_done / self.channels_total if self.channels_total else None
        if self.consumed_micros <= 0:
            return None
        span = (self.end_micros or self.now_micros) - self.created_micros
        return 1.0 if span <= 0 else min(1.0, max(0.0, (self.consumed_micros - self.created_micros) / span))

    @property
    def lag_seconds(self) -> float | None:
        """The age, in seconds, of the oldest change that is perhaps not copied yet; ``None`` while rows are copied."""
        if self.stage == FULL_DATA or self.consumed_micros <= 0:
            return None
        return max(0.0, (self.target_micros - self.consumed_micros) / MICROS_PER_SECOND)


@define
class Course:
    """Makes the progress lines of a replication's run. The shown share of a stage never falls."""

    _first: Snapshot | None = field(init=False, default=None)
    """The first snapshot of the current stage with a known share; the remaining time is estimated from it."""
    _last: Snapshot | None = field(init=False, default=None)

    def line(self, now: Snapshot) -> str:
        """Return the progress line for ``now``, which must be newer than the snapshots of all earlier calls."""
        if self._last is not None and self._last.stage == now.stage:
            now = evolve(now, least_share=self._last.share)
        if self._first is None or self._first.stage != now.stage or self._first.share is None:
            self._first = now
        self._last = now
        return describe(now, remaining_seconds(self._first, now))


def remaining_seconds(earlier: Snapshot, now: Snapshot) -> float | None:
    """Estimate the remaining seconds of a stage from two snapshots; return ``None`` if they show no progress."""
    if earlier.stage != now.stage or earlier.share is None or now.share is None:
        return None
    seconds = (now.now_micros - earlier.now_micros) / MICROS_PER_SECOND
    gained = now.share - earlier.share
    if now.share >= 1.0:
        return 0.0
    return None if gained <= 0 or seconds <= 0 else (1.0 - now.share) * seconds / gained


def describe(now: Snapshot, remaining: float | None) -> str:
    """Return the progress line for a snapshot. Its most important parts come first, because a terminal may cut the end.

    ``remaining`` is the estimate of the remaining seconds; ``None`` without an estimate.
    """
    parts = [now.stage, _bar(now.share), counted(now.rows, "row")]
    if now.refused_rows:
        parts.append(f"{now.refused_rows} refused")
    if now.rows_per_second is not None:
        parts.append(f"{now.rows_per_second:.0f} rows/s")
    if now.stage == FULL_DATA:
        parts += [f"{now.parts} {now.channels_done}/{now.channels_total}"] if now.channels_total else []
    elif now.lag_seconds is not None:
        parts.append(f"lag {now.lag_seconds:.1f} s")
    if remaining is not None and remaining > 0:
        parts.append(f"about {rough_duration(remaining)} left")
    if now.retried_rows:
        parts.append(f"{counted(now.retried_rows, 'row')} written again")
    if now.stage != FULL_DATA and now.lag_seconds is not None:
        parts.append(f"copied to {utc(now.consumed_micros):%Y-%m-%d %H:%M:%SZ}")
    return "  ".join(parts)


def _bar(share: float | None) -> str:
    if share is None:
        return f"[{'?' * BAR_WIDTH}]"
    filled = round(share * BAR_WIDTH)
    return f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {share:4.0%}"
