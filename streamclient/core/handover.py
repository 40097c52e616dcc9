"""Giving leases away: when, and to whom."""

from __future__ import annotations

from collections.abc import Sequence

from streamclient.core.situation import Situation
from streamclient.core.tenancy import HeldLease
from streamclient.model import Lease


def must_drain(situation: Situation, held: HeldLease) -> bool:
    """Whether reading shall stop so that the lease can go to another worker."""
    if situation.is_stopping or held.is_released or held.stall or held.promised_to:
        return True
    return held.lease.is_marked and not is_mark_void(situation, held.lease)


def is_mark_void(situation: Situation, lease: Lease) -> bool:
    """Whether the worker that wants the lease died meanwhile, or says that it is leaving.

    Handing over to a dead worker would leave the shard unread for a whole lease duration. The owner erases such a mark
    by taking its own lease again; a stealer that lives after all simply marks again.
    """
    if not lease.is_marked:
        return False
    return situation.view.is_presumed_dead(lease.stealer) or situation.presence.roster.is_leaving(lease.stealer)


def new_owner(situation: Situation, lease: Lease, promised_to: str = "") -> str | None:
    """The worker to hand a lease to; ``None`` if none lives.

    It is whoever asked for it, or else whom it was promised to, or else the least loaded live worker. In a fleet whose
    workers all have sessions those that stay share what a stopping one leaves, as its heirs. In any other, workers that
    seem to be stopping come last, then those that gave no sign of life of their own for a lease duration. Leases on
    their way to a worker count as its load, so that a stopping worker spreads what it had.
    """
    if lease.is_marked and not is_mark_void(situation, lease):
        return lease.stealer
    staying = situation.presence.roster.staying_others
    heir = promised_to or situation.heirs.get(lease.lease_key, "")
    if heir in staying:
        return heir
    if situation.presence.is_uniform:
        return _least_loaded(situation, staying)
    view, now = situation.view, situation.now
    recent = now - situation.duration_seconds
    loads = situation.loads
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


def _least_loaded(situation: Situation, staying: Sequence[str]) -> str | None:
    loads = situation.loads
    return min(staying, key=lambda name: (loads.get(name, 0), name)) if staying else None
