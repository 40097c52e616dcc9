"""Who should read what: which leases to take now, which to ask for, and which finished ones to give away.

The numbers are those of the Java stream client (``LeaseTaker``), so that both can share a table without pulling leases
to and fro: all rows count, finished ones too; the target is the number of rows over the number of workers, rounded
up. Four things differ, none of which can make Java steal more: leases in transit count for their stealer, several
leases may be marked in one pass, only leases worth moving are marked, and finished leases are exchanged for unfinished
ones (``exchange``), so that workers even in rows are even in work too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from random import Random

from attrs import frozen

from streamclient.config import ClientConfig
from streamclient.core.exchange import MARKED_SHARE, WORTHWHILE_DIFFERENCE, Exchange, Gift, staying_workers
from streamclient.core.tally import Tally, count_leases
from streamclient.core.view import LeaseView
from streamclient.model import Lease


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
    gifts: tuple[Gift, ...] = ()
    """Held finished leases to hand to another worker, best before the takes: they even out what those add."""


def plan_takes(
    view: LeaseView,
    worker_id: str,
    held: Collection[str],
    now: float,
    config: ClientConfig,
    *,
    rng: Random,
    pending: Mapping[str, str] | None = None,
    excluded: Collection[str] = (),
) -> TakePlan:
    """Decide one pass over the rows last seen.

    ``held`` are the keys this worker holds; ``pending`` those with an own take, mark or hand-over under way, and the
    worker that gets them (they count as that worker's); ``excluded`` must not be touched now. Same arguments, same
    answer.

    Worked example: A owns a1 to a5, B owns b1, f1 is free; B plans. Seven rows, two workers: the target is 4, B needs
    3. It takes f1. Two are still missing and A, with 5, is above the target, so B marks one of A's leases: a third of
    two, rounded up. Next pass, with that lease in transit, B counts 3 and A 4: B is short by one and nobody is above
    the target, so nothing moves any more.

    Later b1, f1 and the lease that A handed over are read to their end. The counts are still 4 and 3, but A has four
    leases to read and B none. B begins two swaps: a third of four, rounded up. For the first it marks a lease of A. A
    is left with the target less one; a second mark would leave it short by two, and a Java worker in its place would
    steal. So for the second B gives A a finished lease first. When all that has arrived, A has three leases to read and
    B one, and B marks another one. Now A and B read two shards each, and nothing moves any more.
    """
    pending = {} if pending is None else pending
    own, marked_own, contested = _rows_in_own_name(view, worker_id, held, {*excluded, *pending})
    untouchable = {*held, *excluded, *pending, *(row.lease_key for row in (*own, *marked_own, *contested))}
    destined = {row.lease_key: row.stealer for row in marked_own} | {row.lease_key: worker_id for row in own}
    tally = count_leases(view, worker_id, destined | dict(pending), now)
    free = [key for key in view.expired_keys(now) if key not in untouchable]
    chosen = _choose_free(view, free, tally.need, rng)
    for row in chosen:
        tally.take(row)
    if not config.auto_steal_lease:
        return TakePlan((*own, *chosen), marked_own, contested=contested)
    givable = _givable(view, worker_id, set(held) - set(excluded) - set(pending))
    # Others' rows are of use only to a worker that is short of leases, or that has something to exchange.
    candidates = _steal_candidates(view, worker_id, untouchable, now) if tally.need or givable else {}
    steals = _choose_steals(view, tally, candidates, rng)
    exchange = Exchange(
        tally=tally,
        ready={owner: [row for row in rows if is_ready(view, row)] for owner, rows in candidates.items()},
        givable=givable,
        receivers=staying_workers(view, sorted(tally.counts), worker_id, now),
        rng=rng,
    )
    swaps, returns = ((), ()) if steals else exchange.swap()
    return TakePlan((*own, *chosen), marked_own, (*steals, *swaps), contested, (*returns, *exchange.even_out()))


def _rows_in_own_name(
    view: LeaseView, worker_id: str, held: Collection[str], skipped: Collection[str]
) -> tuple[tuple[Lease, ...], tuple[Lease, ...], tuple[Lease, ...]]:
    own: list[Lease] = []
    marked: list[Lease] = []
    contested: list[Lease] = []
    for sighting in view.census.owned_by(worker_id):
        if sighting.row.lease_key in held or sighting.row.lease_key in skipped:
            continue
        if sighting.is_moved_by_others and not sighting.row.is_handed_over:
            contested.append(sighting.row)
        elif sighting.row.is_marked and not view.is_presumed_dead(sighting.row.stealer):
            marked.append(sighting.row)
        else:
            own.append(sighting.row)
    return tuple(own), tuple(marked), tuple(contested)


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


def _givable(view: LeaseView, worker_id: str, keys: Collection[str]) -> list[Lease]:
    rows = [sighting.row for sighting in view.census.owned_by(worker_id) if sighting.row.lease_key in keys]
    return [row for row in rows if row.is_finished and not row.stealer]


def _may_lose_one(tally: Tally, owner: str) -> bool:
    """Whether this worker may ask ``owner`` for an unfinished lease.

    Java's rule decides, with the owner's leases counted as Java does, so that a Java owner is not made to steal in its
    turn. Finished leases count but are not asked for: an owner with no more unfinished leases than this worker is left
    alone, and gives finished ones away by itself. A Java owner never does; where it sits on so many that nobody else
    reaches the target, those below it even out what they have among themselves.
    """
    me = tally.worker_id
    more_leases = tally.settled.get(owner, 0) - tally.counts[me]
    more_work = tally.unread(owner) - tally.unread(me)
    is_permitted = tally.rule_permits(tally.settled.get(owner, 0), tally.counts[me])
    return (is_permitted and more_work > 0) or min(more_leases, more_work) >= WORTHWHILE_DIFFERENCE


def _choose_steals(
    view: LeaseView, tally: Tally, candidates: Mapping[str, list[Lease]], rng: Random
) -> tuple[Lease, ...]:
    """Ask who has most to read, of those that may lose a lease; of several such, who has most leases, or any."""
    steals: list[Lease] = []
    for _ in range(-(-tally.need // MARKED_SHARE)):
        loads = {
            owner: (tally.unread(owner), tally.counts[owner])
            for owner in sorted(candidates)
            if candidates[owner] and _may_lose_one(tally, owner)
        }
        if not loads:
            break
        victim = rng.choice([owner for owner in loads if loads[owner] == max(loads.values())])
        row = _pick(view, candidates[victim], rng)
        candidates[victim].remove(row)
        tally.mark(victim)
        steals.append(row)
    return tuple(steals)


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
