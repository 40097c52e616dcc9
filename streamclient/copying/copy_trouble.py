"""Trouble and lag of a copy: the health of mirrors and replications, and the unmerged changes of a mirror."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import define, evolve, field

from streamclient.base.reasons import WorkerHealth
from streamclient.base.times import MICROS_PER_SECOND
from streamclient.model import ShardStatus
from streamclient.records import StreamRecord
from streamclient.worker.health import CallWatchdog

WAIT_SECONDS = 600.0
"""The longest wait for a commit, in seconds: longer than a healthy destination takes, short enough to show a stuck
one."""


def health_of(worker: WorkerHealth, shards: Iterable[ShardStatus], *troubles: str) -> WorkerHealth:
    """Judge a copy by its worker, by its shards, and by other ``troubles``. A shard may have lost changes."""
    lost = (f"shard {shard.shard_id}: {shard.reason}" for shard in shards if shard.lost is not None)
    reasons = [reason for reason in (worker.reason, next(lost, ""), *troubles) if reason]
    return evolve(worker, is_healthy=not reasons, reason="; ".join(reasons))


@define(eq=False)
class _Unmerged:
    start: str
    """The position after the last merge."""
    merges: CallWatchdog
    oldest_micros: int | None = None
    """Time of the first change after ``start``; ``None`` until that change is read."""


@define(eq=False)
class UnmergedChanges:
    """The age of each shard's oldest unmerged change, and the time since which the shard's merges fail.

    The shards' writer keeps these facts under its lock; any thread may ask for them. All times but ages are monotonic
    seconds. An entry outlives its processor, because the processor is replaced after a failed merge. The entry ends
    with a merge, or with a processor that begins at another position, because another process has merged the changes
    meanwhile.
    """

    _shards: dict[str, _Unmerged] = field(factory=dict)
    _answers: CallWatchdog = field(factory=lambda: CallWatchdog("a merge has been under way"))

    def begins(self, shard_id: str, start: str) -> None:
        """Record that a processor begins at ``start``."""
        known = self._shards.get(shard_id)
        if known is not None and known.start != start:
            del self._shards[shard_id]

    def waits(self, shard_id: str, start: str, records: Sequence[StreamRecord]) -> None:
        """Record that ``records`` wait to be merged, after the changes that wait already."""
        known = self._of(shard_id, start)
        if known.oldest_micros is None:
            known.oldest_micros = records[0].sequence_info.timestamp_micros

    def merging(self, now: float) -> None:
        """Record that a merge is under way; only one merge runs at a time."""
        self._answers.asked(now)

    def answered(self, now: float) -> None:
        """Record that the running merge was answered."""
        self._answers.succeeded(now)

    def failed(self, shard_id: str, start: str, error: Exception, now: float) -> None:
        """Record that the changes after ``start`` were not merged."""
        self._of(shard_id, start).merges.failed(error, now)

    def merged(self, shard_id: str) -> None:
        """Record that all waiting changes of a shard were merged."""
        self._shards.pop(shard_id, None)

    def _of(self, shard_id: str, start: str) -> _Unmerged:
        self.begins(shard_id, start)
        made = _Unmerged(start, CallWatchdog(f"shard {shard_id}: no changes were merged"))
        return self._shards.setdefault(shard_id, made)

    def lag_seconds(self, shard_id: str, now_micros: int) -> float | None:
        """Return the age of the shard's oldest change that was read and not yet merged; ``None`` without one."""
        known = self._shards.get(shard_id)
        if known is None or known.oldest_micros is None:
            return None
        return max(0.0, (now_micros - known.oldest_micros) / MICROS_PER_SECOND)

    def trouble(self, shard_ids: Iterable[str], now: float, limit_seconds: float) -> str:
        """Return why changes of one of the shards have been unmerged for longer than the limit; empty if none have."""
        known = [self._shards.get(shard_id) for shard_id in shard_ids]
        texts = [each.merges.trouble(now, limit_seconds) for each in known if each is not None]
        troubles = [text for text in texts if text]
        if not troubles:
            # A merge without an answer is not a failure yet: large ones take minutes.
            return self._answers.trouble(now, WAIT_SECONDS)
        return troubles[0] + (f"; {len(troubles) - 1} other shards stand still, too" if len(troubles) > 1 else "")
