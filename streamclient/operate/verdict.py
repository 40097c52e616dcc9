"""A verdict about one shard, and what the rules are handed to reach it. Pure."""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve, field, frozen

from streamclient.base.times import duration
from streamclient.core.worker_info import ShardTrouble
from streamclient.operate.facts import FleetFacts, HeadFacts, RowFacts, WorkerFacts
from streamclient.operate.liveness import last_beat_micros
from streamclient.operate.situations import Situation

NO_TROUBLE = ShardTrouble("")
"""Of a worker that says nothing about a shard."""


@frozen(kw_only=True)
class Explanation:
    """The verdict about one shard."""

    shard_id: str
    situation: Situation
    predicate: str
    """The sentence without its subject."""
    root: str
    """The shard that has to move first: another one where this one waits for it."""

    @property
    def first_line(self) -> str:
        """The whole answer in one sentence."""
        return f"Shard {self.shard_id} {self.predicate}."


@frozen(kw_only=True)
class Case:
    """One shard together with everything that is known."""

    facts: FleetFacts
    shard_id: str
    judge: Callable[[Case], Explanation]
    """Applies the rules to another shard."""
    above: frozenset[str] = field(default=frozenset())
    """Shards that are being explained by this one, so that a cycle ends."""

    def verdict(self, situation: Situation, predicate: str, *, root: str = "") -> Explanation:
        """A verdict about this shard."""
        return Explanation(shard_id=self.shard_id, situation=situation, predicate=predicate, root=root or self.shard_id)

    @property
    def row(self) -> RowFacts | None:
        """Its lease row."""
        return self.facts.rows.get(self.shard_id)

    @property
    def head(self) -> HeadFacts | None:
        """What waits at its checkpoint, if that was asked for."""
        return self.facts.heads.get(self.shard_id)

    @property
    def is_listed(self) -> bool:
        """Whether the stream lists it."""
        listing = self.facts.stream.listing
        return listing is not None and self.shard_id in listing

    def session(self, worker: str) -> WorkerFacts | None:
        """A worker's session row, if it has one."""
        return self.facts.workers.get(worker)

    def said(self, worker: str) -> str:
        """What a worker says about this shard; empty if nothing."""
        return self.trouble(worker).reason

    def trouble(self, worker: str) -> ShardTrouble:
        """What a worker says about this shard, with its kind."""
        session = self.session(worker)
        return NO_TROUBLE if session is None else session.info.shards.get(self.shard_id, NO_TROUBLE)

    def silence(self, worker: str) -> str:
        """How long ago a worker gave its last heartbeat."""
        return duration(self.facts.age_seconds(last_beat_micros(self.facts, worker)))

    def expires_in(self, worker: str) -> str:
        """How much longer a worker's leases count if it stays silent."""
        age = self.facts.age_seconds(last_beat_micros(self.facts, worker))
        return duration(max(0.0, self.facts.lease_duration_seconds - age))

    def because_of(self, other: str, situation: Situation) -> Explanation:
        """The verdict that this shard waits for another, which may wait for yet another."""
        below = evolve(self, shard_id=other, above=self.above | {self.shard_id})
        cause = self.judge(below)
        root = cause.root
        if root != other:
            cause = self.judge(evolve(below, shard_id=root, above=below.above | {other}))
        relation = "parent" if root == other else "ancestor"
        return self.verdict(situation, f"waits for its {relation} {root}, which {cause.predicate}", root=root)
