"""A worker that follows the rules of the Java stream client, as far as other workers can see them.

Its conditions compare the counter alone, it notices marks only by chance, it starts a child as soon as no parent has an
unfinished row, and it stamps its leases after the answer. Each pass is one atomic step, which makes it a better
neighbour than the original in timing, and a worse one nowhere.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from attrs import define, evolve, field

from streamclient.model import Lease

if TYPE_CHECKING:
    from simulated_world import World

NOTICED = 0.5
"""Chance that one pass notices a mark."""


@define(eq=False)
class JavaLease:
    lease: Lease
    valid_until: float
    is_stolen: bool = False


@define(eq=False)
class JavaWorker:
    world: World
    name: str
    duration: float = 20.0
    is_alive: bool = True
    owned: dict[str, JavaLease] = field(factory=dict)
    seen: dict[str, tuple[int, float]] = field(factory=dict)
    taken: int = 0
    handed_over: int = 0

    def start(self) -> JavaWorker:
        for action, seconds in ((self.take, 6.0), (self.renew, 6.0), (self.sync, 10.0), (self.loop, 0.7)):
            self._every(action, seconds * self.world.rng.uniform(0.9, 1.1))
        return self

    def _every(self, action: object, seconds: float) -> None:
        if self.is_alive and callable(action):
            if self.world.is_table_reachable:
                action()
            self.world.after(seconds, partial(self._every, action, seconds))

    def _put(self, verb: str, row: Lease) -> None:
        self.world.history.append(
            f"{self.world.now:.3f} {self.name} {verb} {self.world.table.get(row.lease_key)} -> {row}"
        )
        self.world.table[row.lease_key] = row

    # --- LeaseTaker --------------------------------------------------------------------------------------------

    def take(self) -> None:
        world, now = self.world, self.world.now
        for key, row in world.table.items():
            counter, at = self.seen.get(key, (None, now if row.owner else -1e9))
            self.seen[key] = (row.counter, now if counter not in (None, row.counter) else at)
        expired = [key for key in sorted(world.table) if now - self.seen[key][1] > self.duration]
        counts = {self.name: 0}
        for key, row in world.table.items():
            if key not in expired and not row.stealer:
                counts[row.owner] = counts.get(row.owner, 0) + 1
        target = -(-len(world.table) // len(counts))
        need = target - counts[self.name]
        handed = [key for key, row in sorted(world.table.items()) if row.owner == row.stealer == self.name]
        free = [key for key in expired if key not in handed]
        world.rng.shuffle(free)
        picked = handed[: max(need, 1)]
        picked += free[: max(need - len(picked), 0)]
        for key in picked:
            self._take_one(world.table[key])
        if need > len(picked):
            self._steal_one(counts, target, need)

    def _take_one(self, row: Lease) -> None:
        self.taken += 1
        taken = evolve(row, owner=self.name, stealer="", counter=row.counter + 1)
        self._put("take", taken)
        self.seen[row.lease_key] = (taken.counter, self.world.now)
        self.owned[row.lease_key] = JavaLease(taken, self.world.now + self.duration)

    def _steal_one(self, counts: dict[str, int], target: int, need: int) -> None:
        victim = max(sorted(counts), key=lambda name: counts[name])
        if counts[victim] <= target - 1 or (need <= 1 and counts[victim] == target):
            return
        rows = [row for _, row in sorted(self.world.table.items()) if row.owner == victim]
        row = self.world.rng.choice(rows) if rows and victim != self.name else None
        if row is not None and not row.stealer:
            self._put("steal", evolve(row, stealer=self.name))

    # --- LeaseRenewer ------------------------------------------------------------------------------------------

    def renew(self) -> None:
        for key in sorted(self.owned):
            entry = self.owned[key]
            if not self._moves(entry):
                del self.owned[key]
                continue
            row = self.world.table[key]
            if row.stealer not in ("", self.name) and self.world.rng.random() < NOTICED:
                entry.is_stolen = True

    def _moves(self, entry: JavaLease) -> bool:
        """Counter + 1, if the lease is valid by the own clock and the counter is as known."""
        row = self.world.table.get(entry.lease.lease_key)
        if row is None or row.counter != entry.lease.counter or entry.valid_until < self.world.now:
            return False
        entry.lease = evolve(row, counter=row.counter + 1)
        self._put("renew", entry.lease)
        entry.valid_until = self.world.now + self.duration
        return True

    # --- ShardSyncTask, main loop, consumers -------------------------------------------------------------------

    def sync(self) -> None:
        """Without the races: those reset and delete rows that others hold."""
        for shard in sorted(self.world.stream.listing(), key=lambda shard: shard.shard_id):
            if shard.shard_id not in self.world.table:
                self._put("create", Lease(shard.shard_id, "stream", parent_shard_ids=shard.parent_shard_ids))

    def loop(self) -> None:
        for key in sorted(self.owned):
            entry = self.owned[key]
            if entry.valid_until < self.world.now:
                continue
            is_finished = self.world.table[key].is_finished if key in self.world.table else False
            if entry.is_stolen and self._is_free_to_go(entry):
                self._transfer(entry)
            elif not entry.is_stolen and not is_finished and self._are_parents_finished(entry.lease):
                self._read(entry)

    def _is_free_to_go(self, entry: JavaLease) -> bool:
        return self._are_parents_finished(entry.lease)

    def _are_parents_finished(self, lease: Lease) -> bool:
        rows = (self.world.table.get(parent) for parent in lease.parent_shard_ids)
        return all(row is None or row.is_finished for row in rows)

    def _transfer(self, entry: JavaLease) -> None:
        key = entry.lease.lease_key
        del self.owned[key]
        row = self.world.table.get(key)
        if row is not None and row.counter == entry.lease.counter:
            self.handed_over += 1
            self._put("transfer", evolve(row, owner=row.stealer, counter=row.counter + 1))

    def _read(self, entry: JavaLease) -> None:
        key = entry.lease.lease_key
        row, shard = self.world.table.get(key), self.world.stream.shards[key]
        if row is None or row.counter != entry.lease.counter:
            self.owned.pop(key, None)
            return
        self.world.java_reads(self, key)
        position = self.world.position(row) + self.world.rng.randint(1, 5)
        is_end = not shard.is_open and position >= shard.records
        value = "SHARD_END" if is_end else f"{min(position, shard.records)}:java{self.world.now}"
        entry.lease = evolve(row, checkpoint=value, counter=row.counter + 1)
        entry.valid_until = self.world.now + self.duration
        self._put("checkpoint", entry.lease)
        self.world.reached[key] = max(self.world.reached.get(key, 0), self.world.position(entry.lease))
