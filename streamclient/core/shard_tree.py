"""The tree of a stream's shards: their order, their ends, and shards that opened between two looks at the list.

In this module, a *reader* is any code that reads a shard: a worker's consumer, or code without a worker, such as a
Spark source. Laws:

* a shard is read after its parents: no record of a parent may be left to read. A parent that is neither listed nor
  known otherwise has left the stream, and has no records left;
* a shard has ended only if a page says so *and* the list of shards shows the end: a page that was cut before its next
  iterator looks like the last page;
* the service removes a shard from the list only after the shard's ancestors, and never while the shard is open. So a
  listing that lacks a shard and has one of its ancestors was made before the shard was opened, or it was cut;
* a shard that was missing at a look at the list was opened after that look. Its reader begins at its oldest record, but
  cannot see whether that record is the shard's first one. It is the first one if the stream still keeps records that
  were written at the time of the look. Otherwise records may be lost without a trace: records of this shard, or of
  parents that appeared, ended and left the list between two looks. So a reader stores the time of a look even if the
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
"""The number of listings for which the parents of a shard are remembered after the last listing with that shard. No
answer of the service is out of date by that many listings."""

NOT_SHOWN = "the service says that it has ended, and the list of shards shows no child of it"
"""The reason that a reader gives if a page reports the end of a shard and no listing confirms that end."""

LOOKS_IN_RETENTION = 24
"""The number of looks at the list of shards whose time a reader stores in each retention period."""

Listing = Mapping[str, Shard]
"""The shards of a complete answer of DescribeStream, by shard id."""


def index_shards(shards: Iterable[Shard]) -> Listing:
    """Return ``shards`` as a mapping by id, in the order of the ids."""
    return {shard.shard_id: shard for shard in sorted(shards, key=lambda shard: shard.shard_id)}


def levels(shard_id: str, following: Callable[[str], Iterable[str]]) -> Iterator[list[str]]:
    """Yield the shards that ``following`` reaches from ``shard_id``, level by level, the nearest level first.

    Each level is sorted. No shard occurs twice, and ``shard_id`` itself does not occur.
    """
    seen, level = {shard_id}, [shard_id]
    while level := sorted({reached for key in level for reached in following(key)} - seen):
        seen.update(level)
        yield level


def _longest_ways(start: str, order: Iterable[str], following: Callable[[str], Iterable[str]]) -> dict[str, int]:
    """Return the shards that ``following`` reaches from ``start``, each with the length of the longest way to it.

    In ``order``, each shard is before the shards that follow it.
    """
    steps = {start: 0}
    for key in order:
        for reached in following(key):
            steps[reached] = max(steps.get(reached, 0), steps.get(key, 0) + 1)
    del steps[start]
    return steps


def _without_itself(parents: Mapping[str, frozenset[str]]) -> Mapping[str, frozenset[str]]:
    return {key: named - {key} for key, named in parents.items()}


@frozen
class ShardTree:
    """The known shards of a stream, and the parents of each shard."""

    parents: Mapping[str, frozenset[str]] = field(factory=dict, converter=_without_itself)
    """The parents of every known shard. The parents need not be known shards. If a shard names itself as a parent, that
    entry is left out."""

    @classmethod
    def of(cls, *known: Iterable[Shard] | Iterable[Lease]) -> ShardTree:
        """Return the tree of all shards in ``known``, which may be lists of shards and lists of lease rows."""
        parents: dict[str, frozenset[str]] = {}
        for group in known:
            for entry in group:
                key = entry.lease_key if isinstance(entry, Lease) else entry.shard_id
                parents[key] = parents.get(key, frozenset()) | entry.parent_shard_ids
        return cls(parents)

    @cached_property
    def children(self) -> Mapping[str, list[str]]:
        """The children of every shard that has any, in the order of the known shards."""
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

    def steps_from(self, shard_id: str) -> dict[str, int]:
        """Return all relatives of a shard, each with the length of the longest way to it, in steps.

        The length is negative for ancestors and positive for descendants.
        """
        older = self.ancestors_first({shard_id, *self.ancestors(shard_id)})
        younger = self.ancestors_first({shard_id, *self.descendants(shard_id)})
        up = _longest_ways(shard_id, reversed(older), lambda key: self.parents.get(key, ()))
        down = _longest_ways(shard_id, younger, lambda key: self.children.get(key, ()))
        return down | {key: -steps for key, steps in up.items()}

    def may_begin(self, shard_id: str, done: Collection[str]) -> bool:
        """Return whether every known parent of a shard is among ``done``."""
        return all(parent in done or parent not in self.parents for parent in self.parents[shard_id])

    def ancestors_first(self, shard_ids: Iterable[str]) -> list[str]:
        """Return the shards in an order in which each follows its ancestors. Within a cycle, names decide the order."""
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

        # A search for descendants reaches only the shards of one cycle, because of the order of the roots (Kosaraju).
        for root in reversed(self.ancestors_first(self.parents)):
            if root not in done:
                circle = sorted([root, *chain.from_iterable(levels(root, children_left))])
                done.update(circle)
                if len(circle) > 1:
                    circles.update(dict.fromkeys(circle, tuple(circle)))
        return dict(sorted(circles.items()))


@define
class ListedShard:
    """The facts about one shard that come from listings and from readers. Listings are counted from 1."""

    parents: frozenset[str] = frozenset()
    """The ids of the shard's parents, as a listing or a reader named them last."""
    named_in: int | None = None
    """The number of the latest listing at the time when the parents were named last; ``None`` if that was too long
    ago."""
    present_in: int = 0
    """The number of the last listing that has the shard. While a reader waits for the shard's end, a listing that has
    only an ancestor of the shard counts, too, because it may be older than the shard."""
    asked_in: int | None = None
    """The number of the latest listing at the time when a reader first asked whether the shard has ended, and got no
    answer because no listing showed the end. ``None`` if no reader waits for an answer."""
    closed_at: float | None = None
    """The time since when the shard is known to have children; ``None`` if the last listing shows no child."""
    gone_at: float | None = None
    """The time since when the shard counts as gone; ``None`` if it does not. A shard can count as gone only after a
    reader has asked whether it has ended."""

    @property
    def is_empty(self) -> bool:
        """Whether every fact is at its default, so that this object can be dropped."""
        return self.named_in is None and self.asked_in is None and self.closed_at is None and self.gone_at is None

    def forget_old_names(self, number: int) -> None:
        """Forget the parents if they were last named more than ``REMEMBERED_LISTINGS`` listings before ``number``."""
        if self.named_in is not None and number - self.named_in > REMEMBERED_LISTINGS:
            self.parents, self.named_in = frozenset(), None

    def judge(self, number: int, now: float, *, is_listed: bool, is_early: bool, has_child: bool) -> None:
        """Update the facts about the shard from listing ``number``, which came at ``now``.

        ``is_early`` says that the listing lacks the shard but has an ancestor of the shard. Such a listing may be older
        than the shard.
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
    """The ends of shards, as successive complete listings show them. All times are in seconds, by one clock.

    A child proves that its parents have ended. The absence of a shard from the list proves the end of the shard only if
    two consecutive listings lack the shard and all of its ancestors. There are two reasons. A listing that was cut
    lacks shards, too. An old listing lacks the shards that were opened since then, but has an ancestor of each of them.

    A page counts as the last page only if its read began after the end was known. Without this rule, a page that was
    cut would count as the last page if its shard is closed a moment later.
    """

    tree: ShardTree = field(factory=ShardTree)
    """The shards of the last listing. An empty listing is ignored, because every stream has shards."""
    number: int = 0
    """The number of complete listings so far, empty listings left out."""
    _known: defaultdict[str, ListedShard] = field(init=False, factory=lambda: defaultdict(ListedShard))

    def listed(self, shards: Iterable[Shard], now: float) -> None:
        """Learn from a complete listing of the stream's shards, which came at ``now``."""
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

        If no listing shows the end, later listings are also checked for the absence of the shard.
        """
        known = self._known[shard_id]
        shown_at = known.gone_at if known.closed_at is None else known.closed_at
        if shown_at is None:
            known.asked_in = self.number if known.asked_in is None else known.asked_in
            return False
        return shown_at <= read_at

    def confirms(self, shard_id: str, read_at: float, list_again: Callable[[], object]) -> bool:
        """Return whether a page that reports the end of a shard is the shard's last page.

        This method is for readers without a worker. If no listing shows the end yet, call ``list_again``, which brings
        a new listing, and return ``False``. Also return ``False`` if the end became known only after the read of the
        page had begun. After ``False``, the reader must read the page again.
        """
        if not self.shows_end(shard_id):
            list_again()
            return False
        return self.shows_end(shard_id, read_at)


def is_kept(written_micros: int, now_micros: int, hours: int) -> bool:
    """Return whether a stream that keeps records for ``hours`` still has all records since ``written_micros``."""
    return now_micros - written_micros <= hours * MICROS_PER_HOUR


def next_look(looked_micros: int, hours: int) -> int:
    """Return when a reader must next store a look at the list of shards, in microseconds since 1970.

    The stream keeps records for ``hours``; the last look was at ``looked_micros``.
    """
    return looked_micros + hours * MICROS_PER_HOUR // LOOKS_IN_RETENTION
