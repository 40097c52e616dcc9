"""A store of parked records in memory, for tests."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from streamclient.interfaces import IParkingStore
from streamclient.model import ParkedRecord
from streamclient.worker.parking.parked_fleets import fleet_of, require_own


class MemoryParkingStore(IParkingStore):
    """A parking store for tests of processors, which loses its records when the process ends. Thread-safe."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str, str], ParkedRecord] = {}
        self._lock = threading.Lock()

    def park(self, records: Sequence[ParkedRecord]) -> None:
        """Store the records that the store does not have yet. They do not survive the process.

        Raises:
            ConfigurationError: another fleet has parked records of the stream; nothing was stored.
        """
        with self._lock:
            for stream_id in {parked.stream_id for parked in records}:
                of_stream = [parked for parked in self._records.values() if parked.stream_id == stream_id]
                require_own(fleet_of(records, stream_id), of_stream, self)
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

    def still_parked(self, records: Sequence[ParkedRecord]) -> Sequence[ParkedRecord]:
        """Return those of ``records`` that are parked now, in the same order."""
        with self._lock:
            return [parked for parked in records if _identity(parked) in self._records]

    def __repr__(self) -> str:
        return f"<MemoryParkingStore, {len(self._records)} parked>"


def _identity(parked: ParkedRecord) -> tuple[str, str, str]:
    return parked.stream_id, parked.shard_id, parked.record_id
