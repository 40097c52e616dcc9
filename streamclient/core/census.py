"""Leases per worker, counted row by row as rows change, so that nobody has to count them all.

Only rows that have not expired are counted, so rows are also kept by age. Laws:

* time never goes back: whoever asks for a later time has rows expire that were counted before;
* the numbers are those that a count of all rows would give (a property test compares them).
"""

from __future__ import annotations

from attrs import define, field

from streamclient.model import Lease

NEVER = float("-inf")


@define(eq=False)
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
    is_orphaned: bool = False
    """Whether its owner's session was known to be killed after the row was read: it is free at once."""
    freed_at: float = NEVER
    """When a row that anybody may take at once was first seen to be so."""


@define(eq=False)
class Census:
    """Numbers over all rows, by worker. Names without any row are left out."""

    duration_seconds: float
    credits: dict[str, int] = field(factory=dict)
    """Rows that have not expired, those in transit for the worker that they go to."""
    unread: dict[str, int] = field(factory=dict)
    """Those of them that are not finished."""
    settled: dict[str, int] = field(factory=dict)
    """Rows that have not expired, by owner, without those in transit."""
    owners: dict[str, int] = field(factory=dict)
    """Rows that have not expired, by owner."""
    names: dict[str, int] = field(factory=dict)
    """How often a worker is named as owner or stealer, in expired rows too."""
    expired: dict[str, Sighting] = field(factory=dict)
    """Rows that stood still for longer than the lease duration when time was last told, and free new ones."""
    _owned: dict[str, dict[str, Sighting]] = field(factory=dict)
    _wanted: dict[str, dict[str, Sighting]] = field(factory=dict)
    _by_age: dict[str, Sighting] = field(factory=dict)
    """The others, in the order in which they moved."""

    def owned_by(self, worker: str) -> list[Sighting]:
        """Rows with this owner, by key."""
        return _sorted(self._owned.get(worker, {}))

    def wanted_by(self, worker: str) -> list[Sighting]:
        """Rows with this stealer, by key."""
        return _sorted(self._wanted.get(worker, {}))

    def tell_time(self, now: float) -> None:
        """Let rows expire that stood still for strictly longer than the lease duration."""
        duration = self.duration_seconds
        while self._by_age:
            key, sighting = next(iter(self._by_age.items()))
            if not now - sighting.moved_at > duration:
                return
            del self._by_age[key]
            self.expired[key] = sighting
            self._count(sighting.row, -1)

    def add(self, sighting: Sighting) -> None:
        """A row was seen for the first time."""
        if sighting.moved_at == NEVER:
            self.expired[sighting.row.lease_key] = sighting
        else:
            self._by_age[sighting.row.lease_key] = sighting
            self._count(sighting.row, 1)
        self._name(sighting, 1)

    def orphan(self, sighting: Sighting, now: float) -> None:
        """Nobody holds a row any more, although it has not stood still for long."""
        key = sighting.row.lease_key
        if not sighting.is_orphaned:
            sighting.is_orphaned, sighting.moved_at, sighting.freed_at = True, NEVER, now
        if self._by_age.pop(key, None) is not None:
            self.expired[key] = sighting
            self._count(sighting.row, -1)

    def remove(self, sighting: Sighting) -> None:
        """A row is gone."""
        key = sighting.row.lease_key
        if self.expired.pop(key, None) is None:
            del self._by_age[key]
            self._count(sighting.row, -1)
        self._name(sighting, -1)

    def change(self, sighting: Sighting, row: Lease, moved_at: float) -> None:
        """A row was seen with other content; it moved if ``moved_at`` is later than before."""
        old, key = sighting.row, row.lease_key
        has_moved, is_counted = moved_at != sighting.moved_at, key in self._by_age
        has_new_names = old.owner != row.owner or old.stealer != row.stealer
        if has_new_names:
            self._name(sighting, -1)
        if is_counted and (has_new_names or old.is_finished != row.is_finished):
            self._count(old, -1)
            self._count(row, 1)
        sighting.row, sighting.moved_at = row, moved_at
        sighting.is_orphaned = sighting.is_orphaned and not has_moved
        if has_new_names:
            self._name(sighting, 1)
        if has_moved and is_counted:
            del self._by_age[key]
            self._by_age[key] = sighting
        elif has_moved:
            del self.expired[key]
            self._by_age[key] = sighting
            self._count(row, 1)

    def _count(self, row: Lease, change: int) -> None:
        holder = row.stealer or row.owner
        if row.owner:
            add(self.owners, row.owner, change)
            if not row.stealer:
                add(self.settled, row.owner, change)
        if holder:
            add(self.credits, holder, change)
            if not row.is_finished:
                add(self.unread, holder, change)

    def _name(self, sighting: Sighting, change: int) -> None:
        row = sighting.row
        for name, index in ((row.owner, self._owned), (row.stealer, self._wanted)):
            if not name:
                continue
            add(self.names, name, change)
            rows = index.setdefault(name, {})
            if change > 0:
                rows[row.lease_key] = sighting
            else:
                del rows[row.lease_key]
                if not rows:
                    del index[name]


def add(numbers: dict[str, int], name: str, change: int) -> None:
    """Change the number of one name, and leave out the name when nothing is left."""
    number = numbers.get(name, 0) + change
    if number:
        numbers[name] = number
    else:
        del numbers[name]


def _sorted(rows: dict[str, Sighting]) -> list[Sighting]:
    return [rows[key] for key in sorted(rows)]
