"""Leases in memory: the rule of the lease table under one lock."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from streamclient.core.leases import LeaseWrite, WriteOutcome, apply_write, permits
from streamclient.errors import ConfigurationError
from streamclient.lease.store import WriteAnswer
from streamclient.lease.verbs import WritingLeaseManager, check_write
from streamclient.model import Lease


class MemoryLeaseManager(WritingLeaseManager):
    """Keeps the leases of one stream in this process; nothing survives it.

    Several workers of one process may share one instance and then divide the shards exactly as over a status table.
    Without ``stream_id`` it belongs to the stream of the first lease that it is given. Thread-safe.
    """

    def __init__(self, stream_id: str | None = None) -> None:
        self._stream_id = stream_id
        self._rows: dict[str, Lease] = {}
        self._lock = Lock()

    def create_lease_table_if_not_exists(self) -> bool:
        """There is nothing to create; always ``False``."""
        return False

    def wait_until_lease_table_ready(self) -> bool:
        """Memory is always ready."""
        return True

    def list_leases(self) -> Sequence[Lease]:
        """All leases, by lease key; unlike over a table, a snapshot."""
        with self._lock:
            return [self._rows[key] for key in sorted(self._rows)]

    def get_lease(self, lease_key: str) -> Lease | None:
        """The lease, or ``None`` if there is no such row."""
        with self._lock:
            return self._rows.get(lease_key)

    def write_many(self, writes: Sequence[LeaseWrite]) -> Sequence[WriteAnswer]:
        """Carry out the writes one after the other. No outcome is uncertain, except that of an invalid write."""
        return [self._answer(write) for write in writes]

    def _answer(self, write: LeaseWrite) -> WriteAnswer:
        with self._lock:
            stream_id = write.seen.stream_id if self._stream_id is None else self._stream_id
            try:
                check_write(write, stream_id)
            except ConfigurationError as error:
                return WriteAnswer(WriteOutcome.UNCERTAIN, error)
            self._stream_id = stream_id
            return WriteAnswer(self._apply(write))

    def _apply(self, write: LeaseWrite) -> WriteOutcome:
        row = self._rows.get(write.lease_key)
        if not permits(row, write):
            return WriteOutcome.REFUSED
        result = apply_write(row, write)
        if result is None:
            self._rows.pop(write.lease_key, None)
        else:
            self._rows[write.lease_key] = result
        return WriteOutcome.ACCEPTED

    def __repr__(self) -> str:
        return f"MemoryLeaseManager({len(self._rows)} leases of {self._stream_id})"
