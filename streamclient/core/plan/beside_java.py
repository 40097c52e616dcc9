"""The balance of leases beside workers without sessions, such as Java workers.

This module evens out the same numbers as the Java stream client (``LeaseTaker``), so that both clients can share a
table without pulling leases to and fro. All rows count, including finished ones, and the target is the number of rows
divided by the number of workers, rounded up. Four rules differ, and none of them can make Java steal more. Leases in
transit count for their stealer. Several leases may be marked in one pass. Only leases that are worth moving are marked.
Finished leases are exchanged for unfinished leases.

The exchange is needed because, of two workers with equal numbers of rows, one may do all the work. A *swap* changes
that and leaves the counts unchanged: a worker marks an unfinished lease of a worker that has at least two unfinished
leases more, and gives that worker a finished lease. Laws of swaps:

* a worker marks only if it has at least two unfinished leases less than the owner. A finished lease is given only to a
  worker that may have one more by Java's rule, or that will lose a lease in a swap. So exchanges come to an end, when
  counts of leases and of unfinished leases differ by at most one;
* no swap makes a Java worker steal: the owner keeps at least the target less one, not counting leases in transit. If
  the mark would leave the owner less than that, the finished lease is given first; otherwise it is given when the
  unfinished lease arrives;
* no state is kept between passes. If one half of a swap is lost, because a worker crashes or a write is refused, the
  ordinary rules even out the counts;
* workers that see the same rows at the same time do not all act: if more workers could act than moves are missing, each
  decides at random whether to act.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from random import Random

from attrs import define, field

from streamclient.config import ClientConfig
from streamclient.core.plan.moves import Move, Moves
from streamclient.core.sightings import LeaseView
from streamclient.model import Lease

MARKED_SHARE = 3
"""The divisor of a worker's need: in one pass a worker asks for (marks) a third of the leases that it still needs,
rounded up. Several workers that join together see the same counts. If each of them marked all leases that it needs,
they would take too many from one owner. With a third each, the numbers are even after a few passes."""

WORTHWHILE_DIFFERENCE = 2
"""The smallest difference in unfinished leases for which a move is worthwhile. With a difference of one, a move would
only reverse the difference."""


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
) -> Moves:
    """Plan the moves of one pass from the rows last seen.

    ``held`` are the keys of the leases that this worker holds. ``pending`` names the future worker of each lease for
    which a take, mark or hand-over of this worker is unanswered; such a lease counts for its future worker already.
    ``excluded`` are the keys of leases that must not be touched now. The same arguments give the same result.

    Worked example: A owns a1 to a5, B owns b1, f1 is free; B plans. With seven rows and two workers the target is 4,
    and B needs 3. It takes f1. Then B still needs two, and A, with 5, is above the target. So B marks one of A's
    leases: a third of two, rounded up. In the next pass that lease is in transit, so the counts are 3 for B and 4 for
    A. B needs one more, but no worker is above the target, so no lease moves any more.

    Later b1, f1 and the lease that A handed over are read to their end. The counts are still 4 and 3, but A has four
    leases to read and B none. B begins two swaps: a third of four, rounded up. For the first it marks a lease of A. A
    is left with the target less one. A second mark would leave it short by two, and a Java worker in its position would
    steal. So in the second swap, B first gives A a finished lease. When both leases have arrived, A has three to read
    and B one, and B marks another lease. Now A and B read two shards each, and no lease moves any more.
    """
    pending = {} if pending is None else pending
    own, marked_own, contested = _rows_in_own_name(view, worker_id, held, {*excluded, *pending})
    untouchable = {*held, *excluded, *pending, *(row.lease_key for row in (*own, *marked_own, *contested))}
    destined = {row.lease_key: row.stealer for row in marked_own} | {row.lease_key: worker_id for row in own}
    numbers = count_leases(view, worker_id, destined | dict(pending), now)
    free = [key for key in view.expired_keys(now) if key not in untouchable]
    chosen = _choose_free(view, free, numbers.need, rng)
    for row in chosen:
        numbers.take(row)
    returned = tuple(Move(row, row.stealer) for row in marked_own)
    if not config.auto_steal_lease:
        return Moves((*own, *chosen), transfers=returned, contested=contested)
    givable = _givable(view, worker_id, set(held) - set(excluded) - set(pending))
    # The rows of other workers matter only to a worker that needs leases, or that has a lease to exchange.
    candidates = _steal_candidates(view, worker_id, untouchable, now) if numbers.need or givable else {}
    steals = _choose_steals(view, numbers, candidates, rng)
    exchange = ExchangePass(
        numbers=numbers,
        ready={owner: [row for row in rows if is_ready(view, row)] for owner, rows in candidates.items()},
        givable=givable,
        receivers=staying_workers(view, sorted(numbers.counts), worker_id, now),
        rng=rng,
    )
    swaps, returns = ((), ()) if steals else exchange.swap()
    marks = tuple(Move(row, worker_id) for row in (*steals, *swaps))
    return Moves((*own, *chosen), marks, (*returned, *returns, *exchange.even_out()), contested=contested)


def _rows_in_own_name(
    view: LeaseView, worker_id: str, held: Collection[str], skipped: Collection[str]
) -> tuple[tuple[Lease, ...], tuple[Lease, ...], tuple[Lease, ...]]:
    own: list[Lease] = []
    marked: list[Lease] = []
    contested: list[Lease] = []
    for sighting in view.counts.owned_by(worker_id):
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
    rows = [sighting.row for sighting in view.counts.owned_by(worker_id) if sighting.row.lease_key in keys]
    return [row for row in rows if row.is_finished and not row.stealer]


def _may_lose_one(numbers: Numbers, owner: str) -> bool:
    """Return whether this worker may ask ``owner`` for an unfinished lease.

    The owner must have more unfinished leases than this worker. (Workers of this package give finished leases away
    without being asked; Java workers do not.) In addition, one of two conditions must hold:

    * Java's rule permits the move. It compares all leases of the two workers, finished ones included. The owner's
      leases are counted as Java counts them, so that a Java owner need not steal in turn;
    * the owner has at least two leases more than this worker, and at least two unfinished leases more. By this
      condition, workers below the target even out their leases among themselves. A Java owner may keep so many leases
      that none of these workers can reach the target.
    """
    me = numbers.worker_id
    more_leases = numbers.settled.get(owner, 0) - numbers.counts[me]
    more_work = numbers.unread(owner) - numbers.unread(me)
    is_permitted = numbers.rule_permits(numbers.settled.get(owner, 0), numbers.counts[me])
    return (is_permitted and more_work > 0) or min(more_leases, more_work) >= WORTHWHILE_DIFFERENCE


def _choose_steals(
    view: LeaseView, numbers: Numbers, candidates: Mapping[str, list[Lease]], rng: Random
) -> tuple[Lease, ...]:
    """Choose the leases to ask for, one after the other, each from the owner that can spare a lease best.

    This owner has the most unfinished leases of all owners that may lose a lease. If several owners have equally many,
    choose the owner with the most leases in all; if several are still equal, choose one of them at random.
    """
    steals: list[Lease] = []
    for _ in range(-(-numbers.need // MARKED_SHARE)):
        loads = {
            owner: (numbers.unread(owner), numbers.counts[owner])
            for owner in sorted(candidates)
            if candidates[owner] and _may_lose_one(numbers, owner)
        }
        if not loads:
            break
        victim = rng.choice([owner for owner in loads if loads[owner] == max(loads.values())])
        row = _pick(view, candidates[victim], rng)
        candidates[victim].remove(row)
        numbers.mark(victim)
        steals.append(row)
    return tuple(steals)


def _pick(view: LeaseView, rows: Sequence[Lease], rng: Random) -> Lease:
    """Choose any lease that is ready. Choose a child that waits for its parents only if no lease is ready.

    In the Java stream client a waiting consumer cannot be stopped, so its lease would stay marked for long.
    """
    ready = [row for row in rows if is_ready(view, row)]
    return rng.choice(ready or list(rows))


def is_ready(view: LeaseView, row: Lease) -> bool:
    """Return whether every parent's row is finished or absent, as far as the last scan shows."""
    parents = (view.row(parent) for parent in sorted(row.parent_shard_ids))
    return all(parent is None or parent.is_finished for parent in parents)


# --- exchange of finished leases for unfinished leases --------------------------------------------------------------


@define
class ExchangePass:
    """The choices of one pass: which finished leases this worker hands over, and which unfinished leases it marks.

    So finished leases are exchanged for unfinished leases. Each choice is counted in ``numbers`` immediately, and the
    next choice takes it into account.
    """

    numbers: Numbers
    ready: Mapping[str, list[Lease]]
    """For each other worker, by name, its unfinished leases that may be marked and whose shards could be read
    immediately. A lease is removed when it is chosen."""
    givable: list[Lease]
    """This worker's finished leases that may be handed over. A lease is removed when it is chosen."""
    receivers: Collection[str]
    """Workers that are surely alive and staying."""
    rng: Random

    def swap(self) -> tuple[tuple[Lease, ...], tuple[Move, ...]]:
        """Return the marks and hand-overs that begin swaps. Each swap needs one finished lease of this worker.

        The number of swaps is at most a third of the difference in unfinished leases, rounded up.
        """
        marks: list[Lease] = []
        gifts: list[Move] = []
        difference = self._widest_difference()
        if difference < WORTHWHILE_DIFFERENCE or not self.givable or not self._has_the_turn_to_swap(difference):
            return (), ()
        for _ in range(min(-(-difference // MARKED_SHARE), len(self.givable))):
            owner = self._busiest_owner()
            if owner is None:
                break
            if self.numbers.settled.get(owner, 0) >= self.numbers.target:
                marks.append(self._mark(owner))
            elif self._may_prepare(owner):
                gifts.append(self._give(owner))
            else:
                break
        return tuple(marks), tuple(gifts)

    def even_out(self) -> tuple[Move, ...]:
        """Return moves of finished leases to workers that need leases, as far as Java's rule permits such moves.

        A worker with fewer unfinished leases than this worker gets none, because it will ask for an unfinished lease.
        """
        gifts: list[Move] = []
        has_turn = self._has_the_turn_to_give()
        while self.givable and (has_turn or self.numbers.arrived > self.numbers.target):
            receiver = self._shortest_receiver()
            if receiver is None:
                break
            gifts.append(self._give(receiver))
        return tuple(gifts)

    # --- choices -----------------------------------------------------------------------------------------------

    def _widest_difference(self) -> int:
        most = max((self.numbers.unread(owner) for owner, rows in self.ready.items() if rows), default=0)
        return most - self.numbers.unread(self.numbers.worker_id)

    def _busiest_owner(self) -> str | None:
        difference = self._widest_difference()
        if difference < WORTHWHILE_DIFFERENCE:
            return None
        most = self.numbers.unread(self.numbers.worker_id) + difference
        return self.rng.choice([o for o in sorted(self.ready) if self.ready[o] and self.numbers.unread(o) == most])

    def _may_prepare(self, owner: str) -> bool:
        """Return whether to give the owner a finished lease first, so that the owner may lose an unfinished lease.

        This worker's last lease is not given away: other workers do not see a worker without leases, so the target
        would change. No lease is given, either, while another worker waits for a lease that will bring it above the
        target: that worker will return a lease, perhaps to this owner.
        """
        numbers = self.numbers
        is_short = numbers.counts[owner] < numbers.target
        will_return = [w for w in numbers.counts if numbers.counts[w] > numbers.target >= numbers.settled.get(w, 0)]
        is_first = will_return in ([], [numbers.worker_id])
        return is_short and is_first and numbers.arrived > 1 and owner in self.receivers

    def _shortest_receiver(self) -> str | None:
        numbers = self.numbers
        own_unread = numbers.unread(numbers.worker_id)
        ranked = [
            (numbers.load(name), -numbers.unread(name), self.rng.random(), name)
            for name in sorted(self.receivers)
            if numbers.unread(name) >= own_unread and numbers.rule_permits(numbers.arrived, numbers.load(name))
        ]
        return min(ranked)[-1] if ranked else None

    def _has_the_turn_to_swap(self, difference: int) -> bool:
        numbers = self.numbers
        most = numbers.unread(numbers.worker_id) + difference
        could_act = [
            w for w in numbers.counts if numbers.has_finished(w) and most - numbers.unread(w) >= WORTHWHILE_DIFFERENCE
        ]
        return self.rng.random() * len(could_act) < missing_moves(numbers.unread(worker) for worker in numbers.counts)

    def _has_the_turn_to_give(self) -> bool:
        numbers = self.numbers
        loads = {worker: numbers.load(worker) for worker in numbers.counts} | {numbers.worker_id: numbers.arrived}
        least = min(loads.values())
        could_act = [w for w in loads if numbers.has_finished(w) and numbers.rule_permits(loads[w], least)]
        return self.rng.random() * len(could_act) < missing_moves(loads.values())

    # --- moves -------------------------------------------------------------------------------------------------

    def _mark(self, owner: str) -> Lease:
        row = self.rng.choice(self.ready[owner])
        self.ready[owner].remove(row)
        self.numbers.mark(owner)
        return row

    def _give(self, receiver: str) -> Move:
        self.numbers.give(receiver)
        return Move(self.givable.pop(), receiver)


def staying_workers(view: LeaseView, workers: Sequence[str], worker_id: str, now: float) -> frozenset[str]:
    """Return the other workers that gave a sign of life in the last lease duration and do not seem to be stopping."""
    recent = now - view.duration_seconds
    return frozenset(
        name
        for name in workers
        if name != worker_id
        and view.last_sign_of_life(name) >= recent
        and not view.is_presumed_dead(name)
        and not view.is_leaving(name)
    )


# --- counting --------------------------------------------------------------------------------------------------------


@define
class Numbers:
    """The numbers of leases of each worker while a pass is planned. Each planned move is counted immediately.

    A row counts for the worker that will have it once all moves have arrived. The Java stream client does not count a
    row in transit for any worker. Decisions that depend on how that client reacts use ``settled``, which counts as that
    client does.
    """

    worker_id: str
    """The name of the worker that plans."""
    target: int
    """The number of rows divided by the number of workers, rounded up."""
    counts: dict[str, int]
    """The number of all leases, by worker; leases in transit count for their receiver. The keys are all workers that
    have leases, and the planning worker."""
    unfinished: dict[str, int] = field(factory=dict)
    """The number of unfinished leases among the leases in ``counts``, by worker."""
    settled: dict[str, int] = field(factory=dict)
    """The number of leases as the Java stream client counts them, by worker: a lease in transit counts for no
    worker."""
    awaited: dict[str, int] = field(factory=dict)
    """The number of each owner's leases that the planning worker asked for and did not get yet, by owner."""

    @property
    def need(self) -> int:
        """The number of leases that the planning worker still needs."""
        return max(self.target - self.counts[self.worker_id], 0)

    @property
    def arrived(self) -> int:
        """The number of leases that the planning worker has already, without leases that it has asked for."""
        return self.counts[self.worker_id] - sum(self.awaited.values())

    def load(self, worker: str) -> int:
        """Return the number of leases that ``worker`` would have if it granted none of this worker's requests."""
        return self.counts.get(worker, 0) + self.awaited.get(worker, 0)

    def unread(self, worker: str) -> int:
        """Return the number of unfinished leases of a worker."""
        return self.unfinished.get(worker, 0)

    def has_finished(self, worker: str) -> bool:
        """Return whether a worker has leases that no longer need reading."""
        return self.counts.get(worker, 0) > self.unread(worker)

    def rule_permits(self, giver_count: int, receiver_count: int) -> bool:
        """Return whether a lease may go from one worker to another, by the Java stream client's rule.

        The rule lets a lease go from a worker above the target to a worker below it. It also lets a lease go from a
        worker exactly at the target to a worker that needs at least two leases. In both cases the receiver has at least
        two leases less than the giver, so such moves come to an end.
        """
        need = self.target - receiver_count
        return (giver_count > self.target and need > 0) or (giver_count == self.target and need > 1)

    def mark(self, owner: str) -> None:
        """Count that one unfinished lease of ``owner`` is requested."""
        _shift(self.counts, owner, self.worker_id)
        _shift(self.unfinished, owner, self.worker_id)
        _add(self.settled, owner, -1)
        _add(self.awaited, owner, 1)

    def give(self, receiver: str) -> None:
        """Count that the planning worker gives one finished lease to ``receiver``."""
        _shift(self.counts, self.worker_id, receiver)

    def take(self, row: Lease) -> None:
        """Count that the planning worker takes a free lease."""
        _add(self.counts, self.worker_id, 1)
        _add(self.unfinished, self.worker_id, 0 if row.is_finished else 1)


def count_leases(view: LeaseView, worker_id: str, destined: Mapping[str, str], now: float) -> Numbers:
    """Count the leases of each worker, from the lease rows as ``worker_id`` last saw them.

    ``destined`` has the new worker of each lease whose move is decided. The lease counts for that worker already.
    """
    held, counts = view.credits(now), view.counts
    numbers = Numbers(
        worker_id,
        0,
        dict.fromkeys(sorted({worker_id, *held}), 0) | dict(held),
        dict(counts.unread),
        dict(counts.settled),
    )
    for sighting in counts.wanted_by(worker_id):
        if sighting.row.lease_key not in destined and not view.is_expired(sighting.row.lease_key, now):
            _await(numbers, sighting.row)
    for key, worker in destined.items():
        if key in view.sightings and worker:
            _redirect(numbers, view.sightings[key].row, worker, is_counted=not view.is_expired(key, now))
    numbers.target = -(-len(view.sightings) // len(numbers.counts))
    return numbers


def _redirect(numbers: Numbers, row: Lease, worker: str, *, is_counted: bool) -> None:
    """Count a row for ``worker``, which will have it, and no longer for its present holder.

    ``is_counted`` says that the row has counted for its present holder so far, because it is not expired.
    """
    holder = row.stealer or row.owner
    if is_counted and holder:
        _add(numbers.counts, holder, -1)
        _add(numbers.unfinished, holder, 0 if row.is_finished else -1)
        if not row.stealer and worker != row.owner:
            _add(numbers.settled, row.owner, -1)
    _add(numbers.counts, worker, 1)
    _add(numbers.unfinished, worker, 0 if row.is_finished else 1)
    if is_counted and worker == numbers.worker_id:
        _await(numbers, row)


def _await(numbers: Numbers, row: Lease) -> None:
    if row.owner not in ("", numbers.worker_id):
        _add(numbers.awaited, row.owner, 1)


def missing_moves(numbers: Iterable[int]) -> int:
    """Return the number of single moves after which no two of ``numbers`` differ by more than one."""
    values = list(numbers)
    low, high = sum(values) // len(values), -(-sum(values) // len(values))
    return max(sum(max(value - high, 0) for value in values), sum(max(low - value, 0) for value in values))


def _add(numbers: dict[str, int], name: str, change: int) -> None:
    numbers[name] = numbers.get(name, 0) + change


def _shift(numbers: dict[str, int], source: str, destination: str) -> None:
    _add(numbers, source, -1)
    _add(numbers, destination, 1)
