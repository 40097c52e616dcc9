"""The lease rows to create for the shards of a stream, the rows to delete, and the time when a lease may be read.

Laws:

* a row is created only if it is absent, and only after the rows of its listed parents;
* a row is deleted only if its shard was absent from complete, non-empty listings for ``ABSENCE_SECONDS``;
* a missing row proves nothing. A parent without a row counts as finished only if the list of shards lacks the parent,
  too, and is young enough to contain the child;
* the column ``Checkpoint`` holds only TRIM_HORIZON, SHARD_END or an iterator. So if a shard is to start at a given
  time, the iterator of that time is looked up first;
* with the start position "latest", a shard starts at the worker's start only if no worker can have read an ancestor
  of the shard from an earlier time on. Otherwise records between an ancestor and the shard would be skipped. The rows
  that this worker created at its own start (``begun_late``) do not count as such ancestors. But if this worker's first
  listing lacks the shard, all records of the shard are newer than that start, and it starts at its oldest record;
* the service removes a shard from the list only after the shard's ancestors. So a shard whose parents are not listed
  can descend from a row only if that row's shard has left the stream, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from attrs import define, field, frozen

from streamclient.base.reasons import Cause, Reason
from streamclient.core.shard_tree import Listing, ShardTree, levels
from streamclient.core.values import evolve
from streamclient.model import CheckpointPosition, InitialPosition, Lease, Shard

ABSENCE_SECONDS = 300.0
"""The seconds for which a shard must be absent before its row may be deleted. A long listing takes far less time, and
after a split the list shows the new shards far sooner. Keeping the row of a deleted shard for longer costs nothing."""

PLAUSIBLE_SHARE = 0.5
"""The smallest share of the previous listing's shards that a listing must have. In a shorter listing, a missing shard
does not count as absent until the next listing lacks it, too."""

COUNTERS_BETWEEN = 1_000_000
"""The distance between the last seen counter of a row and its counter when the row is created again. The owner may have
increased the counter a few times since it was seen. A Java worker compares only the counter. So if the counters were
equal, the Java worker would go on renewing a row that it no longer owns."""


def begins_late(created: Lease) -> bool:
    """Return whether a row, as it was created, begins at a time that was looked up, after the shard's beginning.

    A restored row, which has a counter above ``COUNTERS_BETWEEN``, goes on where the shard was read before.
    """
    is_fixed = created.checkpoint in (CheckpointPosition.TRIM_HORIZON, CheckpointPosition.SHARD_END)
    return not is_fixed and created.counter < COUNTERS_BETWEEN


@frozen
class NewLease:
    """A row to create. With ``timestamp_micros``, the iterator of that time becomes its checkpoint."""

    lease: Lease
    timestamp_micros: int | None = None


@frozen
class SyncPlan:
    """The lease rows to create and to delete because of one listing of the shards."""

    creates: tuple[NewLease, ...] = ()
    """The lease rows to create, the rows of parents before the rows of their children."""
    deletes: tuple[Lease, ...] = ()
    absent_since: Mapping[str, float] = {}
    """The time since which the shard of a row is not listed, by lease key. Pass this mapping to the next call of
    ``plan_shard_sync``."""
    losses: tuple[Lease, ...] = ()
    """The rows among ``deletes`` that are not finished. Their unread records are lost."""


@frozen
class Gate:
    """The decision whether a shard may be read."""

    reason: Reason | None = None
    """The reason why the shard waits, with the unfinished ancestor as subject; ``None`` if the shard may be read."""
    wants_listing: bool = False
    """Whether only a new listing can decide whether the shard may be read."""

    @property
    def is_open(self) -> bool:
        """Whether the shard may be read, because all of its ancestors were processed."""
        return self.reason is None


@frozen
class Start:
    """The information by which the first position of a new shard is chosen."""

    stream_id: str
    initial_position: InitialPosition
    worker_start_micros: int


def plan_shard_sync(
    listing: Listing,
    rows: Mapping[str, Lease],
    start: Start,
    *,
    now: float,
    previous: Listing | None = None,
    absent_since: Mapping[str, float] | None = None,
    vanished: Mapping[str, Lease] | None = None,
    begun_late: Collection[str] = (),
    first_listed: Collection[str] | None = (),
    deletes_rows: bool = False,
) -> SyncPlan:
    """Compare a complete listing with the rows last seen, and return the changes of rows that the listing requires.

    ``previous`` is the listing before ``listing``. ``absent_since`` comes from the ``SyncPlan`` of the previous call.
    ``vanished`` contains deleted rows as they were last seen, by lease key. Rows are deleted only if ``deletes_rows``
    is set, and only the first worker of the fleet, by name, sets it.

    ``begun_late`` has the leases whose rows this worker created at its own start. ``first_listed`` has the shards of
    the first listing for which this worker made a plan, or is ``None`` in that first plan. Both matter only for the
    start position "latest".
    """
    if not listing:
        return SyncPlan(absent_since=dict(absent_since or {}))
    creates = _plan_creates(listing, rows, start, vanished or {}, _Newness.of(listing, rows, begun_late, first_listed))
    absent = _absences(listing, rows, now, previous, absent_since or {})
    deletes = tuple(
        rows[key] for key in sorted(absent) if deletes_rows and now - absent[key] >= ABSENCE_SECONDS and key in rows
    )
    losses = tuple(row for row in deletes if not row.is_finished)
    return SyncPlan(creates, deletes, absent, losses)


def parents_finished(lease: Lease, rows: Mapping[str, Lease], listing: Listing | None) -> Gate:
    """Return the gate of a shard: it is open if all known ancestors were processed to their ends."""
    young = listing if listing is not None and lease.lease_key in listing else None

    def parents(key: str) -> frozenset[str]:
        return _parents(key, lease if key == lease.lease_key else rows.get(key), listing)

    for number, level in enumerate(levels(lease.lease_key, parents)):
        for ancestor in level:
            gate = _ancestor_gate(ancestor, rows, young, number == 0)
            if not gate.is_open:
                return gate
    return Gate()


@define(eq=False)
class Gates:
    """The gates of many shards for the same rows and listing, with a cache of the ancestors that were checked.

    So the cost of a shard grows with the number of its parents, and not with the number of all its ancestors. A table
    whose primary key only grows can have chains of a thousand shards.
    """

    rows: Mapping[str, Lease]
    listing: Listing | None
    _clear: Mapping[bool, dict[str, bool]] = field(init=False, factory=lambda: {True: {}, False: {}})
    """Whether all ancestors of a shard were certainly processed, by shard id; false if that is unknown. The mapping
    under ``True`` is used for children that are in the listing, and the mapping under ``False`` for all other
    children."""

    def of(self, lease: Lease) -> Gate:
        """Return the gate of the shard of ``lease``, the same as ``parents_finished`` would return."""
        young = self.listing if self.listing is not None and lease.lease_key in self.listing else None
        parents = _parents(lease.lease_key, lease, self.listing)
        is_open = all(
            _ancestor_gate(parent, self.rows, young, True).is_open and self._is_clear(parent, young)
            for parent in parents
        )
        return Gate() if is_open else parents_finished(lease, self.rows, self.listing)

    def _is_clear(self, shard_id: str, young: Listing | None) -> bool:
        known = self._clear[young is not None]
        stack = [shard_id]
        while stack:
            key = stack[-1]
            is_new = key not in known
            known.setdefault(key, False)  # false until the parents are known; stays false in a cycle
            parents = _parents(key, self.rows.get(key), self.listing)
            unknown = [parent for parent in parents if parent not in known]
            if unknown and is_new:
                stack += unknown
            else:
                stack.pop()
                known[key] = all(
                    known[parent] and _ancestor_gate(parent, self.rows, young, False).is_open for parent in parents
                )
        return known[shard_id]


def _ancestor_gate(ancestor: str, rows: Mapping[str, Lease], listing: Listing | None, is_parent: bool) -> Gate:
    row = rows.get(ancestor)
    if row is None:
        if listing is not None and ancestor not in listing:
            return Gate()
        why = "; waiting for the list of shards" if listing is None else " yet, but the stream lists it"
        return Gate(Reason(Cause.PARENT_ROW_MISSING, ancestor, why), wants_listing=True)
    if row.is_finished or (not is_parent and listing is not None and ancestor not in listing):
        return Gate()
    return Gate(Reason(Cause.PARENT, ancestor, f"is not finished: {row}"))


def _parents(shard_id: str, row: Lease | None, listing: Listing | None) -> frozenset[str]:
    named = frozenset[str]() if row is None else row.parent_shard_ids
    shard = None if listing is None else listing.get(shard_id)
    return named if shard is None else named | shard.parent_shard_ids


@frozen
class _Newness:
    """The facts that show which shards are new to the fleet, and not only to their rows."""

    rows: Mapping[str, Lease]
    begun_late: Collection[str]
    first_listed: Collection[str]
    is_first_plan: bool
    is_fleet_old: bool
    """Whether a shard with a row has left the stream. Its workers may have stopped long ago, and any listed shard
    without a row may have been opened since then."""

    @classmethod
    def of(
        cls,
        listing: Listing,
        rows: Mapping[str, Lease],
        begun_late: Collection[str],
        first_listed: Collection[str] | None,
    ) -> _Newness:
        # A row whose shard was opened after the listing was made is absent from the listing, too, but its parents are
        # listed.
        is_fleet_old = any(key not in listing and listing.keys().isdisjoint(rows[key].parent_shard_ids) for key in rows)
        first = listing if first_listed is None else first_listed
        return cls(rows, begun_late, first, first_listed is None, is_fleet_old)

    def may_continue(self, shard_id: str, parent: str) -> bool:
        """Return whether the shard's records may continue what some worker reads, or has read, from ``parent``."""
        return parent in self.rows and not (parent in self.begun_late and shard_id in self.first_listed)

    def is_undecided(self, new: NewLease, start: Start) -> bool:
        """Return whether only the next listing can show where to start the shard, which has a parent with a row.

        Other workers of a new fleet may be creating rows right now, the row of a parent before the rows of its
        children. In its first plan, a worker cannot tell such a parent from a parent that an old fleet has read.
        """
        is_new_fleet = self.is_first_plan and not self.is_fleet_old
        is_at_oldest = new.timestamp_micros is None and new.lease.checkpoint == CheckpointPosition.TRIM_HORIZON
        return is_new_fleet and is_at_oldest and start.initial_position.kind == "latest"


def _plan_creates(
    listing: Listing, rows: Mapping[str, Lease], start: Start, vanished: Mapping[str, Lease], newness: _Newness
) -> tuple[NewLease, ...]:
    if listing.keys() <= rows.keys():
        return ()
    descends_from_row: set[str] = set()
    all_children = ShardTree.of(rows.values(), listing.values()).children
    creates = []
    for shard_id in ShardTree.of(listing.values()).ancestors_first(listing):
        shard = listing[shard_id]
        known = any(
            parent in descends_from_row or newness.may_continue(shard_id, parent) for parent in shard.parent_shard_ids
        )
        if known:
            descends_from_row.add(shard_id)
        if shard_id not in rows:
            children = [rows[key] for key in all_children.get(shard_id, ()) if key in rows]
            new = _new_lease(shard, start, vanished.get(shard_id), children, known or newness.is_fleet_old)
            if not (known and newness.is_undecided(new, start)):
                creates.append(new)
    return tuple(creates)


def _new_lease(
    shard: Shard, start: Start, vanished: Lease | None, children: Collection[Lease], may_have_read_ancestor: bool
) -> NewLease:
    lease = Lease(shard.shard_id, start.stream_id, parent_shard_ids=shard.parent_shard_ids)
    if vanished is not None:
        counter = vanished.counter + COUNTERS_BETWEEN
        kept = evolve(vanished, owner="", stealer="", pause_taken="", counter=counter)
        return NewLease(evolve(kept, parent_shard_ids=lease.parent_shard_ids))
    if any(_proves_parent_end(child, start) for child in children):
        return NewLease(evolve(lease, checkpoint=CheckpointPosition.SHARD_END))
    position = start.initial_position
    if position.timestamp_micros is not None:
        return NewLease(lease, position.timestamp_micros)
    if position.kind == "latest" and not may_have_read_ancestor and not children:
        return NewLease(lease, start.worker_start_micros)
    return NewLease(lease)


def _proves_parent_end(child: Lease, start: Start) -> bool:
    """Return whether the row shows that the child shard was read. If so, its parent was finished earlier.

    A stored iterator proves that the child was read only if new rows start at TRIM_HORIZON. With a start by time, a row
    has an iterator from its creation on.
    """
    started = child.checkpoint != CheckpointPosition.TRIM_HORIZON and start.initial_position.kind == "oldest"
    return child.is_finished or started


def _absences(
    listing: Listing,
    rows: Mapping[str, Lease],
    now: float,
    previous: Listing | None,
    absent_since: Mapping[str, float],
) -> dict[str, float]:
    still_absent = {key: at for key, at in absent_since.items() if key in rows and key not in listing}
    if previous is not None and len(listing) < PLAUSIBLE_SHARE * len(previous):
        return still_absent
    return {key: still_absent.get(key, now) for key in sorted(rows) if key not in listing}
