"""Several workers that balance one table, reduced to what balancing sees: scans, plans, marks, hand-overs.

A round takes one second. Every lease is renewed in every round, so nothing expires; faults belong to the simulation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random

from holdings_driver import row

from streamclient.config import ClientConfig
from streamclient.core import leases
from streamclient.core.leases import LeaseWrite
from streamclient.core.plan.beside_java import plan_takes
from streamclient.core.plan.moves import Moves
from streamclient.core.sightings import LeaseView
from streamclient.core.write_rules import WriteKind, apply_write, permits
from streamclient.model import Lease

DURATION_SECONDS = 20.0


class Fleet:
    """``unread`` and ``finished`` name the owner of each lease; workers in ``javas`` only count rows."""

    def __init__(
        self, unread: Iterable[str], finished: Iterable[str], *, workers: str, javas: str = "", seed: int = 0
    ) -> None:
        self.rng = Random(seed)
        self.now = 100.0
        self.table = {f"u{n:02d}": row(f"u{n:02d}", owner, 1) for n, owner in enumerate(unread)}
        self.table |= {
            f"f{n:02d}": row(f"f{n:02d}", owner, 1, checkpoint="SHARD_END") for n, owner in enumerate(finished)
        }
        self.workers = list(workers)
        self.javas = list(javas)
        self.views = {name: LeaseView(name, DURATION_SECONDS) for name in workers}
        self.moved: Counter[str] = Counter()
        """Changes of owner, by lease."""
        self.java_marks = 0
        for name in self.workers:
            self.scan(name)
        self.renew()
        for name in self.workers:
            self.scan(name)

    # --- what workers do -----------------------------------------------------------------------------------------

    def renew(self) -> None:
        self.now += 1
        for lease in list(self.table.values()):
            if lease.owner and not lease.is_handed_over:
                self.write(lease.owner, leases.renew(lease))

    def scan(self, name: str) -> None:
        self.views[name].observe(self.table.values(), self.now, self.now)

    def plan(self, name: str) -> Moves:
        """What a worker decides by what it saw last, which may not be true any more."""
        held = {key for key, lease in self.table.items() if lease.owner == name and not lease.is_handed_over}
        return plan_takes(self.views[name], name, held, self.now, ClientConfig(), rng=self.rng)

    def follow(self, name: str, plan: Moves) -> None:
        for move in plan.transfers:
            known = self.table[move.row.lease_key]
            if known.owner == name and not known.is_handed_over:
                self.write(name, leases.transfer(known, move.receiver))
        for lease in plan.takes:
            self.write(name, leases.take(lease, name))
        for move in plan.marks:
            self.write(name, leases.steal(move.row, name))

    def serve(self, name: str) -> None:
        """Hand over what others marked."""
        for lease in list(self.table.values()):
            if lease.owner == name and lease.is_marked:
                self.write(name, leases.transfer(lease, lease.stealer))

    def java_pass(self, name: str) -> None:
        """``LeaseTaker``: leases in transit count for nobody, any lease of the most loaded worker will do."""
        rows = list(self.table.values())
        counts = Counter({name: 0})
        counts.update(lease.owner for lease in rows if lease.owner and not lease.stealer)
        target = -(-len(rows) // len(counts))
        need = target - counts[name]
        takes = [lease for lease in rows if lease.owner == lease.stealer == name][: max(need, 1)]
        takes += [lease for lease in rows if not lease.owner][: max(need - len(takes), 0)]
        for lease in takes:
            self.write(name, leases.take(lease, name))
        victim = max(sorted(counts), key=lambda owner: counts[owner])
        is_too_light = counts[victim] < target or (need <= 1 and counts[victim] == target)
        if need > len(takes) and victim != name and not is_too_light:
            lease = self.rng.choice([lease for lease in rows if lease.owner == victim])
            self.java_marks += 1
            self.write(name, leases.steal(lease, name))

    def write(self, name: str, write: LeaseWrite) -> None:
        before = self.table[write.lease_key]
        if not permits(before, write):
            return
        after = apply_write(before, write)
        assert after is not None
        self.table[write.lease_key] = after
        if write.kind is WriteKind.TAKE:
            self.moved[write.lease_key] += 1
        if name in self.views:
            self.views[name].note(after, self.now)

    # --- rounds ------------------------------------------------------------------------------------------------

    def round_in_turn(self) -> None:
        """Each worker scans and acts before the next one scans."""
        self.renew()
        for name in self.workers:
            self.scan(name)
            self.follow(name, self.plan(name))
        self._others()

    def round_on_same_view(self) -> None:
        """All workers scan at the same time, decide at the same time, and act at the same time."""
        self.renew()
        for name in self.workers:
            self.scan(name)
        plans = {name: self.plan(name) for name in self.workers}
        for name in self.workers:
            self.follow(name, plans[name])
        self._others()

    def round_on_stale_views(self) -> None:
        """A worker that acts may have scanned before the others acted, in this round and the one before."""
        self.renew()
        for name in self.rng.sample(self.workers, len(self.workers)):
            if self.rng.random() < 0.5:
                self.follow(name, self.plan(name))
                self.scan(name)
        self._others()

    def _others(self) -> None:
        for name in self.javas:
            self.java_pass(name)
        for name in (*self.workers, *self.javas):
            if self.rng.random() < 0.5:
                self.serve(name)

    # --- what came of it -----------------------------------------------------------------------------------------

    def rows_of(self, name: str) -> list[Lease]:
        return [lease for lease in self.table.values() if lease.owner == name]

    def counts(self) -> list[int]:
        return [len(self.rows_of(name)) for name in (*self.workers, *self.javas)]

    def unread(self) -> list[int]:
        """Of those workers that tell unfinished leases from finished ones."""
        return [sum(not lease.is_finished for lease in self.rows_of(name)) for name in self.workers]

    def unread_moves(self) -> int:
        return sum(times for key, times in self.moved.items() if key.startswith("u"))
