"""The health of mirrors and replications, and the lag and the failures of a mirror's merges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import define, evolve, field

from streamclient.base.reasons import WorkerHealth
from streamclient.base.times import MICROS_PER_SECOND
from streamclient.model import ShardStatus
from streamclient.records import StreamRecord
from streamclient.worker.health import CallWatchdog

WAIT_SECONDS = 600.0
"""The longest time, in seconds, for which a mirror waits for a commit. A healthy destination takes less time."""


def health_of(worker: WorkerHealth, shards: Iterable[ShardStatus], *troubles: str, remedy: str = "") -> WorkerHealth:
    """Return the health ``worker`` together with further troubles.

    The result is unhealthy if ``worker`` is unhealthy, if a shard has lost changes, or if a text in ``troubles`` is not
    empty. ``remedy`` says what a user can do after such a loss. The reason in a shard's status names other remedies,
    which are for programs with a worker of their own.
    """
    lost = (f"shard {shard.shard_id}: {shard.lost}; {remedy}" for shard in shards if shard.lost is not None)
    reasons = [reason for reason in (worker.reason, next(lost, ""), *troubles) if reason]
    return evolve(worker, is_healthy=not reasons, reason="; ".join(reasons))


@define(eq=False)
class _Unmerged:
    start: str
    """The position up to which the mirror has merged the shard's changes."""
    merges: CallWatchdog
    oldest_micros: int | None = None
    """The time of the first change after ``start``, in microseconds; ``None`` until this process has read that
    change."""


@define(eq=False)
class UnmergedChanges:
    """Records the age of each shard's oldest unmerged change, and since when merges of the shard fail.

    ``MirrorWriter`` updates this object under its lock. Any thread may read from this object. The arguments ``now`` are
    seconds of the monotonic clock. A shard's entry outlives the shard's processor, which the worker replaces after a
    failed merge. The entry is removed after a successful merge. The entry is also removed when a processor begins at
    another position, because another process must have merged the changes up to that position.
    """

    _shards: dict[str, _Unmerged] = field(factory=dict)
    _answers: CallWatchdog = field(factory=lambda: CallWatchdog("a merge has been under way"))

    def begins(self, shard_id: str, start: str) -> None:
        """Record that a processor of the shard begins at the position ``start``."""
        known = self._shards.get(shard_id)
        if known is not None and known.start != start:
            del self._shards[shard_id]

    def waits(self, shard_id: str, start: str, records: Sequence[StreamRecord]) -> None:
        """Record that ``records`` wait to be merged. They come after ``start`` and after earlier waiting changes."""
        known = self._of(shard_id, start)
        if known.oldest_micros is None:
            known.oldest_micros = records[0].sequence_info.timestamp_micros

    def merging(self, now: float) -> None:
        """Record that a merge has begun. Only one merge runs at a time."""
        self._answers.asked(now)

    def answered(self, now: float) -> None:
        """Record that the running merge has ended, with or without success."""
        self._answers.succeeded(now)

    def failed(self, shard_id: str, start: str, error: Exception, now: float) -> None:
        """Record that a merge of the changes after ``start`` has failed."""
        self._of(shard_id, start).merges.failed(error, now)

    def merged(self, shard_id: str) -> None:
        """Record that the mirror has merged all changes of the shard that were waiting."""
        self._shards.pop(shard_id, None)

    def _of(self, shard_id: str, start: str) -> _Unmerged:
        self.begins(shard_id, start)
        made = _Unmerged(start, CallWatchdog(f"shard {shard_id}: no changes were merged"))
        return self._shards.setdefault(shard_id, made)

    def lag_seconds(self, shard_id: str, now_micros: int) -> float | None:
        """Return the age of the shard's oldest change that was read but not merged; ``None`` without such a change."""
        known = self._shards.get(shard_id)
        if known is None or known.oldest_micros is None:
            return None
        return max(0.0, (now_micros - known.oldest_micros) / MICROS_PER_SECOND)

    def trouble(self, shard_ids: Iterable[str], now: float, limit_seconds: float) -> str:
        """Return in words why merges have failed for longer than ``limit_seconds``; an empty text if they have not."""
        known = [self._shards.get(shard_id) for shard_id in shard_ids]
        texts = [each.merges.trouble(now, limit_seconds) for each in known if each is not None]
        troubles = [text for text in texts if text]
        if not troubles:
            # Large merges take minutes, so a running merge counts as a failure only after ``WAIT_SECONDS``.
            return self._answers.trouble(now, WAIT_SECONDS)
        return troubles[0] + (f"; {len(troubles) - 1} other shards stand still, too" if len(troubles) > 1 else "")
