"""How far a replication is, and how long it will still take: arithmetic and one line of text."""

from __future__ import annotations

from attrs import define, evolve, field, frozen

from streamclient.base.times import MICROS_PER_SECOND, rough_duration, utc

BAR_WIDTH = 12
"""Of the bar: with it and a rate, what is left still fits a line of 80."""


@frozen(kw_only=True)
class Snapshot:
    """What is known at one moment. Times are microseconds since 1970; 0 where nothing is known yet."""

    stage: str
    """``full data`` or ``changes``."""
    rows: int
    """Written to the destination so far by this process."""
    rows_per_second: float | None
    """Since the start; ``None`` while it is too early to tell."""
    channels_done: int
    channels_total: int
    created_micros: int
    """Where the increments begin."""
    consumed_micros: int
    """How far the slowest channel's changes were copied."""
    now_micros: int
    end_micros: int | None = None
    retried_rows: int = 0
    refused_rows: int = 0
    least_share: float | None = None
    """What was told of this stage before, which still holds: new changes and channels show as a lag and in numbers."""

    @property
    def target_micros(self) -> int:
        """What the copy can be behind: the end time once that is past, and until then the present."""
        return self.now_micros if self.end_micros is None else min(self.end_micros, self.now_micros)

    @property
    def share(self) -> float | None:
        """Share of the present stage that is done, from 0 to 1; ``None`` where nobody knows.

        Of increments it is that of the time from their beginning to the end time, or to the present without one.
        """
        shares = [share for share in (self._measured_share, self.least_share) if share is not None]
        return max(shares, default=None)

    @property
    def _measured_share(self) -> float | None:
        if self.stage == "full data":
            return self.channels_done / self.channels_total if self.channels_total else None
        if self.consumed_micros <= 0:
            return None
        span = (self.end_micros or self.now_micros) - self.created_micros
        return 1.0 if span <= 0 else min(1.0, max(0.0, (self.consumed_micros - self.created_micros) / span))

    @property
    def lag_seconds(self) -> float | None:
        """How far the copy is behind; ``None`` before the increments."""
        if self.stage == "full data" or self.consumed_micros <= 0:
            return None
        return max(0.0, (self.target_micros - self.consumed_micros) / MICROS_PER_SECOND)


@define
class Course:
    """What was told of a run so far: from it follow what is left, and a share that never falls within a stage."""

    _first: Snapshot | None = field(init=False, default=None)
    """Of the present stage, the first with a share."""
    _last: Snapshot | None = field(init=False, default=None)

    def line(self, now: Snapshot) -> str:
        """The progress line for this moment, no earlier than that of the line before."""
        if self._last is not None and self._last.stage == now.stage:
            now = evolve(now, least_share=self._last.share)
        if self._first is None or self._first.stage != now.stage or self._first.share is None:
            self._first = now
        self._last = now
        return describe(now, remaining_seconds(self._first, now))


def remaining_seconds(earlier: Snapshot, now: Snapshot) -> float | None:
    """Estimate from the progress between two snapshots of one stage; ``None`` while there is none to judge by."""
    if earlier.stage != now.stage or earlier.share is None or now.share is None:
        return None
    seconds = (now.now_micros - earlier.now_micros) / MICROS_PER_SECOND
    gained = now.share - earlier.share
    if now.share >= 1.0:
        return 0.0
    return None if gained <= 0 or seconds <= 0 else (1.0 - now.share) * seconds / gained


def describe(now: Snapshot, remaining: float | None) -> str:
    """One line: bar, rows, rate, what is left. The parts that matter most come first: a short line ends before."""
    parts = [now.stage, _bar(now.share), f"{now.rows} rows"]
    if now.refused_rows:
        parts.append(f"{now.refused_rows} refused")
    if now.rows_per_second is not None:
        parts.append(f"{now.rows_per_second:.0f} rows/s")
    if now.stage == "full data":
        parts += [f"channels {now.channels_done}/{now.channels_total}"] if now.channels_total else []
    elif now.lag_seconds is not None:
        parts.append(f"{now.lag_seconds:.1f} s behind")
    if remaining is not None and remaining > 0:
        parts.append(f"about {rough_duration(remaining)} left")
    if now.retried_rows:
        parts.append(f"{now.retried_rows} rows written again")
    if now.stage != "full data" and now.lag_seconds is not None:
        parts.append(f"copied to {utc(now.consumed_micros):%Y-%m-%d %H:%M:%SZ}")
    return "  ".join(parts)


def _bar(share: float | None) -> str:
    if share is None:
        return f"[{'?' * BAR_WIDTH}]"
    filled = round(share * BAR_WIDTH)
    return f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {share:4.0%}"
