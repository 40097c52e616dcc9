"""All rows of the status table as this worker saw them, and the times when it saw them.

Laws:

* no timestamp of another machine is used: a lease expires when *this* worker saw its counter unchanged for strictly
  longer than the lease duration (Java stream client: ``Lease.isExpired``);
* a change of a counter is stamped with the time after the read returned. So a lease expires too late rather than too
  early;
* a row without an owner is free when it is first seen; a row with an owner gets a full lease duration (Java stream
  client: ``LeaseTaker``);
* a worker is alive by its own acts, not by writes of other workers. A renewal, a take or a mark counts. A hand-over
  that names the worker as the new owner does not count;
* a worker's session, if it has one, says whether the worker lives and stays. Even so, a lease of that worker expires if
  its counter stands still: the owner may have stopped renewing the lease on purpose.

Counts of rows by worker are updated as rows change, so that no scan has to count them all. Only unexpired rows are
counted, so rows are also kept by age. Laws:

* time never goes back. As it goes on, rows that are counted expire;
* the numbers equal a count of all rows (a property test compares them).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import define, field

from streamclient.core.deadlines import NEVER
from streamclient.core.peers import Peers
from streamclient.model import CheckpointPosition, Lease

JUST_NOW = float("inf")
"""A moment after all other moments. It stands for the last sign of life of a worker with a live session."""

MEMORY_DURATIONS = 10
"""The number of lease durations for which a worker that occurs in no row is remembered. This time is long enough to
judge the marks that the worker left. It is short enough that old names are forgotten if a worker has a new name at each
start."""


@define(eq=False)
class Sighting:
    """One lease row as this worker last saw it."""

    row: Lease
    moved_at: float
    """The time at which this worker first saw the present counter and owner; ``NEVER`` for a new row without an
    owner."""
    noted_at: float = NEVER
    """The time at which a write of this worker, or a read of the row, last confirmed the row. A scan that began earlier
    does not change this sighting."""
    marked_at: float = NEVER
    """The time at which this worker first saw the present stealer in the row."""
    is_moved_by_others: bool = False
    """Whether the last scan showed a change that no write of this worker explains."""
    is_orphaned: bool = False
    """Whether this worker knew, at the end of the scan that read the row, that the owner's session was killed. If so,
    the row is free."""
    freed_at: float = NEVER
    """The time at which the row was first seen to be free for any worker."""


@define(eq=False)
class Counts:
    """Numbers of lease rows by the worker that they name. A row that names a stealer is *in transit* to that worker."""

    duration_seconds: float
    credits: dict[str, int] = field(factory=dict)
    """The number of unexpired rows by owner. A row in transit counts for the stealer instead."""
    unread: dict[str, int] = field(factory=dict)
    """The number of unfinished rows among the rows in ``credits``, by the same workers."""
    settled: dict[str, int] = field(factory=dict)
    """The number of unexpired rows by owner, rows in transit left out."""
    owners: dict[str, int] = field(factory=dict)
    """The number of unexpired rows by owner, rows in transit included."""
    names: dict[str, int] = field(factory=dict)
    """The number of times that rows name a worker as owner or stealer. Expired rows count, too."""
    expired: dict[str, Sighting] = field(factory=dict)
    """The free rows: rows that had stood still for longer than the lease duration at the last call of ``tell_time``,
    new rows without an owner, and rows that ``orphan`` freed."""
    _owned: dict[str, dict[str, Sighting]] = field(factory=dict)
    _wanted: dict[str, dict[str, Sighting]] = field(factory=dict)
    _by_age: dict[str, Sighting] = field(factory=dict)
    """All rows that are not in ``expired``, in the order in which they moved."""

    def owned_by(self, worker: str) -> list[Sighting]:
        """Return the rows with owner ``worker``, sorted by key."""
        return _sorted(self._owned.get(worker, {}))

    def wanted_by(self, worker: str) -> list[Sighting]:
        """Return the rows with stealer ``worker``, sorted by key."""
        return _sorted(self._wanted.get(worker, {}))

    def tell_time(self, now: float) -> None:
        """Set the present time, and move rows that stood still for longer than the lease duration to ``expired``."""
        duration = self.duration_seconds
        while self._by_age:
            key, sighting = next(iter(self._by_age.items()))
            if not now - sighting.moved_at > duration:
                return
            del self._by_age[key]
            self.expired[key] = sighting
            self._count(sighting.row, -1)

    def add(self, sighting: Sighting) -> None:
        """Count a row that this worker sees for the first time."""
        if sighting.moved_at == NEVER:
            self.expired[sighting.row.lease_key] = sighting
        else:
            self._by_age[sighting.row.lease_key] = sighting
            self._count(sighting.row, 1)
        self._name(sighting, 1)

    def orphan(self, sighting: Sighting, now: float) -> None:
        """Free a row whose owner's session was killed, even if the row has not stood still for long."""
        key = sighting.row.lease_key
        if not sighting.is_orphaned:
            sighting.is_orphaned, sighting.moved_at, sighting.freed_at = True, NEVER, now
        if self._by_age.pop(key, None) is not None:
            self.expired[key] = sighting
            self._count(sighting.row, -1)

    def remove(self, sighting: Sighting) -> None:
        """Remove a row that no longer exists."""
        key = sighting.row.lease_key
        if self.expired.pop(key, None) is None:
            del self._by_age[key]
            self._count(sighting.row, -1)
        self._name(sighting, -1)

    def change(self, sighting: Sighting, row: Lease, moved_at: float) -> None:
        """Replace the content of a known row.

        The row has moved if ``moved_at`` differs from ``sighting.moved_at``.
        """
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


class LeaseView:
    """Sightings of all rows, and signs of life of all workers.

    Owned by one thread. The planning code only reads this object.

    ``now`` never goes back from one call to the next.
    """

    def __init__(self, worker_id: str, duration_seconds: float, peers: Peers | None = None) -> None:
        self.worker_id = worker_id
        self.duration_seconds = duration_seconds
        self.peers = Peers(worker_id, duration_seconds) if peers is None else peers
        """The sessions of other workers; empty if the store has no worker rows."""
        self.sightings: dict[str, Sighting] = {}
        self.rows: dict[str, Lease] = {}
        """All lease rows as this worker last saw them, by lease key."""
        self.scanned: Mapping[str, Lease] = {}
        """The rows of the last scan. Writes of this worker may be newer."""
        self.vanished: dict[str, Lease] = {}
        """Deleted rows, as they were last seen. If such a row is created again, it gets this content."""
        self.has_progress = False
        """Whether this worker ever saw a row with processed records and with a checkpoint after the beginning of its
        shard."""
        self.scans = 0
        self.counts = Counts(duration_seconds)
        self._signs: dict[str, float] = {}
        self._suspects: dict[str, float] = {}
        """Workers whose rows stood still until the rows expired, each with the time since when the worker is suspected
        to be dead."""
        self._dead: set[str] = set()
        self._leaving: dict[str, float] = {}
        """Workers that gave a lease away without a request, and the time at which they did so."""

    def row(self, lease_key: str) -> Lease | None:
        """Return the lease row as this worker last saw it; ``None`` if the row is absent."""
        return self.rows.get(lease_key)

    # --- observed rows -----------------------------------------------------------------------------------------

    def observe(self, rows: Iterable[Lease], asked_at: float, now: float) -> None:
        """Process a scan that was requested at ``asked_at`` and returned at ``now``."""
        scanned: dict[str, Lease] = {}
        sightings = self.sightings
        for row in rows:
            key = row.lease_key
            scanned[key] = row
            sighting = sightings.get(key)
            if sighting is None:
                self._meet(row, now if row.owner else NEVER, now)
            elif sighting.noted_at > asked_at or sighting.row is row or sighting.row == row:
                sighting.is_moved_by_others = False
            else:
                sighting.is_moved_by_others = self._change(sighting, row, now)
        self.scanned = scanned
        if len(scanned) < len(sightings):
            self._forget_absent(asked_at)
        self.scans += 1
        self._judge_workers(now)

    def note_killed(self, workers: Iterable[str], asked_at: float, now: float) -> None:
        """Free the lease rows that ``workers`` own, because the sessions of these workers were killed.

        This was known at the end of the last scan, which was requested at ``asked_at``. A row that was read again after
        that request may belong to a later session, so it stays as it is.
        """
        for worker in sorted(workers):
            for sighting in self.counts.owned_by(worker):
                if sighting.noted_at <= asked_at:
                    self.counts.orphan(sighting, now)

    def note(self, row: Lease, now: float) -> None:
        """Process a row that an accepted write of this worker produced, or that a read of the row returned."""
        sighting = self.sightings.get(row.lease_key)
        if sighting is None:
            self._meet(row, now if row.owner else NEVER, now, noted_at=now)
        else:
            self._change(sighting, row, now)
            sighting.noted_at, sighting.is_moved_by_others = now, False

    def note_absent(self, lease_key: str) -> None:
        """Record that a row is absent, as a read of that row or a delete by this worker has shown."""
        sighting = self.sightings.pop(lease_key, None)
        if sighting is not None:
            self.counts.remove(sighting)
            self.vanished[lease_key] = self.rows.pop(lease_key)

    def forget_vanished(self, listed: Iterable[str]) -> None:
        """Forget absent rows whose shard is no longer listed."""
        kept = set(listed)
        self.vanished = {key: row for key, row in self.vanished.items() if key in kept}

    def _forget_absent(self, asked_at: float) -> None:
        for key in sorted(self.sightings.keys() - self.scanned.keys()):
            if self.sightings[key].noted_at <= asked_at:
                self.note_absent(key)

    def _meet(self, row: Lease, moved_at: float, now: float, *, noted_at: float = NEVER) -> None:
        self.vanished.pop(row.lease_key, None)
        sighting = Sighting(row, moved_at, noted_at, now if row.stealer else NEVER)
        sighting.freed_at = now if moved_at == NEVER else NEVER
        self.sightings[row.lease_key] = sighting
        self._keep(row)
        self.counts.add(sighting)

    def _change(self, sighting: Sighting, row: Lease, now: float) -> bool:
        """Update a known row with its new content, and return whether its counter, owner or checkpoint changed."""
        old = sighting.row
        # The checkpoint moves with the counter. The exception is a counter that began again and reached the same
        # number.
        has_moved = (old.counter, old.owner, old.checkpoint) != (row.counter, row.owner, row.checkpoint)
        self._look_for_life(old, row, now, has_moved=has_moved)
        if old.stealer != row.stealer:
            sighting.marked_at = now if row.stealer else NEVER
        self.counts.change(sighting, row, now if has_moved else sighting.moved_at)
        self._keep(row)
        return has_moved

    def _keep(self, row: Lease) -> None:
        self.rows[row.lease_key] = row
        if not self.has_progress and row.progress is not None and row.progress.records:
            self.has_progress = row.checkpoint != CheckpointPosition.TRIM_HORIZON

    # --- conclusions from the rows -----------------------------------------------------------------------------

    def is_expired(self, lease_key: str, now: float) -> bool:
        """Return whether the row stood still for strictly longer than the lease duration.

        A row also counts as expired if it had no owner when it was first seen, or if its owner's session was killed.
        """
        return now - self.sightings[lease_key].moved_at > self.duration_seconds

    def expired_keys(self, now: float) -> list[str]:
        """Return the sorted lease keys of the rows that are expired at ``now``."""
        self.counts.tell_time(now)
        return sorted(self.counts.expired)

    def credits(self, now: float) -> Mapping[str, int]:
        """Return the number of leases of each worker among unexpired rows.

        A lease whose row names a stealer counts for the stealer.
        """
        self.counts.tell_time(now)
        return self.counts.credits

    def live_workers(self, now: float) -> list[str]:
        """Return the sorted names of this worker, of workers with a session, and of others with an unexpired row."""
        self.counts.tell_time(now)
        by_rows = [name for name in self.counts.owners if name not in self._dead and not self.peers.is_over(name)]
        return sorted({*by_rows, *self.peers.others, self.worker_id})

    def is_presumed_dead(self, worker: str) -> bool:
        """Return whether the worker seems dead.

        A worker with a session seems dead when the session is over. A worker without a session seems dead when one of
        its rows stood still until the row expired, and the worker has given no sign of life since. A worker that was
        never seen as an owner does not seem dead: a worker that joins marks leases before it owns any.
        """
        return self.peers.is_over(worker) or (worker in self._dead and not self.peers.is_live(worker))

    def is_leaving(self, worker: str) -> bool:
        """Return whether the worker seems to stop, by either of two signs.

        Either its session says that it leaves, or it gave an unfinished lease away without a request and took no lease
        since. The second sign is forgotten after a lease duration, because a request that came and was granted between
        two scans looks the same. Finished leases do not count, because balancing moves them without requests.
        """
        return self.peers.is_leaving(worker) or (worker in self._leaving and not self.peers.is_live(worker))

    def last_sign_of_life(self, worker: str) -> float:
        """Return when this worker last saw ``worker`` act; ``NEVER`` if it did not.

        For a live session return ``JUST_NOW``.
        """
        return JUST_NOW if self.peers.is_live(worker) else self._signs.get(worker, NEVER)

    def _look_for_life(self, old: Lease, row: Lease, now: float, *, has_moved: bool) -> None:
        if old.owner == row.owner and not old.stealer and not row.stealer:
            if has_moved:
                self._sign(row.owner, now)  # the usual case: a heartbeat
            return
        if row.is_marked and row.stealer != old.stealer:
            self._sign(row.stealer, now)
        if not has_moved:
            return
        if not row.is_handed_over:
            self._sign(row.owner, now)
        elif old.owner != row.owner:
            self._sign(old.owner, now)
        is_given = row.is_handed_over and old.owner not in ("", row.owner) and not old.stealer
        if is_given and not row.is_finished:
            self._leaving[old.owner] = now
        elif self._leaving and not row.stealer and (old.owner != row.owner or old.stealer):
            self._leaving.pop(row.owner, None)

    def _sign(self, worker: str, now: float) -> None:
        if worker:
            self._signs[worker] = now
            if worker in self._suspects:
                del self._suspects[worker]
                self._dead.discard(worker)

    def _judge_workers(self, now: float) -> None:
        self.counts.tell_time(now)
        for sighting in self.counts.expired.values():
            owner = sighting.row.owner
            if owner not in ("", self.worker_id):
                self._suspects.setdefault(owner, now)
        named = self.counts.names
        horizon = now - MEMORY_DURATIONS * self.duration_seconds
        self._signs = {name: at for name, at in self._signs.items() if name in named or at >= horizon}
        self._suspects = {name: at for name, at in self._suspects.items() if name in named or at >= horizon}
        recent = now - self.duration_seconds
        self._dead = {name for name in self._suspects if self._signs.get(name, NEVER) < recent}
        self._leaving = {name: at for name, at in self._leaving.items() if at >= recent}


def add(numbers: dict[str, int], name: str, change: int) -> None:
    """Add ``change`` to the number of ``name``, and drop the name at zero."""
    number = numbers.get(name, 0) + change
    if number:
        numbers[name] = number
    else:
        del numbers[name]


def _sorted(rows: dict[str, Sighting]) -> list[Sighting]:
    return [rows[key] for key in sorted(rows)]
