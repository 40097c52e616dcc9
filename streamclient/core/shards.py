"""The shard graph: which lease rows to create, which to delete, and when a shard may be read.

Laws (numbers of the interoperability rules for other implementations of the Java stream client in brackets):

* a row is created only if absent, and after the rows of its listed parents;
* a row is deleted only if its shard was absent from complete, non-empty listings for ``ABSENCE_SECONDS``;
* a missing row proves nothing: a parent counts as finished by absence only if the stream does not list it either,
  in a listing young enough to contain the child;
* ``Checkpoint`` only ever holds TRIM_HORIZON, SHARD_END or an iterator, so a start by time is looked up first;
* a shard has ended only if a page says so *and* the list of shards shows it: a page that was cut before its next
  iterator looks like the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from attrs import define, field, frozen

from streamclient.base.reasons import Cause, Reason
from streamclient.core.values import evolve
from streamclient.model import CheckpointPosition, InitialPosition, Lease, Shard

ABSENCE_SECONDS = 300.0
"""How long a shard must have been absent before its row may go. Far longer than reading a long listing page by page
takes and than any delay between a split and its listing; keeping a row of an expired shard costs nothing."""

PLAUSIBLE_SHARE = 0.5
"""A listing with fewer than this share of the previous one's shards is not believed until the next one agrees."""

LISTINGS_WITHOUT = 2
"""So many listings in a row have to lack a shard until it counts as gone."""

NOT_SHOWN = "the service says that it has ended, and the list of shards shows no child of it"
"""How readers name an end that they do not believe."""

COUNTERS_BETWEEN = 1_000_000
"""How far the counter of a row that is put again is from the last one seen. Its owner may have moved it a few times
since, and a Java worker compares nothing else: it would go on renewing a row that is not its own any more."""

Listing = Mapping[str, Shard]
"""A complete DescribeStream by shard id."""


@frozen
class NewLease:
    """A row to create; with ``timestamp_micros``, at the iterator of that time instead of its present checkpoint."""

    lease: Lease
    timestamp_micros: int | None = None


@frozen
class SyncPlan:
    """What one listing asks for."""

    creates: tuple[NewLease, ...] = ()
    """Parents before children."""
    deletes: tuple[Lease, ...] = ()
    absent_since: Mapping[str, float] = {}
    """Rows whose shard is not listed, and since when; pass it to the next call."""
    losses: tuple[Lease, ...] = ()
    """Rows among ``deletes`` that are not finished: their unread records are gone."""


@frozen
class Gate:
    """Whether a shard may be read."""

    reason: Reason | None = None
    """What it waits for, with the ancestor as its subject; ``None`` if it may."""
    wants_listing: bool = False
    """Whether only a new listing can tell."""

    @property
    def is_open(self) -> bool:
        """Whether nothing before the shard is left to read."""
        return self.reason is None


@frozen
class Start:
    """What is needed to choose where a new shard starts."""

    stream_id: str
    initial_position: InitialPosition
    worker_start_micros: int


@define(eq=False)
class ListedEnds:
    """What complete listings of the shards, one after the other, show of their ends.

    A child proves the end of its parents for ever. That a shard is missing proves it only if two listings in a row lack
    it: an answer that was cut lacks shards, too, and an old one those that were opened since.

    A page may be the last one only if it was read after the end was known: one that was cut, and whose shard closes a
    moment later, would pass for it otherwise.
    """

    number: int = 0
    """How many listings were seen. An empty one says nothing: no stream has no shards."""
    _continued: frozenset[str] = frozenset()
    _gone: set[str] = field(factory=set)
    """Shards that were asked about, and that enough listings lacked."""
    _listed_in: dict[str, int] = field(factory=dict)
    """The last listing that had a shard."""
    _asked_in: dict[str, int] = field(factory=dict)
    """How many listings there were when somebody first asked about a shard whose end was not known."""

    def listed(self, shards: Iterable[Shard]) -> None:
        """Take in a complete listing."""
        listed = {shard.shard_id: shard for shard in shards}
        if not listed:
            return
        self.number += 1
        self._continued = continued(listed.values())
        kept = {key: at for key, at in self._listed_in.items() if key in self._asked_in}
        self._listed_in = {**kept, **dict.fromkeys(listed, self.number)}
        missing = {key for key, at in self._asked_in.items() if self._is_missing(key, at)}
        self._gone = (self._gone | missing) - listed.keys()
        for key in self._continued & self._asked_in.keys() | missing:
            self._asked_in.pop(key, None)

    def _is_missing(self, shard_id: str, asked_in: int) -> bool:
        return self.number - max(asked_in, self._listed_in.get(shard_id, 0)) >= LISTINGS_WITHOUT

    def has_child(self, shard_id: str) -> bool:
        """Whether the last listing showed a child of the shard."""
        return shard_id in self._continued

    def shows_end(self, shard_id: str) -> bool:
        """Whether the shard has ended as far as the listings tell; if not, those that follow are looked at for it."""
        is_known = shard_id in self._continued or shard_id in self._gone
        if not is_known:
            self._asked_in.setdefault(shard_id, self.number)
        return is_known

    def confirms(self, shard_id: str, list_again: Callable[[], object]) -> bool:
        """Whether the page that says so is the last one of a shard, for a reader by itself.

        If the end was not known when the page was read, `list_again` brings a new listing, and the page is read again.
        """
        is_known = self.shows_end(shard_id)
        if not is_known:
            list_again()
        return is_known


def continued(shards: Iterable[Shard]) -> frozenset[str]:
    """Shards that others name as their parents: they are closed."""
    return frozenset(parent for shard in shards for parent in shard.parent_shard_ids if parent != shard.shard_id)


def shows_end(shard_id: str, shards: Collection[Shard]) -> bool:
    """Whether a complete listing shows that a shard has ended: it has a child there, or is not there any more."""
    is_missing = bool(shards) and all(shard.shard_id != shard_id for shard in shards)
    return is_missing or shard_id in continued(shards)


def circles_of(listing: Listing) -> Mapping[str, tuple[str, ...]]:
    """Shards that come before themselves, each with all of its circle, sorted. No real stream has such a shard.

    One that names itself as its parent is no circle: nothing has to be read before it but its other parents.
    """
    left = {key: {each for each in shard.parent_shard_ids if each in listing} - {key} for key, shard in listing.items()}
    for _ in range(2):  # without those that have no parents, again and again; then without those that have no children
        left = _without_ends(left)
    found: dict[str, tuple[str, ...]] = {}
    for key in sorted(left):
        if key not in found:
            ring = _reachable(key, left) & _reachable(key, left, is_back=True)
            found.update(dict.fromkeys(ring, tuple(sorted(ring))))
    return found


def _without_ends(edges: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The same graph, turned round, without what no circle can lie on because nothing leads on from it."""
    back: dict[str, set[str]] = {key: set() for key in edges}
    for key, following in edges.items():
        for each in following:
            back[each].add(key)
    ahead = {key: len(following) for key, following in edges.items()}
    ends = [key for key, count in ahead.items() if not count]
    while ends:
        end = ends.pop()
        for key in back.pop(end):
            ahead[key] -= 1
            if not ahead[key]:
                ends.append(key)
    return {key: before & back.keys() for key, before in back.items()}


def _reachable(start: str, edges: Mapping[str, set[str]], *, is_back: bool = False) -> set[str]:
    """What leads on from a shard, or leads to it; the shard itself only by a circle."""
    if is_back:
        back: dict[str, set[str]] = {key: set() for key in edges}
        for key, following in edges.items():
            for each in following:
                back[each].add(key)
        edges = back
    found: set[str] = set()
    level = edges[start]
    while level:
        found |= level
        level = set().union(*(edges[key] for key in level)) - found
    return found


def index_shards(shards: Iterable[Shard]) -> Listing:
    """Shards by id, sorted."""
    return {shard.shard_id: shard for shard in sorted(shards, key=lambda shard: shard.shard_id)}


def plan_shard_sync(
    listing: Listing,
    rows: Mapping[str, Lease],
    start: Start,
    *,
    now: float,
    previous: Listing | None = None,
    absent_since: Mapping[str, float] | None = None,
    vanished: Mapping[str, Lease] | None = None,
    deletes_rows: bool = False,
) -> SyncPlan:
    """Compare a complete listing with the rows last seen.

    ``previous`` and ``absent_since`` come from the listing before; ``vanished`` are rows that were deleted, as last
    seen. Only the one worker with ``deletes_rows`` (the leader) is told to delete.
    """
    if not listing:
        return SyncPlan(absent_since=dict(absent_since or {}))
    creates = _plan_creates(listing, rows, start, vanished or {})
    absent = _absences(listing, rows, now, previous, absent_since or {})
    deletes = tuple(
        rows[key] for key in sorted(absent) if deletes_rows and now - absent[key] >= ABSENCE_SECONDS and key in rows
    )
    losses = tuple(row for row in deletes if not row.is_finished)
    return SyncPlan(creates, deletes, absent, losses)


def parents_first(listing: Listing) -> list[str]:
    """Shard ids, every listed parent before its children; a circle, see ``circles_of``, is cut by name order."""
    order: dict[str, None] = {}
    for root in sorted(listing):
        stack = [root]
        entered: set[str] = set()
        while stack:
            shard_id = stack[-1]
            entered.add(shard_id)
            waiting = [
                parent
                for parent in sorted(listing[shard_id].parent_shard_ids)
                if parent in listing and parent not in order and parent not in entered
            ]
            if waiting:
                stack.extend(waiting)
            else:
                order.setdefault(stack.pop())
    return list(order)


def has_its_parents(shard: Shard, listing: Listing, rows: Mapping[str, Lease]) -> bool:
    """Whether every listed parent has a row, so that the shard's own row may be created."""
    return all(parent in rows or parent not in listing or parent == shard.shard_id for parent in shard.parent_shard_ids)


def parents_finished(lease: Lease, rows: Mapping[str, Lease], listing: Listing | None) -> Gate:
    """Whether everything before this shard was processed, walking up the whole lineage that rows and listing show."""
    young = listing is not None and lease.lease_key in listing
    seen = {lease.lease_key}
    level = _parents(lease.lease_key, lease, listing)
    is_parent = True
    while level := level - seen:
        seen |= level
        for ancestor in sorted(level):
            gate = _ancestor_gate(ancestor, rows, listing if young else None, is_parent)
            if not gate.is_open:
                return gate
        level = frozenset().union(*(_parents(ancestor, rows.get(ancestor), listing) for ancestor in level))
        is_parent = False
    return Gate()


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


def _plan_creates(
    listing: Listing, rows: Mapping[str, Lease], start: Start, vanished: Mapping[str, Lease]
) -> tuple[NewLease, ...]:
    if listing.keys() <= rows.keys():
        return ()
    descends_from_row: set[str] = set()
    children = _children(listing, rows)
    creates = []
    for shard_id in parents_first(listing):
        shard = listing[shard_id]
        known = any(parent in rows or parent in descends_from_row for parent in shard.parent_shard_ids)
        if known:
            descends_from_row.add(shard_id)
        if shard_id not in rows:
            creates.append(_new_lease(shard, start, vanished.get(shard_id), children.get(shard_id, []), known))
    return tuple(creates)


def _children(listing: Listing, rows: Mapping[str, Lease]) -> dict[str, list[Lease]]:
    children: dict[str, list[Lease]] = {}
    for key in sorted(rows):
        for parent in sorted(_parents(key, rows[key], listing)):
            children.setdefault(parent, []).append(rows[key])
    return children


def _new_lease(
    shard: Shard, start: Start, vanished: Lease | None, children: Iterable[Lease], has_known_ancestor: bool
) -> NewLease:
    lease = Lease(shard.shard_id, start.stream_id, parent_shard_ids=shard.parent_shard_ids)
    if vanished is not None:
        counter = vanished.counter + COUNTERS_BETWEEN
        kept = evolve(vanished, owner="", stealer="", pause_taken="", counter=counter)
        return NewLease(evolve(kept, parent_shard_ids=lease.parent_shard_ids))
    rows_of_children = list(children)
    if any(_proves_parent_end(child, start) for child in rows_of_children):
        return NewLease(evolve(lease, checkpoint=CheckpointPosition.SHARD_END))
    position = start.initial_position
    if position.timestamp_micros is not None:
        return NewLease(lease, position.timestamp_micros)
    if position.kind == "latest" and not has_known_ancestor and not rows_of_children:
        return NewLease(lease, start.worker_start_micros)
    return NewLease(lease)


def _proves_parent_end(child: Lease, start: Start) -> bool:
    """Whether a child was read, so that its parent must have been finished before.

    An iterator proves that only where new rows start at TRIM_HORIZON; by time, a row holds one from the beginning.
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
