"""Progress of a replication, and the time that it will still take: arithmetic and one line of text."""

from __future__ import annotations

from attrs import define, evolve, field, frozen

from streamclient.base.reasons import counted
from streamclient.base.times import MICROS_PER_SECOND, rough_duration, utc

BAR_WIDTH = 12
"""The width of the bar, in characters. With the bar and a rate, the time that is left still fits a line of 80."""

FULL_DATA, CHANGES = "full data", "changes"
"""The names of the stages. First the rows that were there are copied, then their changes."""


@frozen(kw_only=True)
class Snapshot:
    """The facts at one moment. Times are microseconds since 1970; 0 where nothing is known yet."""

    stage: str
    """``FULL_DATA`` or ``CHANGES``."""
    rows: int = 0
    """Number of rows that this process has written to the destination."""
    rows_per_second: float | None = None
    """Rows per second since the start; ``None`` while it is too early to tell."""
    channels_done: int = 0
    channels_total: int = 0
    parts: str = "channels"
    """The name of the counted parts: channels of a tunnel, or pieces of a table."""
    created_micros: int = 0
    """The time of the first changes that are read."""
    consumed_micros: int = 0
    """The time up to which changes of every channel or shard were copied."""
    is_past: bool = False
    """Whether everything up to the end time was read, if there is an end time."""
    now_micros: int = 0
    end_micros: int | None = None
    retried_rows: int = 0
    refused_rows: int = 0
    least_share: float | None = None
    """The share of this stage that was already shown. It is a lower bound: new changes and new channels would make the
    share smaller, and show in other numbers."""

    @property
    def target_micros(self) -> int:
        """The time that the copy has to reach: the present or, when the end time is past, the end time."""
        return self.now_micros if self.end_micros is None else min(self.end_micros, self.now_micros)

    @property
    def share(self) -> float | None:
        """The share of the present stage that is done, from 0 to 1; ``None`` where that is unknown.

        For changes, it is a share of the time since the first changes. That time ends at the end time, or without one
        at the present.
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
        """Age of the oldest change that is not copied, in seconds; ``None`` before the changes."""
        if self.stage == FULL_DATA or self.consumed_micros <= 0:
            return None
        return max(0.0, (self.target_micros - self.consumed_micros) / MICROS_PER_SECOND)


@define
class Course:
    """The snapshots of a run so far. They give the time that is left, and a share that never falls within a stage."""

    _first: Snapshot | None = field(init=False, default=None)
    """The first snapshot of the present stage with a share."""
    _last: Snapshot | None = field(init=False, default=None)

    def line(self, now: Snapshot) -> str:
        """Return the progress line for this snapshot. Its share is at least the share in the line before."""
        if self._last is not None and self._last.stage == now.stage:
            now = evolve(now, least_share=self._last.share)
        if self._first is None or self._first.stage != now.stage or self._first.share is None:
            self._first = now
        self._last = now
        return describe(now, remaining_seconds(self._first, now))


def remaining_seconds(earlier: Snapshot, now: Snapshot) -> float | None:
    """Estimate the time that is left from two snapshots of one stage; ``None`` while they show no progress."""
    if earlier.stage != now.stage or earlier.share is None or now.share is None:
        return None
    seconds = (now.now_micros - earlier.now_micros) / MICROS_PER_SECOND
    gained = now.share - earlier.share
    if now.share >= 1.0:
        return 0.0
    return None if gained <= 0 or seconds <= 0 else (1.0 - now.share) * seconds / gained


def describe(now: Snapshot, remaining: float | None) -> str:
    """Return one line: bar, rows, rate, time left. The most important parts come first, as a terminal cuts the end."""
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
