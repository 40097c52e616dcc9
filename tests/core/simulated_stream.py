"""A toy stream for the simulation: shards with numbered records, split and merged while they are read."""

from __future__ import annotations

from random import Random

from attrs import define, field

from streamclient.model import Shard

SHARD_END_TEXT = "SHARD_END"


@define
class SimulatedShard:
    shard: Shard
    records: int
    is_open: bool = True
    is_listed: bool = True


@define
class SimulatedStream:
    """Shards by id. Only open shards grow; closed ones end after their last record."""

    shards: dict[str, SimulatedShard] = field(factory=dict)
    created: int = 0

    def add(self, records: int, parents: tuple[str, ...] = ()) -> str:
        self.created += 1
        shard_id = f"s{self.created:02d}"
        parent = parents[0] if parents else None
        sibling = parents[1] if len(parents) > 1 else None
        self.shards[shard_id] = SimulatedShard(Shard(shard_id, parent, sibling), records)
        return shard_id

    def listing(self) -> tuple[Shard, ...]:
        return tuple(entry.shard for entry in self.shards.values() if entry.is_listed)

    def append(self, rng: Random, records: int) -> None:
        for entry in self.shards.values():
            if entry.is_open:
                entry.records += rng.randint(0, records)

    def split(self, rng: Random) -> None:
        open_ids = sorted(shard_id for shard_id, entry in self.shards.items() if entry.is_open)
        parent = rng.choice(open_ids)
        self.shards[parent].is_open = False
        for _ in range(2):
            self.add(rng.randint(0, 5), (parent,))

    def merge(self, rng: Random) -> None:
        open_ids = sorted(shard_id for shard_id, entry in self.shards.items() if entry.is_open)
        if len(open_ids) < 2:
            return
        pair = tuple(rng.sample(open_ids, 2))
        for parent in pair:
            self.shards[parent].is_open = False
        self.add(rng.randint(0, 5), pair)

    def parents(self, shard_id: str) -> frozenset[str]:
        return self.shards[shard_id].shard.parent_shard_ids
