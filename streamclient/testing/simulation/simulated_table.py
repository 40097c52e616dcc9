"""The simulated status table: rows, the rule for their changes, and the actors that change them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from attrs import define, field

from streamclient.core import membership
from streamclient.core.leases import LeaseWrite
from streamclient.core.membership import WorkerRow, WorkerWrite
from streamclient.core.write_rules import EpochRow, apply_write, draw, permits
from streamclient.model import Lease


class Actor(Protocol):
    """An actor that changes rows."""

    name: str
    """The actor's name in rows."""
    label: str
    """The actor's name in the history: its name in rows with the number of its life."""
    kind: str
    """The kind of actor: ``worker``, ``java``, ``operator`` or ``outside``."""
    is_alive: bool
    is_python: bool
    """Whether the production core makes the actor's writes, so that the laws apply to the actor."""


@define(eq=False)
class Outsider:
    """An actor that is not a worker: an operator, or a vandal of rows."""

    name: str
    label: str
    kind: str
    is_alive: bool = True
    is_python: bool = False


@define(eq=False)
class LeaseChange:
    """A change of a lease row."""

    actor: Actor
    what: str
    """The kind of write."""
    lease_key: str
    before: Lease | None
    after: Lease | None
    write: LeaseWrite | None = None
    """The write; ``None`` unless the production core made it."""


WorkerWatcher = Callable[[Actor, WorkerWrite, WorkerRow | None, WorkerRow | None], None]
"""A function that gets every accepted write of a worker row, except wakes: actor, write, and the row before and
after."""


@define(eq=False)
class SimulatedTable:
    """Lease rows by key, the greatest epoch given out for each lease, and worker rows by name."""

    watch: Callable[[LeaseChange], None]
    """A function that is called with every change of a lease row."""
    watch_workers: WorkerWatcher
    rows: dict[str, Lease] = field(factory=dict)
    epochs: dict[str, EpochRow] = field(factory=dict)
    workers: dict[str, WorkerRow] = field(factory=dict)
    _sorted_keys: list[str] | None = None

    def sorted_keys(self) -> list[str]:
        """Return the sorted lease keys of all rows. The caller must not change the list."""
        if self._sorted_keys is None:
            self._sorted_keys = sorted(self.rows)
        return self._sorted_keys

    def sorted_rows(self) -> list[Lease]:
        """Return the rows of all leases, by key."""
        return [self.rows[key] for key in self.sorted_keys()]

    def land(self, actor: Actor, write: LeaseWrite) -> bool:
        """Carry out a write if the row permits it; return whether it did."""
        before = self.rows.get(write.lease_key)
        if not permits(before, write):
            return False
        after = apply_write(before, write)
        if before is None and after is None:
            return True
        self._store(write.lease_key, after)
        self.watch(LeaseChange(actor, write.kind.value, write.lease_key, before, after, write))
        return True

    def put(self, actor: Actor, what: str, lease_key: str, after: Lease | None) -> None:
        """Change a row without any condition of this package."""
        before = self.rows.get(lease_key)
        self._store(lease_key, after)
        self.watch(LeaseChange(actor, what, lease_key, before, after))

    def draw_epoch(self, lease_key: str) -> int:
        """Return the next epoch of a lease."""
        last = self.epochs.get(lease_key)
        drawn = apply_write(last, draw(lease_key, last))
        assert drawn is not None
        self.epochs[lease_key] = drawn
        return drawn.number

    def land_worker(self, actor: Actor, write: WorkerWrite) -> bool:
        """Carry out a write of a worker row if the row permits it; return whether it did."""
        before = self.workers.get(write.worker_id)
        if not permits(before, write):
            return False
        after = apply_write(before, write)
        if after is None:
            self.workers.pop(write.worker_id, None)
        else:
            self.workers[write.worker_id] = after
        self.watch_workers(actor, write, before, after)
        return True

    def wake(self, names: tuple[str, ...]) -> None:
        """Wake workers that have rows."""
        for name in names:
            if name in self.workers:
                self.workers[name] = membership.woken(self.workers[name])

    def workers_of(self, names: Iterable[str]) -> tuple[WorkerRow, ...]:
        """Return the existing rows of these workers, by name."""
        return tuple(self.workers[name] for name in sorted(names) if name in self.workers)

    def _store(self, lease_key: str, after: Lease | None) -> None:
        if after is None:
            self.rows.pop(lease_key, None)
            self._sorted_keys = None
            return
        if lease_key not in self.rows:
            self._sorted_keys = None
        self.rows[lease_key] = after
