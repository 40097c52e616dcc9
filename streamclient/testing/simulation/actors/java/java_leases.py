"""The models of the Java client's ``LeaseTaker`` and ``LeaseRenewer``."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from attrs import define, evolve, field

from streamclient.model import Lease
from streamclient.testing.simulation.actors.java.java_process import JavaProcess

NEVER = float("-inf")


@define(eq=False)
class OwnedLease:
    """A lease that a Java worker owns, with a queue of jobs about this lease that run one after the other."""

    lease: Lease
    identifier: str
    moved_at: float
    """The time, by the process's own clock, of the answer to the last successful take, renewal or checkpoint."""
    stealer: str = ""
    jobs: deque[Callable[[], None]] = field(factory=deque)
    is_locked: bool = False


def change(process: JavaProcess, what: str, key: str, counter: int, **columns: Any) -> bool:
    """Update a row if its counter equals ``counter``; return whether the row was updated. Compare no other field."""
    table = process.world.table
    row = table.rows.get(key)
    if row is None or row.counter != counter:
        return False
    table.put(process, what, key, evolve(row, counter=counter + 1, **columns))
    return True


class LeaseRenewer:
    """The part of a Java worker that renews its leases, stores checkpoints, and hands requested leases over."""

    def __init__(self, process: JavaProcess) -> None:
        self._process = process
        self._seconds = process.world.plan.renewer_interval_millis / 1_000
        self._identifiers = 0
        self.ran_at = process.local()
        self.owned: dict[str, OwnedLease] = {}

    def add(self, lease: Lease) -> None:
        """Add a lease that the worker owns from now on."""
        self._identifiers += 1
        owned = OwnedLease(lease, f"{self._process.label}.{self._identifiers}", self._process.local())
        self.owned[lease.lease_key] = owned

    def is_expired(self, owned: OwnedLease) -> bool:
        """Return whether the lease has expired by the process's own clock."""
        return self._process.local() - owned.moved_at > self._process.duration_seconds

    def run(self) -> None:
        """Make one pass: read the requests of other workers, and submit a renewal of each lease without waiting."""
        self._process.call(self._process.world.table.sorted_rows, self._find_stealers, lambda: None)
        for key in sorted(self.owned, reverse=True):
            self._submit(self.owned[key], partial(self._renew, key, self.owned[key]))
        self.ran_at = self._process.local()
        self._process.later(self._seconds, self.run)

    def _find_stealers(self, rows: list[Lease]) -> None:
        for row in rows:
            owned = self.owned.get(row.lease_key)
            if owned is not None and not owned.stealer and row.stealer and row.counter == owned.lease.counter:
                owned.stealer = row.stealer

    def _renew(self, key: str, owned: OwnedLease) -> None:
        if self.is_expired(owned):
            self._lost(key, owned)
            return
        counter = owned.lease.counter

        def answered(was_renewed: bool) -> None:
            if was_renewed:
                owned.lease = evolve(owned.lease, counter=counter + 1)
                owned.moved_at = self._process.local()
                self._release(owned)
            else:
                self._lost(key, owned)

        renew = partial(change, self._process, "renew", key, counter)
        self._process.call(renew, answered, lambda: self._release(owned))

    def update(self, key: str, identifier: str, checkpoint: str, then: Callable[[bool], None]) -> None:
        """Store a checkpoint if the worker still owns the lease; tell ``then`` whether the checkpoint was stored."""
        owned = self.owned.get(key)
        if owned is None or owned.identifier != identifier:
            then(False)
            return

        def store() -> None:
            counter = owned.lease.counter

            def answered(was_stored: bool) -> None:
                if was_stored:
                    owned.lease = evolve(owned.lease, counter=counter + 1, checkpoint=checkpoint)
                    owned.moved_at = self._process.local()
                elif self.owned.get(key) is owned:
                    del self.owned[key]
                self._release(owned)
                then(was_stored)

            def failed() -> None:
                self._release(owned)
                self._process.die("a checkpoint failed")

            write = partial(change, self._process, "checkpoint", key, counter, checkpoint=checkpoint)
            self._process.call(write, answered, failed)

        self._submit(owned, store)

    def transfer(self, key: str, identifier: str) -> None:
        """Stop owning a lease, and hand it over to the worker that requested it."""
        owned = self.owned.get(key)
        if owned is None or owned.identifier != identifier:
            return

        def give() -> None:
            if self.owned.get(key) is not owned:
                self._release(owned)
                return
            del self.owned[key]
            counter, receiver = owned.lease.counter, owned.stealer
            write = partial(change, self._process, "transfer", key, counter, owner=receiver)
            failed = partial(self._process.die, "a hand-over failed")
            self._process.call(write, lambda _: self._release(owned), failed)

        self._submit(owned, give)

    # --- the monitor -------------------------------------------------------------------------------------------

    def _submit(self, owned: OwnedLease, job: Callable[[], None]) -> None:
        owned.jobs.append(job)
        if not owned.is_locked:
            self._next_job(owned)

    def _next_job(self, owned: OwnedLease) -> None:
        owned.is_locked = bool(owned.jobs)
        if owned.jobs:
            owned.jobs.popleft()()

    def _release(self, owned: OwnedLease) -> None:
        self._process.later(0.0, self._next_job, owned)

    def _lost(self, key: str, owned: OwnedLease) -> None:
        """Remove a lease by its key. The removed entry may belong to a newer acquisition of the same lease."""
        self.owned.pop(key, None)
        self._release(owned)


class LeaseTaker:
    """The part of a Java worker that takes free, expired and handed-over leases, and requests other leases."""

    def __init__(self, process: JavaProcess, renewer: LeaseRenewer) -> None:
        self._process, self._renewer = process, renewer
        self._seconds = process.world.plan.taker_interval_millis / 1_000
        self.succeeded_at = process.local()
        self._moved: dict[str, tuple[int, float]] = {}
        """The last counter of each lease and the time when the worker first saw this counter, by lease key."""
        self._taken: list[Lease] = []

    def run(self) -> None:
        """Make one pass over all leases. The next pass begins one interval after the end of this pass."""
        self._process.call(self._process.world.table.sorted_rows, self._scanned, self._over)

    def _over(self) -> None:
        self._process.later(self._seconds, self.run)

    def _scanned(self, rows: list[Lease]) -> None:
        name, now = self._process.name, self._process.local()
        self._moved = {row.lease_key: self._movement(row, now) for row in rows}
        expired = [row for row in rows if now - self._moved[row.lease_key][1] > self._process.duration_seconds]
        counts = {name: 0}
        for row in rows:
            if row not in expired and not row.stealer:
                counts[row.owner] = counts.get(row.owner, 0) + 1
        target = -(-len(rows) // len(counts))
        need = target - counts[name]
        handed = [row for row in rows if row.owner == row.stealer == name]
        picks = handed[: max(need, 1)]
        free = [row for row in expired if row not in picks]
        self._process.dice.shuffle(free)
        picks += free[: max(need - len(handed), 0)] if need > len(handed) else []
        self._taken = []
        self._take_next(picks, rows, counts, target, need)

    def _movement(self, row: Lease, now: float) -> tuple[int, float]:
        known = self._moved.get(row.lease_key)
        if known is None:
            return row.counter, now if row.owner else NEVER
        return known if known[0] == row.counter else (row.counter, now)

    def _take_next(self, picks: list[Lease], rows: list[Lease], counts: dict[str, int], target: int, need: int) -> None:
        """Take the leases ``picks`` one after the other, and then finish the pass.

        After an error, the pass ends immediately, and the worker forgets the leases that it has taken in this pass. The
        other arguments are for ``_finish``.
        """
        if not picks:
            self._finish(rows, counts, target, need)
            return
        row, rest = picks[0], picks[1:]

        def answered(was_taken: bool) -> None:
            if was_taken:
                self._taken.append(evolve(row, counter=row.counter + 1, owner=self._process.name, stealer=""))
                self._moved[row.lease_key] = (row.counter + 1, self._process.local())
            self._take_next(rest, rows, counts, target, need)

        columns = {"owner": self._process.name, "stealer": ""}
        take = partial(change, self._process, "take", row.lease_key, row.counter, **columns)
        self._process.call(take, answered, self._over)

    def _finish(self, rows: list[Lease], counts: dict[str, int], target: int, need: int) -> None:
        for lease in self._taken:
            self._renewer.add(lease)
        self.succeeded_at = self._process.local()
        busiest = max(counts, key=lambda name: counts[name])
        is_light = counts[busiest] <= target - 1 or (need <= 1 and counts[busiest] == target)
        candidates = [row for row in rows if row.owner == busiest]
        if need > len(self._taken) and not is_light and candidates:
            row = self._process.dice.choice(candidates)
            self._process.call(lambda: self._mark(row), lambda _: None, lambda: None)
        self._over()

    def _mark(self, seen: Lease) -> None:
        table = self._process.world.table
        row = table.rows.get(seen.lease_key)
        if row is not None and row.owner == seen.owner and not row.stealer:
            table.put(self._process, "steal", row.lease_key, evolve(row, stealer=self._process.name))
