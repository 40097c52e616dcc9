"""The tree of a stream's shards: their order, their ends, and the shards that were opened between two looks.

Laws:

* a shard is read after its parents: nothing before it may be left to read. A parent that is neither listed nor known
  otherwise has left the stream, and has nothing left;
* a shard has ended only if a page says so *and* the list of shards shows it: a page that was cut before its next
  iterator looks like the last one;
* the service forgets a shard after its ancestors, and an open shard never: a listing that lacks a shard and has one of
  its ancestors was made before the shard was opened, or it was cut;
* a shard that a look at the list did not show was opened after that look. It is read from its oldest record, and
  reading does not show whether that is its first record. It is the first if the stream still keeps records that were
  written at the time of the look. Otherwise records may be gone without a trace: those of this shard, and those of
  parents that appeared and ended between two looks and have left the list. So a reader stores its looks, also when the
  list has not changed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain

from attrs import define, field, frozen

from streamclient.base.times import MICROS_PER_HOUR
from streamclient.model import Lease, Shard

LISTINGS_WITHOUT = 2
"""The number of consecutive listings that must lack a shard before it counts as gone."""

REMEMBERED_LISTINGS = 100
"""The number of listings for which the parents of a shard are remembered after the last listing that had it. No answer
is that old."""

NOT_SHOWN = "the service says that it has ended, and the list of shards shows no child of it"
"""The words of readers for an end that they do not believe."""

LOOKS_IN_RETENTION = 24
"""The number of looks at the list of shards that a reader stores within the retention."""

Listing = Mapping[str, Shard]
"""A complete DescribeStream by shard id."""


def index_shards(shards: Iterable[Shard]) -> Listing:
    """Return shards by id, in sorted order."""
    return {shard.shard_id: shard for shard in sorted(shards, key=lambda shard: shard.shard_id)}


def levels(shard_id: str, following: Callable[[str], Iterable[str]]) -> Iterator[list[str]]:
    """Yield the shards that ``following`` reaches from ``shard_id``, level by level, the nearest level first.

    Each level is sorted. No shard comes twice, and ``shard_id`` does not come.
    """
    seen, level = {shard_id}, [shard_id]
    while level := sorted({reached for key in level for reached in following(key)} - seen):
        seen.update(level)
        yield level


def _without_itself(parents: Mapping[str, frozenset[str]]) -> Mapping[str, frozenset[str]]:
    return {key: named - {key} for key, named in parents.items()}


@frozen
class ShardTree:
    """Known shards and their parents."""

    parents: Mapping[str, frozenset[str]] = field(factory=dict, converter=_without_itself)
    """The parents of every known shard. The parents need not be known shards. If a shard names itself as a parent, that
    entry is left out."""

    @classmethod
    def of(cls, *known: Iterable[Shard] | Iterable[Lease]) -> ShardTree:
        """Return the tree that lists of shards and lease rows show together."""
        parents: dict[str, frozenset[str]] = {}
        for group in known:
            for entry in group:
                key = entry.lease_key if isinstance(entry, Lease) else entry.shard_id
                parents[key] = parents.get(key, frozenset()) | entry.parent_shard_ids
        return cls(parents)

    @cached_property
    def children(self) -> Mapping[str, list[str]]:
        """The children of every shard that has some, in the order of the known shards."""
        children: dict[str, list[str]] = {}
        for key, named in self.parents.items():
            for parent in named:
                children.setdefault(parent, []).append(key)
        return children

    def ancestors(self, shard_id: str) -> Iterator[str]:
        """Yield the ancestors of a shard, nearest first."""
        return chain.from_iterable(levels(shard_id, lambda key: self.parents.get(key, ())))

    def descendants(self, shard_id: str) -> Iterator[str]:
        """Yield the descendants of a shard, nearest first."""
        return chain.from_iterable(levels(shard_id, lambda key: self.children.get(key, ())))

    def may_begin(self, shard_id: str, done: Collection[str]) -> bool:
        """Return whether every known parent of a shard is among ``done``."""
        return all(parent in done or parent not in self.parents for parent in self.parents[shard_id])

    def ancestors_first(self, shard_ids: Iterable[str]) -> list[str]:
        """Return the shards in an order in which none comes before one of its ancestors. Cycles are cut by name."""
        order: dict[str, None] = {}
        entered: set[str] = set()
        wanted = set(shard_ids)
        for root in sorted(wanted):
            stack = [root]
            while stack:
                entered.add(stack[-1])
                waiting = [key for key in sorted(self.parents.get(stack[-1], ())) if key not in entered]
                if waiting:
                    stack += waiting
                else:
                    order.setdefault(stack.pop())
        return [key for key in order if key in wanted]

    @cached_property
    def circles(self) -> Mapping[str, tuple[str, ...]]:
        """The shards that are their own ancestors, each with the sorted shards of its cycle.

        No real stream has such a shard.
        """
        circles: dict[str, tuple[str, ...]] = {}
        done: set[str] = set()

        def children_left(key: str) -> Iterable[str]:
            return (child for child in self.children.get(key, ()) if child not in done)

        # From the last shard of a search upwards, only those of its cycle are reached downwards (Kosaraju).
        for root in reversed(self.ancestors_first(self.parents)):
            if root not in done:
                circle = sorted([root, *chain.from_iterable(levels(root, children_left))])
                done.update(circle)
                if len(circle) > 1:
                    circles.update(dict.fromkeys(circle, tuple(circle)))
        return dict(sorted(circles.items()))


@define
class ListedShard:
    """Facts about one shard from listings, and from readers that asked about it. Listings are counted from 1."""

    parents: frozenset[str] = frozenset()
    """The parents that a listing or a reader named lately."""
    named_in: int | None = None
    """The number of listings when the parents were last named; ``None`` if that is too long ago."""
    present_in: int = 0
    """The last listing that had the shard. For a shard that a reader asked about, an ancestor counts, too."""
    asked_in: int | None = None
    """The number of listings when a reader first asked about the shard and its end was unknown; ``None`` if no reader
    waits for the end."""
    closed_at: float | None = None
    """The time since when the shard is known to have children; ``None`` if the last listing shows no child."""
    gone_at: float | None = None
    """The time when enough listings had lacked the shard, for a shard that a reader asked about."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to remember."""
        return self.named_in is None and self.asked_in is None and self.closed_at is None and self.gone_at is None

    def forget_old_names(self, number: int) -> None:
        """Forget the parents if they were not named in the latest of ``number`` listings."""
        if self.named_in is not None and number - self.named_in > REMEMBERED_LISTINGS:
            self.parents, self.named_in = frozenset(), None

    def judge(self, number: int, now: float, *, is_listed: bool, is_early: bool, has_child: bool) -> None:
        """Learn from listing ``number``, which came at ``now``.

        ``is_early`` says that the listing has an ancestor of the shard.
        """
        if is_listed or (is_early and self.asked_in is not None):
            self.present_in = number
        is_missing = self.asked_in is not None and number - max(self.asked_in, self.present_in) >= LISTINGS_WITHOUT
        if is_missing:
            self.gone_at = now
        elif is_listed:
            self.gone_at = None
        if not has_child:
            self.closed_at = None
        elif self.closed_at is None:
            self.closed_at = now
        if has_child or is_missing:
            self.asked_in = None


@define(eq=False)
class ListedEnds:
    """Ends of shards, as complete listings show them one after the other.

    A child proves the end of its parents. The absence of a shard proves it only if two consecutive listings lack the
    shard and all of its ancestors: an answer that was cut lacks shards too, and an old answer lacks shards that were
    opened since, but has an ancestor of each.

    A page may be the last one only if its read began after the end was known. If that did not matter, a page that was
    cut would pass for the last one when its shard closes a moment later. All times are in seconds, by one clock.
    """

    tree: ShardTree = field(factory=ShardTree)
    """The last listing. An empty listing is ignored, because every stream has shards."""
    number: int = 0
    """The number of listings that were seen."""
    _known: defaultdict[str, ListedShard] = field(init=False, factory=lambda: defaultdict(ListedShard))

    def listed(self, shards: Iterable[Shard], now: float) -> None:
        """Process a complete listing, which came at ``now``."""
        tree = ShardTree.of(shards)
        if not tree.parents:
            return
        self.tree = tree
        self.number += 1
        self.knows(tree.parents)
        for known in self._known.values():
            known.forget_old_names(self.number)
        for key in {**self._known, **tree.children}:
            known, is_listed = self._known[key], key in tree.parents
            is_asked_for = known.asked_in is not None and not is_listed
            is_early = is_asked_for and not tree.parents.keys().isdisjoint(self._ancestors(key))
            known.judge(self.number, now, is_listed=is_listed, is_early=is_early, has_child=key in tree.children)
            if known.is_empty:
                del self._known[key]

    def knows(self, parents: Mapping[str, frozenset[str]]) -> None:
        """Learn the parents of shards, from a listing or from a reader's stored state."""
        for key, named in parents.items():
            known = self._known[key]
            known.parents, known.named_in = named, self.number

    def _ancestors(self, shard_id: str) -> Iterator[str]:
        def parents(key: str) -> frozenset[str]:
            known = self._known.get(key)
            return frozenset() if known is None else known.parents

        return chain.from_iterable(levels(shard_id, parents))

    def has_child(self, shard_id: str) -> bool:
        """Return whether the last listing showed a child of the shard."""
        return shard_id in self.tree.children

    def shows_end(self, shard_id: str, read_at: float = math.inf) -> bool:
        """Return whether the listings that came before ``read_at`` show that the shard has ended.

        If no listing does, the absence of the shard is watched for in those that follow.
        """
        known = self._known[shard_id]
        shown_at = known.gone_at if known.closed_at is None else known.closed_at
        if shown_at is None:
            known.asked_in = self.number if known.asked_in is None else known.asked_in
            return False
        return shown_at <= read_at

    def confirms(self, shard_id: str, read_at: float, list_again: Callable[[], object]) -> bool:
        """Return whether a page that reports the end of a shard is its last one, for a reader without a worker.

        If the end was not known when the read of the page began, the page is to be read again; ``list_again`` brings a
        new listing before that if the end is still unknown.
        """
        if not self.shows_end(shard_id):
            list_again()
            return False
        return self.shows_end(shard_id, read_at)


def is_kept(written_micros: int, now_micros: int, hours: int) -> bool:
    """Return whether a stream that keeps records for ``hours`` has those written from ``written_micros`` on."""
    return now_micros - written_micros <= hours * MICROS_PER_HOUR


def next_look(looked_micros: int, hours: int) -> int:
    """Return when a reader of a stream that keeps records for ``hours`` stores its next look at the list of shards."""
    return looked_micros + hours * MICROS_PER_HOUR // LOOKS_IN_RETENTION
