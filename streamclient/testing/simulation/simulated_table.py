"""The simulated status table: its rows, its conditional writes, and the actors that write rows."""

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
    """An actor that writes rows of the status table."""

    name: str
    """The actor's name in rows of the table."""
    label: str
    """The actor's name in the trace. For a worker, the label consists of the name in rows and the process's number."""
    kind: str
    """The kind of actor: ``worker``, ``java``, ``operator`` or ``outside``."""
    is_alive: bool
    is_python: bool
    """Whether the actor is a worker of this package, whose writes the laws judge."""


@define(eq=False)
class Outsider:
    """An actor that is not a worker: an operator, or the cause of destroyed rows."""

    name: str
    label: str
    kind: str
    is_alive: bool = True
    is_python: bool = False


@define(eq=False)
class LeaseChange:
    """A change of a lease row, with the row before and after the change."""

    actor: Actor
    what: str
    """The kind of write that changed the row."""
    lease_key: str
    before: Lease | None
    after: Lease | None
    write: LeaseWrite | None = None
    """The conditional write that changed the row; ``None`` for an unconditional change."""


WorkerWatcher = Callable[[Actor, WorkerWrite, WorkerRow | None, WorkerRow | None], None]
"""A function that the table calls after every accepted write of a worker row, except wake-up signals. Its arguments are
the actor, the write, and the row before and after the write."""


@define(eq=False)
class SimulatedTable:
    """The status table: lease rows by key, the last epoch of each lease, and worker rows by name."""

    watch: Callable[[LeaseChange], None]
    """A function that the table calls after every change of a lease row."""
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
        """Return the rows of all leases, sorted by lease key."""
        return [self.rows[key] for key in self.sorted_keys()]

    def land(self, actor: Actor, write: LeaseWrite) -> bool:
        """Carry out a write of a lease row if its condition holds; return whether the condition held."""
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
        """Set the row of a lease to ``after`` without a condition; ``None`` deletes the row."""
        before = self.rows.get(lease_key)
        self._store(lease_key, after)
        self.watch(LeaseChange(actor, what, lease_key, before, after))

    def draw_epoch(self, lease_key: str) -> int:
        """Increment the epoch of a lease in the table, and return the new epoch."""
        last = self.epochs.get(lease_key)
        drawn = apply_write(last, draw(lease_key, last))
        assert drawn is not None
        self.epochs[lease_key] = drawn
        return drawn.number

    def land_worker(self, actor: Actor, write: WorkerWrite) -> bool:
        """Carry out a write of a worker row if its condition holds; return whether the condition held."""
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
        """Send a wake-up signal to each of the workers ``names`` that has a row."""
        for name in names:
            if name in self.workers:
                self.workers[name] = membership.woken(self.workers[name])

    def workers_of(self, names: Iterable[str]) -> tuple[WorkerRow, ...]:
        """Return the existing rows of the workers ``names``, sorted by name."""
        return tuple(self.workers[name] for name in sorted(names) if name in self.workers)

    def _store(self, lease_key: str, after: Lease | None) -> None:
        if after is None:
            self.rows.pop(lease_key, None)
            self._sorted_keys = None
            return
        if lease_key not in self.rows:
            self._sorted_keys = None
        self.rows[lease_key] = after
