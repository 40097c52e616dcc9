"""Giving leases away: when, and to whom."""

from __future__ import annotations

from streamclient.core.leases import WriteKind
from streamclient.core.situation import Situation
from streamclient.core.tenancy import HeldLease
from streamclient.model import Lease


def must_drain(situation: Situation, held: HeldLease) -> bool:
    """Whether reading shall stop so that the lease can go to another worker."""
    asked = held.lease.is_marked and not is_mark_void(situation, held.lease)
    return situation.is_stopping or held.is_released or asked


def is_mark_void(situation: Situation, lease: Lease) -> bool:
    """Whether the worker that wants the lease died meanwhile.

    Handing over to a dead worker would leave the shard unread for a whole lease duration. The owner erases such a mark
    by taking its own lease again; a stealer that lives after all simply marks again.
    """
    return lease.is_marked and situation.view.is_presumed_dead(lease.stealer)


def new_owner(situation: Situation, lease: Lease) -> str | None:
    """The worker to hand a lease to: who asked for it, or else the least loaded live worker; ``None`` if none lives.

    Workers that seem to be stopping come last, then those that gave no sign of life of their own for a lease duration.
    Leases on their way to a worker count as its load, so that a stopping worker spreads what it had.
    """
    if lease.is_marked and not is_mark_void(situation, lease):
        return lease.stealer
    view, now = situation.view, situation.now
    recent = now - situation.duration_seconds
    loads = _loads(situation)
    names = {name for name in (*loads, *view.live_workers(now)) if name != situation.worker_id}
    alive = [name for name in sorted(names) if not view.is_presumed_dead(name)]
    ranked = [
        (
            view.is_leaving(name),
            view.last_sign_of_life(name) < recent,
            loads.get(name, 0),
            situation.rng.random(),
            name,
        )
        for name in alive
    ]
    return min(ranked)[-1] if ranked else None


def _loads(situation: Situation) -> dict[str, int]:
    loads = situation.view.credits(situation.now)
    for key in sorted(situation.flights):
        write = situation.flights[key].write
        if write.kind is WriteKind.TRANSFER and write.result is not None:
            loads[write.result.owner] = loads.get(write.result.owner, 0) + 1
    return loads
