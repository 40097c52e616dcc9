"""What of each shard is not merged yet: how old it is, and since when merging it has failed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import define, field

from streamclient.base.times import MICROS_PER_SECOND
from streamclient.records import StreamRecord
from streamclient.worker.health import CallWatchdog

WAIT_SECONDS = 600.0
"""Longest wait for a commit: longer than a healthy destination takes, short enough to show a stuck one."""


@define(eq=False)
class _Unmerged:
    start: str
    """Where it begins."""
    merges: CallWatchdog
    oldest_micros: int | None = None
    """Time of its first change; ``None`` until that is read."""


@define(eq=False)
class UnmergedChanges:
    """Kept by the shards' writer, under its lock; any thread may ask. All but ages is monotonic seconds.

    What is known of a shard outlives its processors, as a merge that fails has them replaced; it ends with a merge, or
    with a processor that begins elsewhere, so that somebody has merged it meanwhile.
    """

    _shards: dict[str, _Unmerged] = field(factory=dict)
    _answers: CallWatchdog = field(factory=lambda: CallWatchdog("a merge has been under way"))

    def begins(self, shard_id: str, start: str) -> None:
        """A processor begins there."""
        known = self._shards.get(shard_id)
        if known is not None and known.start != start:
            del self._shards[shard_id]

    def waits(self, shard_id: str, start: str, records: Sequence[StreamRecord]) -> None:
        """These changes, behind those that wait already, are to be merged."""
        known = self._of(shard_id, start)
        if known.oldest_micros is None:
            known.oldest_micros = records[0].sequence_info.timestamp_micros

    def merging(self, now: float) -> None:
        """A merge is under way; there is one at a time."""
        self._answers.asked(now)

    def answered(self, now: float) -> None:
        """It came back."""
        self._answers.succeeded(now)

    def failed(self, shard_id: str, start: str, error: Exception, now: float) -> None:
        """What is behind ``start`` was not merged."""
        self._of(shard_id, start).merges.failed(error, now)

    def merged(self, shard_id: str) -> None:
        """All that was to be merged."""
        self._shards.pop(shard_id, None)

    def _of(self, shard_id: str, start: str) -> _Unmerged:
        self.begins(shard_id, start)
        made = _Unmerged(start, CallWatchdog(f"shard {shard_id}: no changes were merged"))
        return self._shards.setdefault(shard_id, made)

    def lag_seconds(self, shard_id: str, now_micros: int) -> float | None:
        """Age of the shard's oldest change that was read and is not merged; ``None`` if there is none."""
        known = self._shards.get(shard_id)
        if known is None or known.oldest_micros is None:
            return None
        return max(0.0, (now_micros - known.oldest_micros) / MICROS_PER_SECOND)

    def trouble(self, shard_ids: Iterable[str], now: float, limit_seconds: float) -> str:
        """Why changes of one of these shards have not been merged for longer than the limit; empty if they have."""
        known = [self._shards.get(shard_id) for shard_id in shard_ids]
        told = [one.merges.trouble(now, limit_seconds) for one in known if one is not None]
        found = [text for text in told if text]
        if not found:
            # A merge without an answer is no failure yet: large ones take minutes.
            return self._answers.trouble(now, WAIT_SECONDS)
        return found[0] + (f"; {len(found) - 1} other shards stand still, too" if len(found) > 1 else "")
