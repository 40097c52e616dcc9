"""Who should read what: which leases to take now, and which to ask for.

The numbers are those of the Java stream client (``LeaseTaker``), so that both can share a table without pulling leases
to and fro: all rows count, finished ones too; the target is the number of rows over the number of workers, rounded
up. Three things differ, none of which can make Java steal more: leases in transit count for their stealer, several
leases may be marked in one pass, and only leases worth moving are marked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from random import Random

from attrs import define, frozen

from streamclient.config import ClientConfig
from streamclient.core.view import LeaseView
from streamclient.model import Lease

MARKED_SHARE = 3
"""At most a third of the need (rounded up) is marked in one pass: several workers that join together see the same
counts, so marking everything at once would take too much from one owner; a third each converges in a few passes."""


@frozen
class TakePlan:
    """What one pass should do. All tuples are disjoint; each row is as seen in the view."""

    takes: tuple[Lease, ...] = ()
    """To take now: handed over to this worker, left from its earlier life, or free."""
    transfers: tuple[Lease, ...] = ()
    """Rows left from an earlier life of this worker that another worker marked: hand over at once."""
    steals: tuple[Lease, ...] = ()
    """To mark."""
    contested: tuple[Lease, ...] = ()
    """Rows in this worker's name that it does not hold and that move: another process uses the name."""


def plan_takes(
    view: LeaseView,
    worker_id: str,
    held: Collection[str],
    now: float,
    config: ClientConfig,
    *,
    rng: Random,
    pending: Collection[str] = (),
    excluded: Collection[str] = (),
) -> TakePlan:
    """Decide one pass over the rows last seen.

    ``held`` are the keys this worker holds; ``pending`` those it is taking or marking already (they count as its own);
    ``excluded`` must not be touched now. Same arguments, same answer.

    Worked example: A owns a1 to a5, B owns b1, f1 is free; B plans. Seven rows, two workers: the target is 4, B needs
    3. It takes f1. Two are still missing and A, with 5, is above the target, so B marks one of A's leases: a third of
    two, rounded up. Next pass, with that lease in transit, B counts 3 and A 4: B is short by one and nobody is above
    the target, so nothing moves any more.
    """
    own, marked_own, contested = _rows_in_own_name(view, worker_id, held, {*excluded, *pending})
    untouchable = {*held, *excluded, *pending, *(row.lease_key for row in (*own, *marked_own, *contested))}
    counts = _counts_if_done(view, worker_id, (*own, *marked_own), pending, now)
    target = -(-len(view.sightings) // len(counts))
    free = [key for key in view.expired_keys(now) if key not in untouchable]
    chosen = _choose_free(view, free, max(target - counts[worker_id], 0), rng)
    counts[worker_id] += len(chosen)
    candidates = _steal_candidates(view, worker_id, untouchable, now) if config.auto_steal_lease else {}
    tally = _Tally(worker_id, target, counts, _unfinished_counts(view, worker_id))
    steals = _choose_steals(view, tally, candidates, rng)
    return TakePlan((*own, *chosen), marked_own, steals, contested)


def _rows_in_own_name(
    view: LeaseView, worker_id: str, held: Collection[str], skipped: Collection[str]
) -> tuple[tuple[Lease, ...], tuple[Lease, ...], tuple[Lease, ...]]:
    own: list[Lease] = []
    marked: list[Lease] = []
    contested: list[Lease] = []
    for key in sorted(view.sightings.keys() - set(held) - set(skipped)):
        sighting = view.sightings[key]
        if sighting.row.owner != worker_id:
            continue
        if sighting.is_moved_by_others and not sighting.row.is_handed_over:
            contested.append(sighting.row)
        elif sighting.row.is_marked and not view.is_presumed_dead(sighting.row.stealer):
            marked.append(sighting.row)
        else:
            own.append(sighting.row)
    return tuple(own), tuple(marked), tuple(contested)


def _counts_if_done(
    view: LeaseView, worker_id: str, own: Sequence[Lease], pending: Collection[str], now: float
) -> dict[str, int]:
    counts = view.credits(now)
    counts.setdefault(worker_id, 0)
    for row in own:
        if view.is_expired(row.lease_key, now):
            receiver = row.stealer or worker_id
            counts[receiver] = counts.get(receiver, 0) + 1
    for key in sorted(set(pending) & view.sightings.keys()):
        row = view.sightings[key].row
        if worker_id in (row.owner, row.stealer):
            continue
        if not view.is_expired(key, now) and counts.get(row.owner, 0) > 0:
            counts[row.owner] -= 1
        counts[worker_id] += 1
    return counts


def _choose_free(view: LeaseView, free: Sequence[str], limit: int, rng: Random) -> tuple[Lease, ...]:
    rows = [view.sightings[key].row for key in free]
    rng.shuffle(rows)
    rows.sort(key=lambda row: (row.is_finished, not is_ready(view, row)))
    return tuple(rows[:limit])


def _steal_candidates(
    view: LeaseView, worker_id: str, untouchable: Collection[str], now: float
) -> dict[str, list[Lease]]:
    candidates: dict[str, list[Lease]] = {}
    for key in sorted(view.sightings.keys() - set(untouchable)):
        row = view.sightings[key].row
        if row.stealer or row.owner in ("", worker_id) or row.is_finished or view.is_expired(key, now):
            continue
        candidates.setdefault(row.owner, []).append(row)
    return candidates


@define
class _Tally:
    """Leases per worker while a pass is being planned."""

    worker_id: str
    target: int
    counts: dict[str, int]
    """All leases, as the Java stream client counts them, those in transit for their stealer."""
    unfinished: dict[str, int]
    """Those that still have to be read."""

    @property
    def need(self) -> int:
        """How many leases the planning worker is short of."""
        return max(self.target - self.counts[self.worker_id], 0)

    def move(self, owner: str) -> None:
        """Count one lease of ``owner`` as this worker's."""
        for numbers in (self.counts, self.unfinished):
            numbers[owner] = numbers.get(owner, 0) - 1
            numbers[self.worker_id] += 1

    def may_lose_one(self, owner: str) -> bool:
        """Whether a lease may go from ``owner`` to this worker, by the Java stream client's rule.

        That rule lets a lease go from above the target, or from exactly the target to a worker short of at least two.
        Each such move goes to a worker with at least two leases less, so moves cannot go round in circles. Finished
        leases count but are not moved: an owner with no more unfinished leases than this worker is left alone.
        """
        count = self.counts.get(owner, 0)
        is_heavier = self.unfinished.get(owner, 0) > self.unfinished[self.worker_id]
        return is_heavier and (count > self.target or (count == self.target and self.need > 1))


def _choose_steals(
    view: LeaseView, tally: _Tally, candidates: Mapping[str, list[Lease]], rng: Random
) -> tuple[Lease, ...]:
    steals: list[Lease] = []
    for _ in range(-(-tally.need // MARKED_SHARE)):
        owners = [owner for owner in sorted(candidates) if candidates[owner] and tally.may_lose_one(owner)]
        if not owners:
            break
        most = max(tally.counts[owner] for owner in owners)
        victim = rng.choice([owner for owner in owners if tally.counts[owner] == most])
        row = _pick(view, candidates[victim], rng)
        candidates[victim].remove(row)
        tally.move(victim)
        steals.append(row)
    return tuple(steals)


def _unfinished_counts(view: LeaseView, worker_id: str) -> dict[str, int]:
    counts = {worker_id: 0}
    for key in sorted(view.sightings):
        row = view.sightings[key].row
        worker = row.stealer or row.owner
        if worker and not row.is_finished:
            counts[worker] = counts.get(worker, 0) + 1
    return counts


def _pick(view: LeaseView, rows: Sequence[Lease], rng: Random) -> Lease:
    """Any ready lease; a child that waits for its parents only if nothing else is there.

    Java stream client: a consumer that waits cannot be stopped there, so its lease would stay marked for long.
    """
    ready = [row for row in rows if is_ready(view, row)]
    return rng.choice(ready or list(rows))


def is_ready(view: LeaseView, row: Lease) -> bool:
    """Whether no parent has an unfinished row, as far as the last scan shows."""
    parents = (view.row(parent) for parent in sorted(row.parent_shard_ids))
    return all(parent is None or parent.is_finished for parent in parents)
