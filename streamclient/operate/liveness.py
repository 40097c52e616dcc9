"""Values derived from facts: whether workers live, what they cost, and the lag and time to loss of shards. Pure."""

from __future__ import annotations

from enum import Enum

from streamclient.base.times import SECONDS_PER_HOUR
from streamclient.core.costs import Cost, together_an_hour
from streamclient.model import Lease, Pause
from streamclient.operate.facts import FleetFacts


class Liveness(Enum):
    """The states of a worker, as far as the status table shows them."""

    LIVING = "living"
    SILENT = "silent"
    """A heartbeat is missing, but the worker's leases have not expired."""
    DEAD = "dead"
    UNSEEN = "unseen"
    """The status table has no row that the worker wrote."""


def life(facts: FleetFacts, worker: str) -> Liveness:
    """Return whether ``worker`` lives, by the age of its last heartbeat.

    A heartbeat is a write to the worker's session row. If the worker has no session row, the last renewal of one of its
    leases is used instead.
    """
    session = facts.workers.get(worker)
    if session is not None and session.state == "killed":
        return Liveness.DEAD
    beat = last_beat_micros(facts, worker)
    if not beat:
        return Liveness.UNSEEN
    if facts.age_seconds(beat) > facts.lease_duration_seconds:
        return Liveness.DEAD
    return Liveness.SILENT if facts.is_silent(beat) else Liveness.LIVING


def last_beat_micros(facts: FleetFacts, worker: str) -> int:
    """Return the time of a worker's last write to its session row or, without one, to its leases; 0 if unknown."""
    session = facts.workers.get(worker)
    return facts.beats.get(worker, 0) if session is None else session.beat_micros


def living_workers(facts: FleetFacts) -> list[str]:
    """Return the sorted names of the workers that may take leases."""
    names = sorted({*facts.beats, *facts.workers})
    leaving = {name for name, session in facts.workers.items() if session.state == "leaving"}
    return [name for name in names if name not in leaving and life(facts, name) is Liveness.LIVING]


def fleet_cost(facts: FleetFacts) -> Cost | None:
    """Return the cost per hour of all living workers that publish their cost; ``None`` if no worker does."""
    told = (facts.workers[name].info.cost for name in living_workers(facts) if name in facts.workers)
    return together_an_hour(cost for cost in told if cost is not None)


def is_lease_silent(facts: FleetFacts, lease: Lease) -> bool:
    """Return whether the owner of ``lease`` seems silent. One of two signs is enough.

    The first sign is that the lease was not renewed for more than ``SILENT_SHARE`` of the lease duration. An owner that
    lives may have given up this lease, and then does not renew it. The second sign is that ``life`` returns any
    other value than ``LIVING`` for the owner.
    """
    row = facts.rows.get(lease.lease_key)
    is_silent = row is not None and facts.is_silent(row.beat_micros)
    return is_silent or life(facts, lease.owner) is not Liveness.LIVING


def is_pause_on(pause: Pause | None, now_micros: int) -> bool:
    """Return whether ``pause`` is a pause that has not run out."""
    return pause is not None and (pause.until_micros is None or pause.until_micros > now_micros)


def unread_micros(facts: FleetFacts, shard_id: str) -> int | None:
    """Return the time of a shard's next unread record; ``None`` if no record waits or the time is unknown.

    If the next record cannot be read, return the time of the newest record before the checkpoint instead. This time is
    earlier; see ``is_lag_bound``. Python workers store it with the checkpoint; Java workers do not.
    """
    head, lease = facts.head(shard_id), facts.lease(shard_id)
    if head is None or head.is_trimmed:
        return None
    if not head.problem:
        return head.next_record_micros
    return None if lease is None or lease.progress is None else lease.progress.record_micros or None


def is_lag_bound(facts: FleetFacts, shard_id: str) -> bool:
    """Return whether the known lag and time to loss of a shard are only bounds.

    Then the true lag may be shorter, and the true time to loss may be longer.
    """
    head = facts.head(shard_id)
    return head is not None and bool(head.problem) and unread_micros(facts, shard_id) is not None


def lag_seconds(facts: FleetFacts, shard_id: str) -> float | None:
    """Return the age of the next unread record in seconds: 0 if no record waits, ``None`` if the age is not known.

    The age may be an upper bound; see ``is_lag_bound``.
    """
    head, micros = facts.head(shard_id), unread_micros(facts, shard_id)
    if micros is not None:
        return facts.age_seconds(micros)
    return None if head is None or head.problem or head.is_trimmed else 0.0


def seconds_to_loss(facts: FleetFacts, shard_id: str) -> float | None:
    """Return the seconds until the next unread record is deleted; 0 if it is lost already.

    ``None`` if no unread record or no retention is known. The time may be a lower bound; see ``is_lag_bound``.
    """
    head, micros = facts.head(shard_id), unread_micros(facts, shard_id)
    if head is None or not facts.stream.expiration_hours:
        return None
    if head.is_trimmed:
        return 0.0
    if micros is None:
        return None
    return max(0.0, facts.stream.expiration_hours * SECONDS_PER_HOUR - facts.age_seconds(micros))


def parked_records(facts: FleetFacts) -> dict[str, int]:
    """Return the number of records that each worker has parked since it started.

    Workers that parked no record are left out.
    """
    return {name: facts.workers[name].info.parked for name in sorted(facts.workers) if facts.workers[name].info.parked}
