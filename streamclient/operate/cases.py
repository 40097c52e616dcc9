"""The explanation of one shard's state, and the case from which the rules derive this explanation. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import evolve, field, frozen

from streamclient.base.times import duration
from streamclient.core.worker_info import ShardTrouble
from streamclient.operate.facts import FleetFacts, HeadFacts, RowFacts, WorkerFacts
from streamclient.operate.liveness import last_beat_micros
from streamclient.operate.situations import Situation

NO_TROUBLE = ShardTrouble("")
"""The empty trouble, for a shard about which its worker publishes no trouble."""


MOST_NAMES = 5
"""The largest number of workers that a sentence names. The limit keeps sentences short; the evidence names every
worker."""


def names_of(workers: Sequence[str]) -> str:
    """Return the first ``MOST_NAMES`` names of ``workers`` for a sentence, and the number of further workers."""
    more = len(workers) - MOST_NAMES
    return ", ".join(workers[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


@frozen(kw_only=True)
class Explanation:
    """The verdict about one shard: why the shard makes progress, or why it does not."""

    shard_id: str
    situation: Situation
    predicate: str
    """The verdict as a sentence without its subject. The subject is the shard."""
    root: str
    """The id of the shard that has to make progress first: this shard, or the ancestor for which this shard waits."""
    cause: str
    """A shorter predicate for a table of shards. It does not name the owner, and does not say that the shard makes no
    progress, because the table has columns for these facts."""

    @property
    def first_line(self) -> str:
        """The verdict as one whole sentence, whose subject is the shard."""
        return f"Shard {self.shard_id} {self.predicate}."


@frozen(kw_only=True)
class Case:
    """One shard for the rules to judge, with all facts about its fleet."""

    facts: FleetFacts
    shard_id: str
    judge: Callable[[Case], Explanation]
    """The function that applies the rules to the case of another shard."""
    living: tuple[str, ...]
    """The sorted names of the workers that may take leases."""
    above: frozenset[str] = field(default=frozenset())
    """The shards whose verdicts wait for the verdict about this shard. If parents form a cycle, a search for ancestors
    ends at one of these shards."""

    def verdict(self, situation: Situation, predicate: str, *, root: str = "", cause: str = "") -> Explanation:
        """Return a verdict about this shard. By default, the verdict names this shard as ``root``."""
        return Explanation(
            shard_id=self.shard_id,
            situation=situation,
            predicate=predicate,
            root=root or self.shard_id,
            cause=cause or predicate,
        )

    @property
    def row(self) -> RowFacts | None:
        """The shard's lease row; ``None`` if the shard has none."""
        return self.facts.rows.get(self.shard_id)

    @property
    def head(self) -> HeadFacts | None:
        """The facts from a read at the shard's checkpoint; ``None`` if nothing was read there."""
        return self.facts.head(self.shard_id)

    @property
    def is_listed(self) -> bool:
        """Whether the list of the stream's shards contains this shard."""
        listing = self.facts.stream.listing
        return listing is not None and self.shard_id in listing

    def session(self, worker: str) -> WorkerFacts | None:
        """Return the session row of ``worker``; ``None`` if the worker has none."""
        return self.facts.workers.get(worker)

    def said(self, worker: str) -> str:
        """Return the reason that ``worker`` publishes for this shard's trouble; empty if it publishes none."""
        return self.trouble(worker).reason

    def trouble(self, worker: str) -> ShardTrouble:
        """Return the trouble that ``worker`` publishes about this shard; ``NO_TROUBLE`` if it publishes none."""
        session = self.session(worker)
        return NO_TROUBLE if session is None else session.info.shards.get(self.shard_id, NO_TROUBLE)

    def silence(self, worker: str) -> str:
        """Return in words the time since the last heartbeat of ``worker``."""
        return duration(self.facts.age_seconds(last_beat_micros(self.facts, worker)))

    def expires_in(self, worker: str) -> str:
        """Return in words the time until the leases of the silent ``worker`` expire."""
        age = self.facts.age_seconds(last_beat_micros(self.facts, worker))
        return duration(max(0.0, self.facts.lease_duration_seconds - age))

    def because_of(self, other: str, situation: Situation) -> Explanation:
        """Return the verdict that this shard waits for ``other``, or for the ancestor for which ``other`` waits."""
        below = evolve(self, shard_id=other, above=self.above | {self.shard_id})
        cause = self.judge(below)
        root = cause.root
        if root != other:
            cause = self.judge(evolve(below, shard_id=root, above=below.above | {other}))
        relation = "parent" if root == other else "ancestor"
        return self.verdict(situation, f"waits for its {relation} {root}, which {cause.predicate}", root=root)
