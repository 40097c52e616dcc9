"""The explanation of one shard, and the case that the rules judge. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import evolve, field, frozen

from streamclient.base.times import duration
from streamclient.core.worker_info import ShardTrouble
from streamclient.operate.facts import FleetFacts, HeadFacts, RowFacts, WorkerFacts
from streamclient.operate.liveness import last_beat_micros
from streamclient.operate.situations import Situation

NO_TROUBLE = ShardTrouble("")
"""The trouble of a worker that says nothing about a shard."""


MOST_NAMES = 5
"""The largest number of workers that a sentence names, so that it stays one sentence. The evidence names them all."""


def names_of(workers: Sequence[str]) -> str:
    """Return the names of workers for a sentence. If they are many, name the first ones, and the number of the rest."""
    more = len(workers) - MOST_NAMES
    return ", ".join(workers[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


@frozen(kw_only=True)
class Explanation:
    """The verdict about one shard."""

    shard_id: str
    situation: Situation
    predicate: str
    """The sentence without its subject, the shard."""
    root: str
    """The shard that has to move first: this one, or the ancestor that it waits for."""
    cause: str
    """The predicate without two facts that a table of shards shows by itself: that the shard does not move, and its
    owner."""

    @property
    def first_line(self) -> str:
        """The whole answer in one sentence."""
        return f"Shard {self.shard_id} {self.predicate}."


@frozen(kw_only=True)
class Case:
    """One shard with all facts about the fleet."""

    facts: FleetFacts
    shard_id: str
    judge: Callable[[Case], Explanation]
    """The function that applies the rules to another shard."""
    living: tuple[str, ...]
    """The workers that may take leases, in sorted order."""
    above: frozenset[str] = field(default=frozenset())
    """The shards that wait for this one and whose explanations need this verdict. With them, a search through a cycle
    of parents ends."""

    def verdict(self, situation: Situation, predicate: str, *, root: str = "", cause: str = "") -> Explanation:
        """Return a verdict about this shard."""
        return Explanation(
            shard_id=self.shard_id,
            situation=situation,
            predicate=predicate,
            root=root or self.shard_id,
            cause=cause or predicate,
        )

    @property
    def row(self) -> RowFacts | None:
        """The shard's lease row, if it has one."""
        return self.facts.rows.get(self.shard_id)

    @property
    def head(self) -> HeadFacts | None:
        """The result of the read at the shard's checkpoint, if that was asked for."""
        return self.facts.head(self.shard_id)

    @property
    def is_listed(self) -> bool:
        """True if the stream lists the shard."""
        listing = self.facts.stream.listing
        return listing is not None and self.shard_id in listing

    def session(self, worker: str) -> WorkerFacts | None:
        """Return a worker's session row, if it has one."""
        return self.facts.workers.get(worker)

    def said(self, worker: str) -> str:
        """Return the words that a worker publishes about this shard; empty if it publishes none."""
        return self.trouble(worker).reason

    def trouble(self, worker: str) -> ShardTrouble:
        """Return the trouble that a worker publishes about this shard: words, kind and causes."""
        session = self.session(worker)
        return NO_TROUBLE if session is None else session.info.shards.get(self.shard_id, NO_TROUBLE)

    def silence(self, worker: str) -> str:
        """Return in words how long ago a worker gave its last heartbeat."""
        return duration(self.facts.age_seconds(last_beat_micros(self.facts, worker)))

    def expires_in(self, worker: str) -> str:
        """Return in words how long it takes until a silent worker's leases expire."""
        age = self.facts.age_seconds(last_beat_micros(self.facts, worker))
        return duration(max(0.0, self.facts.lease_duration_seconds - age))

    def because_of(self, other: str, situation: Situation) -> Explanation:
        """Return the verdict that this shard waits for ``other``, or for the ancestor that ``other`` waits for."""
        below = evolve(self, shard_id=other, above=self.above | {self.shard_id})
        cause = self.judge(below)
        root = cause.root
        if root != other:
            cause = self.judge(evolve(below, shard_id=root, above=below.above | {other}))
        relation = "parent" if root == other else "ancestor"
        return self.verdict(situation, f"waits for its {relation} {root}, which {cause.predicate}", root=root)
