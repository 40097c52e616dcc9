"""Even work at even counts: finished leases are exchanged for unfinished ones.

The Java stream client balances rows, and a finished row counts as much as one that is being read. Two workers may thus
be even in rows while one does all the work. A swap mends that and leaves the counts alone: a worker with a finished
lease marks an unfinished one of a worker that has at least two more, and hands that worker a finished one.

Laws:

* a mark goes to a worker with at least two unfinished leases less, a gift to one that Java's rule lets have a lease,
  or to one that a swap makes ready to lose one; so exchanges come to an end, at counts and unfinished leases that
  differ by at most one each;
* no swap makes a Java worker steal: its owner keeps, without what is in transit, at least the target less one. Where
  the mark would leave it less, the finished lease goes first; where not, it follows when the unfinished one arrives;
* nothing is remembered between passes. A swap of which one half was lost, by a crash of either worker or a refused
  write, leaves counts that the ordinary rules mend;
* whoever sees the same rows at the same time does not do the same thing: if more workers could act than moves are
  missing, each acts by chance.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from random import Random

from attrs import define, frozen

from streamclient.core.tally import Tally, missing_moves
from streamclient.core.view import LeaseView
from streamclient.model import Lease

MARKED_SHARE = 3
"""At most a third of the need (rounded up) is marked in one pass: several workers that join together see the same
counts, so marking everything at once would take too much from one owner; a third each converges in a few passes."""

WORTHWHILE_DIFFERENCE = 2
"""How many unfinished leases more a worker must have for one to be worth moving; a difference of one would only change
sides."""


@frozen
class Gift:
    """A finished lease of this worker that another one shall have."""

    lease: Lease
    receiver: str


@define
class Exchange:
    """One pass of exchanges; ``tally`` is kept up to date with each choice."""

    tally: Tally
    ready: Mapping[str, list[Lease]]
    """By owner: unfinished leases of others that may be marked and could be read at once. Chosen ones are removed."""
    givable: list[Lease]
    """Own finished leases that may be handed over. Chosen ones are removed."""
    receivers: Collection[str]
    """Workers that are surely alive and staying."""
    rng: Random

    def swap(self) -> tuple[tuple[Lease, ...], tuple[Gift, ...]]:
        """Marks and gifts of swaps: at most a third of the difference, one finished lease for each."""
        marks: list[Lease] = []
        gifts: list[Gift] = []
        difference = self._widest_difference()
        if difference < WORTHWHILE_DIFFERENCE or not self.givable or not self._has_the_turn_to_swap(difference):
            return (), ()
        for _ in range(min(-(-difference // MARKED_SHARE), len(self.givable))):
            owner = self._busiest_owner()
            if owner is None:
                break
            if self.tally.settled.get(owner, 0) >= self.tally.target:
                marks.append(self._mark(owner))
            elif self._may_prepare(owner):
                gifts.append(self._give(owner))
            else:
                break
        return tuple(marks), tuple(gifts)

    def even_out(self) -> tuple[Gift, ...]:
        """Gifts to workers that are short of leases, as far as Java's rule lets leases go from this worker to them.

        Workers with fewer unfinished leases get none: they ask for unfinished ones themselves.
        """
        gifts: list[Gift] = []
        has_turn = self._has_the_turn_to_give()
        while self.givable and (has_turn or self.tally.arrived > self.tally.target):
            receiver = self._shortest_receiver()
            if receiver is None:
                break
            gifts.append(self._give(receiver))
        return tuple(gifts)

    # --- choices -----------------------------------------------------------------------------------------------

    def _widest_difference(self) -> int:
        most = max((self.tally.unread(owner) for owner, rows in self.ready.items() if rows), default=0)
        return most - self.tally.unread(self.tally.worker_id)

    def _busiest_owner(self) -> str | None:
        difference = self._widest_difference()
        if difference < WORTHWHILE_DIFFERENCE:
            return None
        most = self.tally.unread(self.tally.worker_id) + difference
        return self.rng.choice([o for o in sorted(self.ready) if self.ready[o] and self.tally.unread(o) == most])

    def _may_prepare(self, owner: str) -> bool:
        """Whether to give a finished lease first, so that the owner may lose an unfinished one.

        Not the last one: a worker without leases is seen by nobody, and the target would change. And not while another
        worker waits for a lease that will bring it above the target: it returns one for that, maybe to this owner.
        """
        tally = self.tally
        is_short = tally.counts[owner] < tally.target
        will_return = [w for w in tally.counts if tally.counts[w] > tally.target >= tally.settled.get(w, 0)]
        is_first = will_return in ([], [tally.worker_id])
        return is_short and is_first and tally.arrived > 1 and owner in self.receivers

    def _shortest_receiver(self) -> str | None:
        tally = self.tally
        own_unread = tally.unread(tally.worker_id)
        ranked = [
            (tally.load(name), -tally.unread(name), self.rng.random(), name)
            for name in sorted(self.receivers)
            if tally.unread(name) >= own_unread and tally.rule_permits(tally.arrived, tally.load(name))
        ]
        return min(ranked)[-1] if ranked else None

    def _has_the_turn_to_swap(self, difference: int) -> bool:
        tally = self.tally
        most = tally.unread(tally.worker_id) + difference
        could_act = [
            w for w in tally.counts if tally.has_finished(w) and most - tally.unread(w) >= WORTHWHILE_DIFFERENCE
        ]
        return self.rng.random() * len(could_act) < missing_moves(tally.unread(worker) for worker in tally.counts)

    def _has_the_turn_to_give(self) -> bool:
        tally = self.tally
        loads = {worker: tally.load(worker) for worker in tally.counts} | {tally.worker_id: tally.arrived}
        least = min(loads.values())
        could_act = [w for w in loads if tally.has_finished(w) and tally.rule_permits(loads[w], least)]
        return self.rng.random() * len(could_act) < missing_moves(loads.values())

    # --- moves -------------------------------------------------------------------------------------------------

    def _mark(self, owner: str) -> Lease:
        row = self.rng.choice(self.ready[owner])
        self.ready[owner].remove(row)
        self.tally.mark(owner)
        return row

    def _give(self, receiver: str) -> Gift:
        self.tally.give(receiver)
        return Gift(self.givable.pop(), receiver)


def staying_workers(view: LeaseView, workers: Sequence[str], worker_id: str, now: float) -> frozenset[str]:
    """Others that gave a sign of life within the last lease duration and do not seem to be stopping."""
    recent = now - view.duration_seconds
    return frozenset(
        name
        for name in workers
        if name != worker_id
        and view.last_sign_of_life(name) >= recent
        and not view.is_presumed_dead(name)
        and not view.is_leaving(name)
    )
