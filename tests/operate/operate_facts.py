"""Facts made by hand, for pure tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import evolve

from streamclient.core.worker_info import ShardTrouble, WorkerInfo
from streamclient.model import CheckpointPosition, Lease, Pause, Progress, Shard
from streamclient.operate.facts import FleetFacts, HeadFacts, Process, RowFacts, StreamView, WorkerFacts

NOW = 1_700_000_000_000_000
STREAM = "orders_1"
LEASE_SECONDS = 20.0
END = CheckpointPosition.SHARD_END
OLDEST = CheckpointPosition.TRIM_HORIZON


def ago(seconds: float) -> int:
    return NOW - round(seconds * 1_000_000)


def row(
    shard_id: str,
    owner: str = "",
    *,
    stealer: str = "",
    checkpoint: str = "it-1",
    counter: int = 7,
    parents: Iterable[str] = (),
    pause: Pause | None = None,
    taken: bool = False,
    progress: Progress | None = None,
    beat: float = 1.0,
    moved: float = 1.0,
    owned: float = 100.0,
    marked: float = 1.0,
) -> RowFacts:
    """A lease row; the numbers are ages in seconds."""
    acknowledged = f"{pause.request_id} {owner}" if pause is not None and taken else ""
    lease = Lease(
        shard_id,
        STREAM,
        owner,
        counter,
        stealer,
        checkpoint,
        frozenset(parents),
        pause=pause,
        pause_taken=acknowledged,
        progress=progress,
    )
    return RowFacts(
        shard_id=shard_id,
        lease=lease,
        beat_micros=ago(beat),
        checkpoint_micros=ago(moved),
        owner_micros=ago(owned),
        stealer_micros=ago(marked),
        pause_micros=ago(5),
    )


def worker(
    name: str,
    *,
    state: str = "running",
    beat: float = 1.0,
    shards: Mapping[str, str] | None = None,
    process: Process = Process.ELSEWHERE,
    nonce: str = "n1",
    kind: str = "",
    **info: Any,
) -> WorkerFacts:
    said = {key: ShardTrouble(text, kind) for key, text in (shards or {}).items()}
    told = WorkerInfo(host="host", pid=12, shards=said, **info)
    return WorkerFacts(name=name, state=state, nonce=nonce, beat=3, beat_micros=ago(beat), info=told, process=process)


def facts(
    *rows: RowFacts,
    workers: Iterable[WorkerFacts] = (),
    listing: Iterable[Shard] | None = None,
    heads: Mapping[str, HeadFacts] | None = None,
    **others: Any,
) -> FleetFacts:
    """Facts; without ``listing`` the stream lists exactly the shards that have rows."""
    leases = [each.lease for each in rows if each.lease is not None]
    shards = [_shard(lease) for lease in leases] if listing is None else list(listing)
    stream = StreamView(
        table_name="orders",
        stream_id=STREAM,
        expiration_hours=24,
        listing={shard.shard_id: shard for shard in shards},
    )
    made = FleetFacts(
        now_micros=NOW,
        lease_duration_seconds=LEASE_SECONDS,
        status_table_name="orders_status",
        stream=stream,
        rows={each.shard_id: each for each in rows},
        workers={each.name: each for each in workers},
        heads=heads or {},
    )
    return evolve(made, **others)


def _shard(lease: Lease) -> Shard:
    parents = [*sorted(lease.parent_shard_ids), None, None]
    return Shard(lease.lease_key, parents[0], parents[1])


def waiting(seconds: float) -> HeadFacts:
    """An unread record of that age."""
    return HeadFacts(next_record_micros=ago(seconds))
