"""Who descends from whom, as rows and listing show it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamclient.model import Lease, Shard

Parents = Mapping[str, frozenset[str]]
"""Parents by shard id."""


def parents_of(leases: Mapping[str, Lease], listing: Mapping[str, Shard] | None) -> Parents:
    """The parents of every known shard, by its row and by the stream's listing."""
    listed = listing or {}
    parents: dict[str, frozenset[str]] = {}
    for shard_id in sorted({*leases, *listed}):
        named = leases[shard_id].parent_shard_ids if shard_id in leases else frozenset()
        shard = listed.get(shard_id)
        parents[shard_id] = named if shard is None else named | shard.parent_shard_ids
    return parents


def children_of(parents: Parents) -> dict[str, list[str]]:
    """The children of every shard that has some, sorted."""
    found: dict[str, list[str]] = {}
    for shard_id in sorted(parents):
        for parent in parents[shard_id] - {shard_id}:
            found.setdefault(parent, []).append(shard_id)
    return found


def descendants_of(children: Mapping[str, Sequence[str]], shard_id: str) -> list[str]:
    """Everything below a shard, nearest first; the shard itself is left out."""
    found: dict[str, None] = {}
    level = [shard_id]
    while level:
        level = sorted({child for each in level for child in children.get(each, ())} - {shard_id, *found})
        found.update(dict.fromkeys(level))
    return list(found)


def ancestors_first(parents: Parents, shard_ids: list[str]) -> list[str]:
    """The given shards in an order in which none comes before one of its ancestors."""
    order: dict[str, None] = {}
    entered: set[str] = set()

    def depth_first(shard_id: str) -> None:
        stack = [(shard_id, iter(sorted(parents.get(shard_id, ()))))]
        entered.add(shard_id)
        while stack:
            _, waiting = stack[-1]
            following = next((each for each in waiting if each not in entered), None)
            if following is None:
                order.setdefault(stack.pop()[0])
            else:
                entered.add(following)
                stack.append((following, iter(sorted(parents.get(following, ())))))

    for shard_id in sorted(shard_ids):
        if shard_id not in entered:
            depth_first(shard_id)
    wanted = set(shard_ids)
    return [shard_id for shard_id in order if shard_id in wanted]
