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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain

from attrs import define, field, frozen

from streamclient.base.times import MICROS_PER_HOUR
from streamclient.model import Lease, Shard

LISTINGS_WITHOUT = 2
"""The number of consecutive listings that must lack a shard before it counts as gone."""

REMEMBERED_LISTINGS = 100
"""The number of listings for which the parents of a shard that they lack are remembered: no answer is that old."""

NOT_SHOWN = "the service says that it has ended, and the list of shards shows no child of it"
"""The words of readers for an end that they do not believe."""

LOOKS_IN_RETENTION = 24
"""The number of looks at the list of shards that a reader stores within the retention."""

Listing = Mapping[str, Shard]
"""A complete DescribeStream by shard id."""


def index_shards(shards: Iterable[Shard]) -> Listing:
    """Return shards by id, sorted."""
    return {shard.shard_id: shard for shard in sorted(shards, key=lambda shard: shard.shard_id)}


def levels(shard_id: str, following: Callable[[str], Iterable[str]]) -> Iterator[list[str]]:
    """Yield the shards to which ``following`` leads, by level, nearest first; sorted, without ``shard_id``."""
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
    """The parents of every known shard; the parents need not be known shards. If a shard names itself as a parent, that
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
        """Return the shards in an order in which none comes before one of its ancestors; circles are cut by name."""
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
        """Shards that come before themselves, each with all of its circle, sorted. No real stream has such a shard."""
        circles: dict[str, tuple[str, ...]] = {}
        done: set[str] = set()

        def children_left(key: str) -> Iterable[str]:
            return (child for child in self.children.get(key, ()) if child not in done)

        # From the last shard of a search upwards, only those of its circle are reached downwards (Kosaraju).
        for root in reversed(self.ancestors_first(self.parents)):
            if root not in done:
                circle = sorted([root, *chain.from_iterable(levels(root, children_left))])
                done.update(circle)
                if len(circle) > 1:
                    circles.update(dict.fromkeys(circle, tuple(circle)))
        return dict(sorted(circles.items()))


@define(eq=False)
class ListedEnds:
    """Ends of shards, as complete listings show them one after the other.

    A child proves the end of its parents. The absence of a shard proves it only if two consecutive listings lack the
    shard and all of its ancestors: an answer that was cut lacks shards too, and an old answer lacks shards that were
    opened since, but has an ancestor of each.

    A page may be the last one only if its read began after the end was known. Otherwise a page that was cut would pass
    for the last one if its shard closes a moment later. All times are in seconds, by one clock.
    """

    tree: ShardTree = field(factory=ShardTree)
    """The last listing. An empty listing is ignored, because every stream has shards."""
    number: int = 0
    """The number of listings that were seen."""
    _closed_at: dict[str, float] = field(factory=dict)
    """The shards that have children in the last listing, and the time since when that is known."""
    _gone_at: dict[str, float] = field(factory=dict)
    """The shards that readers asked about and that enough listings lacked, and the time since when that is known."""
    _parents: dict[str, frozenset[str]] = field(factory=dict)
    """The parents of the shards that listings or readers named lately."""
    _named_in: dict[str, int] = field(factory=dict)
    """By shard of ``_parents``: the number of listings when it was last named."""
    _present_in: dict[str, int] = field(factory=dict)
    """By shard: the number of the last listing that had it. For a shard that readers asked about, an ancestor counts,
    too."""
    _asked_in: dict[str, int] = field(factory=dict)
    """By shard: the number of listings when a reader first asked about the shard and its end was unknown."""

    def listed(self, shards: Iterable[Shard], now: float) -> None:
        """Process a complete listing, which came at ``now``."""
        tree = ShardTree.of(shards)
        if not tree.parents:
            return
        self.tree = tree
        self.number += 1
        self.knows(tree.parents)
        self._forget()
        kept = {key: at for key, at in self._present_in.items() if key in self._asked_in}
        early = [key for key in self._asked_in if not tree.parents.keys().isdisjoint(self._ancestors(key))]
        self._present_in = {**kept, **dict.fromkeys([*tree.parents, *early], self.number)}
        missing = {key for key, at in self._asked_in.items() if self._is_missing(key, at)}
        gone_at = {key: at for key, at in self._gone_at.items() if key not in tree.parents}
        self._gone_at = {**gone_at, **dict.fromkeys(missing, now)}
        self._closed_at = {key: self._closed_at.get(key, now) for key in tree.children}
        for key in tree.children.keys() & self._asked_in.keys() | missing:
            self._asked_in.pop(key, None)

    def knows(self, parents: Mapping[str, frozenset[str]]) -> None:
        """Learn the parents of shards, from a listing or from what a reader has stored."""
        self._parents.update(parents)
        self._named_in.update(dict.fromkeys(parents, self.number))

    def _forget(self) -> None:
        for key in [key for key, at in self._named_in.items() if self.number - at > REMEMBERED_LISTINGS]:
            del self._named_in[key], self._parents[key]

    def _ancestors(self, shard_id: str) -> Iterator[str]:
        return chain.from_iterable(levels(shard_id, lambda key: self._parents.get(key, ())))

    def _is_missing(self, shard_id: str, asked_in: int) -> bool:
        return self.number - max(asked_in, self._present_in.get(shard_id, 0)) >= LISTINGS_WITHOUT

    def has_child(self, shard_id: str) -> bool:
        """Return whether the last listing showed a child of the shard."""
        return shard_id in self.tree.children

    def shows_end(self, shard_id: str, read_at: float = math.inf) -> bool:
        """Return whether the listings that came before ``read_at`` show that the shard has ended.

        If no listing does, the absence of the shard is watched for in those that follow.
        """
        shown_at = self._closed_at.get(shard_id, self._gone_at.get(shard_id))
        if shown_at is None:
            self._asked_in.setdefault(shard_id, self.number)
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
    """Return whether a stream that keeps records for ``hours`` has those written at, or after, ``written_micros``."""
    return now_micros - written_micros <= hours * MICROS_PER_HOUR


def next_look(looked_micros: int, hours: int) -> int:
    """Return when a reader of a stream that keeps records for ``hours`` stores its next look at the list of shards."""
    return looked_micros + hours * MICROS_PER_HOUR // LOOKS_IN_RETENTION
