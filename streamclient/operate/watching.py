"""The watching of lease rows until owners are known to be dead, or have stopped reading. For one thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from threading import Event

from streamclient.model import Lease
from streamclient.operate.collection import FleetReader
from streamclient.operate.facts import FleetFacts
from streamclient.operate.liveness import Liveness, life

POLLS_PER_LEASE = 40
"""The number of times that lease rows are read within one lease duration."""


class RowWatcher:
    """A watcher of lease rows, which reads them repeatedly for a bounded time."""

    def __init__(
        self,
        collector: FleetReader,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self._collector = collector
        self._monotonic = monotonic
        self._wait = wait or Event().wait

    def now(self) -> float:
        """Return the time in seconds, by the clock that bounds each wait."""
        return self._monotonic()

    def standing_still(self, facts: FleetFacts, shard_ids: Iterable[str]) -> Mapping[str, Lease]:
        """Watch leases; return those whose counter and owner stay the same for longer than a lease duration.

        The time is measured by this machine's clock, from the return of the first read to the start of the last read.
        So slow reads cannot make a living owner seem dead. The watch ends early when all leases have changed.
        """
        facts = self._collector.refreshed(facts)
        still = {key: facts.leases[key] for key in shard_ids if key in facts.leases}
        began = self._monotonic()
        while still:
            self._pause(facts)
            watched_seconds = self._monotonic() - began
            facts = self._collector.refreshed(facts)
            still = still_there(facts, still)
            if watched_seconds > facts.lease_duration_seconds:
                break
        return still

    def await_quiet(self, facts: FleetFacts, shard_ids: Collection[str], seconds: float) -> list[str]:
        """Wait until no worker reads the paused shards ``shard_ids``.

        Return the shards that may still be read after ``seconds``.
        """
        deadline = self._monotonic() + seconds
        while True:
            facts = self._collector.refreshed(facts)
            late = sorted(key for key in shard_ids if may_be_read(facts, key))
            if not late or self._monotonic() >= deadline:
                return late
            self._pause(facts)

    def _pause(self, facts: FleetFacts) -> None:
        self._wait(facts.lease_duration_seconds / POLLS_PER_LEASE)


def still_there(facts: FleetFacts, leases: Mapping[str, Lease]) -> dict[str, Lease]:
    """Return those of ``leases`` whose owner and counter have not changed in ``facts``."""
    present = {key: facts.lease(key) for key in leases}
    return {
        key: lease
        for key, lease in leases.items()
        if (row := present[key]) is not None and (row.owner, row.counter) == (lease.owner, lease.counter)
    }


def may_be_read(facts: FleetFacts, shard_id: str) -> bool:
    """Return whether a paused shard may still be read, because its owner lives and has not acknowledged the pause."""
    lease = facts.lease(shard_id)
    if lease is None or not lease.owner or lease.is_handed_over or lease.pause is None:
        return False
    return not lease.is_paused_by_owner and life(facts, lease.owner) in (Liveness.LIVING, Liveness.SILENT)
