"""A store of parked records in memory, for tests."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from streamclient.interfaces import IParkingStore
from streamclient.model import ParkedRecord


class MemoryParkingStore(IParkingStore):
    """A parking store for tests of processors, which loses its records when the process ends. Thread-safe."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str, str], ParkedRecord] = {}
        self._lock = threading.Lock()

    def park(self, records: Sequence[ParkedRecord]) -> None:
        """Store the records that the store does not have yet. They do not survive the process."""
        with self._lock:
            for parked in records:
                self._records.setdefault(_identity(parked), parked)

    def parked(self, stream_id: str | None = None) -> Iterable[ParkedRecord]:
        """Return the parked records, of one stream or of all streams, sorted by stream, shard and record id."""
        with self._lock:
            present = sorted(self._records.items())
        return [parked for _, parked in present if stream_id in (None, parked.stream_id)]

    def remove(self, records: Sequence[ParkedRecord]) -> None:
        """Remove ``records``; ignore records that the store does not have."""
        with self._lock:
            for parked in records:
                self._records.pop(_identity(parked), None)

    def __repr__(self) -> str:
        return f"<MemoryParkingStore, {len(self._records)} parked>"


def _identity(parked: ParkedRecord) -> tuple[str, str, str]:
    return parked.stream_id, parked.shard_id, parked.record_id
