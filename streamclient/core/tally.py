"""Leases per worker, as one pass of balancing counts them.

A row counts for the worker that will have it once everything under way has arrived. The Java stream client counts a row
in transit for nobody; where its reaction matters, ``settled`` holds its numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import define, field

from streamclient.core.view import LeaseView
from streamclient.model import Lease


@define
class Tally:
    """Leases per worker while a pass is being planned; each move that is planned is counted at once."""

    worker_id: str
    """Who plans."""
    target: int
    """Rows over workers, rounded up."""
    counts: dict[str, int]
    """All leases, those in transit for the worker that they go to. Names every worker that has any, and the planner."""
    unfinished: dict[str, int] = field(factory=dict)
    """Those of them that still have to be read."""
    settled: dict[str, int] = field(factory=dict)
    """Leases as the Java stream client counts them: those in transit for nobody."""
    awaited: dict[str, int] = field(factory=dict)
    """By owner: leases that this worker asked for and that were not handed over yet."""

    @property
    def need(self) -> int:
        """How many leases the planning worker is short of."""
        return max(self.target - self.counts[self.worker_id], 0)

    @property
    def arrived(self) -> int:
        """Leases of the planning worker without those it still waits for."""
        return self.counts[self.worker_id] - sum(self.awaited.values())

    def load(self, worker: str) -> int:
        """Leases of another worker, as if this one's requests were not granted."""
        return self.counts.get(worker, 0) + self.awaited.get(worker, 0)

    def unread(self, worker: str) -> int:
        """Unfinished leases of a worker."""
        return self.unfinished.get(worker, 0)

    def has_finished(self, worker: str) -> bool:
        """Whether a worker has leases that need no reading any more."""
        return self.counts.get(worker, 0) > self.unread(worker)

    def rule_permits(self, giver_count: int, receiver_count: int) -> bool:
        """Whether a lease may go from one worker to another, by the Java stream client's rule.

        That rule lets a lease go from above the target to a worker below, or from exactly the target to a worker short
        of at least two. Each such move goes to a worker with at least two leases less, so such moves come to an end.
        """
        need = self.target - receiver_count
        return (giver_count > self.target and need > 0) or (giver_count == self.target and need > 1)

    def mark(self, owner: str) -> None:
        """Count one unfinished lease of ``owner`` as asked for."""
        _shift(self.counts, owner, self.worker_id)
        _shift(self.unfinished, owner, self.worker_id)
        _add(self.settled, owner, -1)
        _add(self.awaited, owner, 1)

    def give(self, receiver: str) -> None:
        """Count one finished lease of the planning worker for ``receiver``."""
        _shift(self.counts, self.worker_id, receiver)

    def take(self, row: Lease) -> None:
        """Count a free lease for the planning worker."""
        _add(self.counts, self.worker_id, 1)
        _add(self.unfinished, self.worker_id, 0 if row.is_finished else 1)


def count_leases(view: LeaseView, worker_id: str, destined: Mapping[str, str], now: float) -> Tally:
    """Count the rows last seen for ``worker_id``. ``destined`` names the new worker of rows whose fate is decided."""
    held, census = view.credits(now), view.census
    tally = Tally(
        worker_id,
        0,
        dict.fromkeys(sorted({worker_id, *held}), 0) | dict(held),
        dict(census.unread),
        dict(census.settled),
    )
    for sighting in census.wanted_by(worker_id):
        if sighting.row.lease_key not in destined and not view.is_expired(sighting.row.lease_key, now):
            _await(tally, sighting.row)
    for key, worker in destined.items():
        if key in view.sightings and worker:
            _redirect(tally, view.sightings[key].row, worker, is_counted=not view.is_expired(key, now))
    tally.target = -(-len(view.sightings) // len(tally.counts))
    return tally


def _redirect(tally: Tally, row: Lease, worker: str, *, is_counted: bool) -> None:
    """Count a row for the worker that will have it, in place of the one that it is counted for now."""
    holder = row.stealer or row.owner
    if is_counted and holder:
        _add(tally.counts, holder, -1)
        _add(tally.unfinished, holder, 0 if row.is_finished else -1)
        if not row.stealer and worker != row.owner:
            _add(tally.settled, row.owner, -1)
    _add(tally.counts, worker, 1)
    _add(tally.unfinished, worker, 0 if row.is_finished else 1)
    if is_counted and worker == tally.worker_id:
        _await(tally, row)


def _await(tally: Tally, row: Lease) -> None:
    if row.owner not in ("", tally.worker_id):
        _add(tally.awaited, row.owner, 1)


def missing_moves(numbers: Iterable[int]) -> int:
    """How many single moves it takes to make numbers even, so that no two differ by more than one."""
    values = list(numbers)
    low, high = sum(values) // len(values), -(-sum(values) // len(values))
    return max(sum(max(value - high, 0) for value in values), sum(max(low - value, 0) for value in values))


def _add(numbers: dict[str, int], name: str, change: int) -> None:
    numbers[name] = numbers.get(name, 0) + change


def _shift(numbers: dict[str, int], source: str, destination: str) -> None:
    _add(numbers, source, -1)
    _add(numbers, destination, 1)
