"""Parked records in memory, for tests."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from streamclient.interfaces import IParkingStore
from streamclient.model import ParkedRecord


class MemoryParkingStore(IParkingStore):
    """Keeps records as long as the process lives: for tests of processors, never for a fleet. Thread-safe."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str, str], ParkedRecord] = {}
        self._lock = threading.Lock()

    def park(self, records: Sequence[ParkedRecord]) -> None:
        """Store ``records``, as the interface requires, except that they do not survive the process."""
        with self._lock:
            for parked in records:
                self._records.setdefault(_identity(parked), parked)

    def parked(self, stream_id: str | None = None) -> Iterable[ParkedRecord]:
        """Return the present records, as the interface requires."""
        with self._lock:
            present = sorted(self._records.items())
        return [parked for _, parked in present if stream_id in (None, parked.stream_id)]

    def remove(self, records: Sequence[ParkedRecord]) -> None:
        """Remove ``records``, as the interface requires."""
        with self._lock:
            for parked in records:
                self._records.pop(_identity(parked), None)

    def __repr__(self) -> str:
        return f"<MemoryParkingStore, {len(self._records)} parked>"


def _identity(parked: ParkedRecord) -> tuple[str, str, str]:
    return parked.stream_id, parked.shard_id, parked.record_id
