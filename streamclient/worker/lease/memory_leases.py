"""A store of leases in memory, with the same rules as the status table."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from attrs import evolve

from streamclient.base import checks
from streamclient.base.processes import Birthplace
from streamclient.base.reasons import counted
from streamclient.core import membership
from streamclient.core.leases import LeaseWrite
from streamclient.core.membership import WorkerRow, WorkerWrite
from streamclient.core.write_rules import EpochRow, RowT, Write, WriteOutcome, apply_write, draw, permits
from streamclient.errors import ConfigurationError
from streamclient.model import Lease
from streamclient.worker.lease.lease_store import WriteAnswer
from streamclient.worker.lease.lease_verbs import WritingLeaseManager, check_worker_write, check_write


@checks.explains_names
class MemoryLeaseManager(WritingLeaseManager):
    """A lease manager that keeps the leases of one stream in the memory of this process. Thread-safe.

    Several workers of one process may share one instance, and divide the shards as they do with a status table.
    Without ``stream_id`` the manager belongs to the stream of the first lease that it gets.
    """

    def __init__(self, stream_id: str | None = None) -> None:
        self._stream_id = checks.optional(checks.identifier).require("stream_id", stream_id)
        self._rows: dict[str, Lease] = {}
        self._epochs: dict[str, EpochRow] = {}
        self._workers: dict[str, WorkerRow] = {}
        self._birthplace = Birthplace()
        self._lock = Lock()

    def create_lease_table_if_not_exists(self) -> bool:
        """Return ``False``, because memory needs no table."""
        return False

    def wait_until_lease_table_ready(self) -> bool:
        """Return ``True``, because memory is always ready."""
        return True

    def list_leases(self) -> Sequence[Lease]:
        """Return all leases, sorted by lease key. Unlike with a table, the result is a snapshot."""
        with self._held():
            return [self._rows[key] for key in sorted(self._rows)]

    def get_lease(self, lease_key: str) -> Lease | None:
        """Return the lease, or ``None`` if its row does not exist."""
        with self._held():
            return self._rows.get(lease_key)

    def write_many(self, writes: Sequence[LeaseWrite | WorkerWrite]) -> Sequence[WriteAnswer]:
        """Carry out the writes one after the other. Only the outcome of an invalid write is uncertain."""
        return [self._answer(write) for write in writes]

    def draw_epochs(self, lease_keys: Sequence[str]) -> Sequence[int | Exception]:
        """Draw an epoch for each key, which is greater than all earlier epochs of the key. Never fails."""
        with self._held():
            return [self._draw(key) for key in lease_keys]

    def forget_epochs(self, lease_keys: Sequence[str]) -> None:
        """Drop the epochs of shards that have left the stream."""
        with self._held():
            for key in lease_keys:
                self._epochs.pop(key, None)

    def list_workers(self, *, with_info: bool = False) -> Sequence[WorkerRow]:
        """Return all worker rows, sorted by worker, as a snapshot."""
        with self._held():
            rows = [self._workers[name] for name in sorted(self._workers)]
        return rows if with_info else [evolve(row, info="") for row in rows]

    def read_workers(self, worker_ids: Sequence[str]) -> Sequence[WorkerRow]:
        """Return the rows of ``worker_ids``, without ``info``; absent rows are left out."""
        with self._held():
            rows = [self._workers[name] for name in worker_ids if name in self._workers]
        return [evolve(row, info="") for row in rows]

    def wake(self, worker_ids: Sequence[str]) -> None:
        """Wake the workers ``worker_ids``; ignore absent rows."""
        with self._held():
            woken = {name: membership.woken(self._workers[name]) for name in worker_ids if name in self._workers}
            self._workers.update(woken)

    def _held(self) -> Lock:
        """Return the lock; raise in a forked child, because the workers of the parent do not see the child's leases."""
        self._birthplace.require("the MemoryLeaseManager", "leases that processes share need a status table")
        return self._lock

    def _draw(self, lease_key: str) -> int:
        last = self._epochs.get(lease_key)
        drawn = apply_write(last, draw(lease_key, last))
        assert drawn is not None
        self._epochs[lease_key] = drawn
        return drawn.number

    def _answer(self, write: LeaseWrite | WorkerWrite) -> WriteAnswer:
        with self._held():
            stream_id = _stream_id(write) if self._stream_id is None else self._stream_id
            try:
                if isinstance(write, WorkerWrite):
                    check_worker_write(write, stream_id)
                else:
                    check_write(write, stream_id)
            except ConfigurationError as error:
                return WriteAnswer(WriteOutcome.UNCERTAIN, error)
            self._stream_id = stream_id
            if isinstance(write, WorkerWrite):
                return WriteAnswer(_applied(self._workers, write.worker_id, write))
            return WriteAnswer(_applied(self._rows, write.lease_key, write))

    def __repr__(self) -> str:
        return f"MemoryLeaseManager({counted(len(self._rows), 'lease')} of {self._stream_id})"


def _applied(rows: dict[str, RowT], key: str, write: Write[RowT]) -> WriteOutcome:
    row = rows.get(key)
    if not permits(row, write):
        return WriteOutcome.REFUSED
    result = apply_write(row, write)
    if result is None:
        rows.pop(key, None)
    else:
        rows[key] = result
    return WriteOutcome.ACCEPTED


def _stream_id(write: LeaseWrite | WorkerWrite) -> str:
    if isinstance(write, LeaseWrite):
        return write.seen.stream_id
    row = write.seen or write.result
    return "" if row is None else row.stream_id
