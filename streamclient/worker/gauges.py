"""What a worker's shards do at one moment, as gauges; and which series end when a shard is gone. Owner thread only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from streamclient.interfaces import IMetrics
from streamclient.metrics import table
from streamclient.model import CheckpointPosition, Metric, ShardStatus

LINGER_SECONDS: Final = 120.0
"""How long the counters of a shard stay after it left this worker: twice the longest usual time between two scrapes, so
that the last of its records are seen. Gauges go at once, because a stale one lies."""

LEASE_STATES: Final = ("running", "waiting", "finished")
"""Values of the label ``state`` of ``streamclient_leases``; each lease is in one of them."""


class Gauges:
    """Sets gauges from samples of all shards' statuses."""

    def __init__(self, metrics: IMetrics) -> None:
        self._metrics = metrics
        self._last: dict[Metric, dict[str, float]] = {table.LAG_SECONDS: {}, table.TIME_TO_LOSS_SECONDS: {}}
        self._states: set[tuple[str, str]] = set()
        self._with_counts: set[str] = set()
        self._gone_at: dict[str, float] = {}

    def counts_of(self, shard_id: str) -> None:
        """The shard has counters from now on."""
        self._with_counts.add(shard_id)

    def sample(self, statuses: Mapping[str, ShardStatus], *, is_healthy: bool, ahead_bytes: int, now: float) -> None:
        """Set everything."""
        self._set_shards(table.LAG_SECONDS, {key: status.lag_seconds for key, status in statuses.items()})
        seconds = {key: status.time_to_loss_seconds for key, status in statuses.items()}
        self._set_shards(table.TIME_TO_LOSS_SECONDS, seconds)
        self._set_totals(statuses)
        self._metrics.set(table.UNHEALTHY, 0.0 if is_healthy else 1.0)
        self._metrics.set(table.PREFETCH_BUFFER_BYTES, ahead_bytes)
        self._forget_counts(statuses, now)

    def close(self) -> None:
        """The worker holds nothing any more. Its counters stay, and say what it has done."""
        for metric in self._last:
            self._set_shards(metric, {})
        self._set_totals({})
        self._metrics.set(table.PREFETCH_BUFFER_BYTES, 0)

    def _set_shards(self, metric: Metric, values: Mapping[str, float | None]) -> None:
        last = self._last[metric]
        known = {shard_id: value for shard_id, value in values.items() if value is not None}
        for shard_id, value in known.items():
            if last.get(shard_id) != value:
                self._metrics.set(metric, value, shard=shard_id)
        for shard_id in last.keys() - known.keys():
            self._metrics.forget(metric, shard=shard_id)
        self._last[metric] = known

    def _set_totals(self, statuses: Mapping[str, ShardStatus]) -> None:
        leases = Counter(map(_lease_state, statuses.values()))
        for state in LEASE_STATES:
            self._metrics.set(table.LEASES, leases[state], state=state)
        shards = Counter((status.state.value.lower(), status.reason_kind.value) for status in statuses.values())
        self._states |= shards.keys()
        for state, reason in sorted(self._states):
            self._metrics.set(table.SHARDS, shards[state, reason], state=state, reason=reason)

    def _forget_counts(self, statuses: Mapping[str, ShardStatus], now: float) -> None:
        for shard_id in self._with_counts:
            if shard_id in statuses:
                self._gone_at.pop(shard_id, None)
            else:
                self._gone_at.setdefault(shard_id, now)
        for shard_id in [shard_id for shard_id, gone_at in self._gone_at.items() if now - gone_at >= LINGER_SECONDS]:
            del self._gone_at[shard_id]
            self._with_counts.discard(shard_id)
            self._metrics.forget(table.RECORDS_PROCESSED, shard=shard_id)
            self._metrics.forget(table.RECORDS_SIZE_BYTES, shard=shard_id)


def _lease_state(status: ShardStatus) -> str:
    if status.checkpoint == CheckpointPosition.SHARD_END:
        return "finished"
    return "running" if status.has_consumer else "waiting"
