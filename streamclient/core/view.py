"""What this worker has seen of every row of the status table, and when.

Laws:

* no timestamp of another machine is used: a lease expires when *this* worker saw its counter unchanged for strictly
  longer than the lease duration (Java stream client: ``Lease.isExpired``);
* a counter change is stamped with the time after the read returned, which errs towards "still alive";
* a row without owner is free at once when first seen; a row with an owner gets a full duration of grace
  (Java stream client: ``LeaseTaker``);
* a worker is alive by what it does, not by what others write in its name: a renewal, a take or a mark counts, being
  named as new owner in a hand-over does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import evolve, frozen

from streamclient.model import Lease

NEVER = float("-inf")

MEMORY_DURATIONS = 10
"""For how many lease durations a worker that occurs in no row is remembered: long enough to judge the marks it left,
short enough that names made anew at each start do not pile up."""


@frozen
class Sighting:
    """One row as last seen."""

    row: Lease
    moved_at: float
    """When this worker first saw the present counter and owner; ``NEVER`` for a new row without owner."""
    noted_at: float = NEVER
    """When an own write or a single read last confirmed the row; scans that began earlier are older than that."""
    marked_at: float = NEVER
    """When the present stealer was first seen."""
    is_moved_by_others: bool = False
    """Whether the last scan showed a change that no own write explains."""


class LeaseView:
    """Sightings of all rows, and signs of life of all workers. Owned by one thread; planning only reads it."""

    def __init__(self, worker_id: str, duration_seconds: float) -> None:
        self.worker_id = worker_id
        self.duration_seconds = duration_seconds
        self.sightings: dict[str, Sighting] = {}
        self.rows: dict[str, Lease] = {}
        """The rows of all sightings."""
        self.vanished: dict[str, Lease] = {}
        """Rows that were deleted, as last seen: whoever creates them again starts from there."""
        self.scans = 0
        self._signs: dict[str, float] = {}
        self._suspects: dict[str, float] = {}
        """Owners of rows that stood still until they expired, and since when they are suspected."""
        self._dead: set[str] = set()
        self._leaving: dict[str, float] = {}
        """Workers that gave something away unasked, and when."""

    def row(self, lease_key: str) -> Lease | None:
        """The row as last seen, if it is there."""
        return self.rows.get(lease_key)

    # --- seeing ------------------------------------------------------------------------------------------------

    def observe(self, rows: Iterable[Lease], asked_at: float, now: float) -> None:
        """Take in a scan that was asked for at ``asked_at`` and returned at ``now``."""
        seen = {row.lease_key: row for row in rows}
        self._forget_absent(seen, asked_at)
        for key in sorted(seen):
            self.vanished.pop(key, None)
            self._see(seen[key], asked_at, now)
        self.scans += 1
        self._judge_workers(now)

    def note(self, row: Lease, now: float) -> None:
        """Take in a row that an own accepted write produced or a single read returned."""
        self.vanished.pop(row.lease_key, None)
        old = self.sightings.get(row.lease_key)
        moved = old is None or _moved(old.row, row)
        moved_at = now if old is None or moved else old.moved_at
        if old is None and not row.owner:
            moved_at = NEVER
        if old is not None:
            self._look_for_life(old.row, row, now)
        self._put(Sighting(row, moved_at, now, _marked_at(old, row, now)))

    def note_absent(self, lease_key: str) -> None:
        """Take in that a single read or an own delete left no row."""
        if self.sightings.pop(lease_key, None) is not None:
            self.vanished[lease_key] = self.rows.pop(lease_key)

    def forget_vanished(self, listed: Iterable[str]) -> None:
        """Drop the memory of vanished rows whose shard is not listed any more."""
        kept = set(listed)
        self.vanished = {key: row for key, row in self.vanished.items() if key in kept}

    def _forget_absent(self, seen: Mapping[str, Lease], asked_at: float) -> None:
        for key in sorted(self.sightings.keys() - seen.keys()):
            if self.sightings[key].noted_at <= asked_at:
                self.note_absent(key)

    def _see(self, row: Lease, asked_at: float, now: float) -> None:
        old = self.sightings.get(row.lease_key)
        if old is None:
            moved_at = now if row.owner else NEVER
            self._put(Sighting(row, moved_at, marked_at=_marked_at(None, row, now)))
        elif old.noted_at > asked_at:
            self.sightings[row.lease_key] = evolve(old, is_moved_by_others=False)
        else:
            moved = _moved(old.row, row)
            self._look_for_life(old.row, row, now)
            moved_at = now if moved else old.moved_at
            self._put(Sighting(row, moved_at, old.noted_at, _marked_at(old, row, now), moved))

    def _put(self, sighting: Sighting) -> None:
        self.sightings[sighting.row.lease_key] = sighting
        self.rows[sighting.row.lease_key] = sighting.row

    # --- judging -----------------------------------------------------------------------------------------------

    def is_expired(self, lease_key: str, now: float) -> bool:
        """Whether the row stood still for strictly longer than the lease duration (or never had an owner)."""
        return now - self.sightings[lease_key].moved_at > self.duration_seconds

    def expired_keys(self, now: float) -> list[str]:
        """Keys of expired rows, sorted."""
        return sorted(key for key in self.sightings if self.is_expired(key, now))

    def credits(self, now: float) -> dict[str, int]:
        """Leases per worker among rows that are not expired; leases in transit count for their stealer."""
        counts: dict[str, int] = {}
        for key in sorted(self.sightings):
            row = self.sightings[key].row
            worker = row.stealer or row.owner
            if worker and not self.is_expired(key, now):
                counts[worker] = counts.get(worker, 0) + 1
        return counts

    def live_workers(self, now: float) -> list[str]:
        """Names of this worker and of all that own a row that is not expired, sorted."""
        owners = {s.row.owner for key, s in self.sightings.items() if s.row.owner and not self.is_expired(key, now)}
        return sorted((owners - self._dead) | {self.worker_id})

    def is_presumed_dead(self, worker: str) -> bool:
        """Whether a row of that worker stood still until it expired, and it gave no sign of life since.

        A worker that was never seen as an owner is not presumed dead: a joining worker marks before it owns.
        """
        return worker in self._dead

    def is_leaving(self, worker: str) -> bool:
        """Whether it gave away an unfinished lease that nobody had asked for, and has not taken any since.

        Forgotten after a lease duration: a mark that came and was served between two scans looks the same. Finished
        leases do not count, they are given away in balancing too.
        """
        return worker in self._leaving

    def last_sign_of_life(self, worker: str) -> float:
        """When this worker last saw it act; ``NEVER`` if not yet."""
        return self._signs.get(worker, NEVER)

    def _look_for_life(self, old: Lease, row: Lease, now: float) -> None:
        if row.is_marked and row.stealer != old.stealer:
            self._sign(row.stealer, now)
        if not _moved(old, row):
            return
        if not row.is_handed_over:
            self._sign(row.owner, now)
        elif old.owner != row.owner:
            self._sign(old.owner, now)
        is_given = row.is_handed_over and old.owner not in ("", row.owner) and not old.stealer
        if is_given and not row.is_finished:
            self._leaving[old.owner] = now
        elif not row.stealer and (old.owner != row.owner or old.stealer):
            self._leaving.pop(row.owner, None)

    def _sign(self, worker: str, now: float) -> None:
        if worker:
            self._signs[worker] = now
            self._suspects.pop(worker, None)
            self._dead.discard(worker)

    def _judge_workers(self, now: float) -> None:
        for key in self.expired_keys(now):
            owner = self.sightings[key].row.owner
            if owner not in ("", self.worker_id):
                self._suspects.setdefault(owner, now)
        named = {name for s in self.sightings.values() for name in (s.row.owner, s.row.stealer)}
        horizon = now - MEMORY_DURATIONS * self.duration_seconds
        self._signs = {name: at for name, at in self._signs.items() if name in named or at >= horizon}
        self._suspects = {name: at for name, at in self._suspects.items() if name in named or at >= horizon}
        recent = now - self.duration_seconds
        self._dead = {name for name in self._suspects if self.last_sign_of_life(name) < recent}
        self._leaving = {name: at for name, at in self._leaving.items() if at >= recent}


def _moved(old: Lease, row: Lease) -> bool:
    return (old.counter, old.owner) != (row.counter, row.owner)


def _marked_at(old: Sighting | None, row: Lease, now: float) -> float:
    if not row.stealer:
        return NEVER
    return old.marked_at if old is not None and old.row.stealer == row.stealer else now
