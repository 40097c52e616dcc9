"""One worker's part of the assignment, in a fleet whose workers all have sessions.

Every worker computes the same assignment (``assignment``) from the same rows. Each worker carries out the moves of its
own leases. It leaves all other moves to the other workers, but wakes the workers that must make them.

Laws:

* a row in transit is left alone until it has arrived, or until its receiver is gone;
* a worker takes only leases that are free (never owned, left by a killed session, or standing still) or in its own
  name;
* if a lease stands still although its owner lives, any worker that sees this assigns the lease, because other workers
  may see it later;
* a free lease is taken by its assigned worker. If that worker has not taken the lease after a lease duration, any
  worker that sees this takes the lease;
* a lease that this worker must not read, because its processor is done with the shard or stalled on it, goes to another
  worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from attrs import frozen

from streamclient.core.plan.assign import Assignment, Placed, assign_by_count, assign_by_load
from streamclient.core.plan.moves import Move, Moves
from streamclient.core.sightings import LeaseView, Sighting
from streamclient.model import BalanceBy, Lease


@frozen(kw_only=True)
class FleetView:
    """The facts from which a worker plans its moves."""

    worker_id: str
    view: LeaseView
    now: float
    staying: Sequence[str]
    """The workers that may receive leases. This worker is among them until it begins to stop."""
    held: Collection[str]
    """The keys of the leases that this worker holds."""
    pending: Mapping[str, str]
    """The keys of leases that this worker is moving (by a take, a mark or a hand-over), and their future workers."""
    busy: Collection[str]
    """The keys of leases that this worker must not touch now, because a write is unanswered or an old consumer still
    runs."""
    declined: Collection[str]
    """The keys of leases that this worker must not read, because its processor left the shard or stalled on it."""
    balance_by: BalanceBy = BalanceBy.COUNT
    rates: Mapping[str, float] | None = None
    """The loads of leases, if this worker is the one that evens them out; otherwise ``None``."""
    may_mark: bool = True

    def assignment(self) -> Assignment:
        """Return the future worker of each lease, by lease key."""
        self.view.counts.tell_time(self.now)
        placed = [Placed(key, self._holder(key), row.is_finished) for key, row in sorted(self.view.rows.items())]
        if self.balance_by is BalanceBy.COUNT:
            return assign_by_count(placed, self.staying)
        return assign_by_load(placed, self.staying, self.rates)

    def _holder(self, key: str) -> str:
        """Return the worker that has the lease or will have it; empty if no worker does.

        If another worker let the lease stand still until the lease expired, that worker does not count. It may have
        owned the lease, or have failed to take the lease at a hand-over. The assignment ignores workers that do not
        stay.
        """
        if key in self.pending:
            return self.pending[key]
        row = self.view.rows[key]
        if row.is_marked and row.stealer in self.staying:
            return row.stealer
        is_ours = key in self.held or row.owner == self.worker_id
        return row.owner if is_ours or key not in self.view.counts.expired else ""


def plan_part(fleet: FleetView) -> Moves:
    """Return the moves that this worker must make now."""
    target = fleet.assignment()
    if not target:
        return Moves()
    fleet.view.counts.tell_time(fleet.now)
    part = _Part(fleet, target)
    for key in sorted(target):
        part.look_at(key)
    return part.plan()


class _Part:
    """One pass over the leases, which collects this worker's moves."""

    def __init__(self, fleet: FleetView, target: Assignment) -> None:
        self.fleet = fleet
        self.target = target
        self.takes: list[Lease] = []
        self.marks: list[Move] = []
        self.transfers: list[Move] = []
        self.others: set[str] = set()
        self.look_again_at: float | None = None
        self._shares = Counter(target.values())

    def plan(self) -> Moves:
        return Moves(
            takes=tuple(self.takes),
            marks=tuple(self.marks),
            transfers=tuple(self.transfers),
            wakes=tuple(sorted(self.others)),
            look_again_at=self.look_again_at,
        )

    def look_at(self, key: str) -> None:
        fleet, receiver = self.fleet, self.target[key]
        sighting = fleet.view.sightings[key]
        if key in fleet.busy or key in fleet.pending:
            return
        if key in fleet.held:
            self._look_at_held(sighting.row, receiver)
        elif sighting.row.owner == fleet.worker_id:
            self._look_at_own(sighting.row, receiver)
        elif key in fleet.view.counts.expired:
            self._look_at_free(sighting, receiver)
        else:
            self._look_at_held_by_other(sighting, receiver)

    def _look_at_held(self, row: Lease, receiver: str) -> None:
        if receiver == self.fleet.worker_id or row.stealer:
            return
        if self.fleet.rates is not None and not row.is_finished:
            self.transfers.append(Move(row, receiver))
        elif self.fleet.may_mark:
            self.others.add(receiver)

    def _look_at_own(self, row: Lease, receiver: str) -> None:
        """Plan the move of a lease whose row names this worker, but which this worker does not hold.

        The lease is left from an earlier run, or was handed over. A lease that was handed over is taken, even if this
        worker has enough leases, because the giver may be unable to take it back.
        """
        fleet = self.fleet
        is_wanted = row.is_handed_over and row.lease_key not in fleet.declined
        self._assign(row, fleet.worker_id if is_wanted and fleet.worker_id in fleet.staying else receiver)

    def _look_at_free(self, sighting: Sighting, receiver: str) -> None:
        """Plan the move of a free lease.

        If the lease has no owner, or its owner's session was killed, all workers see that, and the assigned worker
        takes the lease. If the lease stood still, other workers may see that later, so this worker assigns the lease.

        A worker that let the lease stand still, or did not take it at a hand-over, gets it only if no other worker can.
        """
        fleet, row = self.fleet, sighting.row
        is_standing_still = row.owner != "" and not sighting.is_orphaned
        if is_standing_still and receiver == row.owner:
            receiver = fleet.worker_id if fleet.worker_id in fleet.staying else self._substitute(row.owner)
        duration = fleet.view.duration_seconds
        is_left = fleet.now - max(sighting.freed_at, sighting.moved_at + duration) > duration
        if receiver == fleet.worker_id or is_standing_still:
            self._assign(row, receiver)
        elif is_left and fleet.worker_id in fleet.staying:
            self._assign(row, fleet.worker_id)
        else:
            self.others.add(receiver)

    def _look_at_held_by_other(self, sighting: Sighting, receiver: str) -> None:
        fleet, row = self.fleet, sighting.row
        if row.is_handed_over:
            self.others.add(row.owner)
        elif not row.owner:
            expires_at = sighting.moved_at + fleet.view.duration_seconds
            self.look_again_at = min(expires_at, self.look_again_at or expires_at)
        elif row.owner == receiver or row.stealer or row.owner not in fleet.staying or not fleet.may_mark:
            return
        elif receiver != fleet.worker_id and (fleet.rates is None or row.is_finished):
            self.others.add(receiver)
        elif receiver != fleet.worker_id or row.lease_key not in fleet.declined:
            self.marks.append(Move(row, receiver))

    def _assign(self, row: Lease, receiver: str) -> None:
        """Plan to take a lease that is not being read, or to hand it on to ``receiver``."""
        fleet = self.fleet
        if receiver != fleet.worker_id:
            self.transfers.append(Move(row, receiver))
        elif row.lease_key not in fleet.declined:
            self.takes.append(row)
        else:
            substitute = self._substitute(fleet.worker_id)
            if substitute != fleet.worker_id:
                self.transfers.append(Move(row, substitute))

    def _substitute(self, unwanted: str) -> str:
        """Return the staying worker, other than ``unwanted``, with the fewest leases.

        Return ``unwanted`` if no other worker stays.
        """
        others = [name for name in self.fleet.staying if name != unwanted]
        substitute = min(others, key=lambda name: (self._shares[name], name), default=unwanted)
        self._shares[substitute] += 1
        return substitute
