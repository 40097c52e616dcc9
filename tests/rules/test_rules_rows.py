"""Rules about creating and deleting rows, where minutes matter: decisions alone, on a clock of the test's own."""

from __future__ import annotations

from collections.abc import Sequence

from rules_scene import Decisions

from streamclient import ClientConfig, Lease
from streamclient.core.events import (
    Answered,
    ListShards,
    ReadRow,
    ReadRows,
    RenewDue,
    Scan,
    ShardList,
    StopConsumer,
    SyncDue,
    TakeDue,
    WriteLease,
)
from streamclient.core.shards import ABSENCE_SECONDS
from streamclient.core.write_rules import WriteKind, WriteOutcome
from streamclient.model import Shard

KEEPING = ClientConfig(auto_steal_lease=False)
KEPT = tuple(Shard(name) for name in ("s1", "s2", "s3"))


def others(now: float) -> tuple[Lease, ...]:
    """Rows that workers b to d keep alive; the shard of the last one left the stream."""
    names = [("s1", "b"), ("s2", "c"), ("s3", "d"), ("gone", "c")]
    return tuple(Lease(key, "stream", owner=owner, counter=int(now), checkpoint="it") for key, owner in names)


def first_delete(worker: str, listings: Sequence[Sequence[Shard]], seconds: float) -> float | None:
    """When a worker deletes a row, if it is shown these listings in turn, one every ten seconds."""
    decisions = Decisions(worker, KEEPING)
    for step in range(int(seconds / 10)):
        decisions.now = step * 10.0
        decisions.tell(TakeDue())
        decisions.tell(Answered(ReadRows(), Scan(others(decisions.now))))
        decisions.tell(SyncDue())
        writes = decisions.writes(Answered(ListShards(), ShardList(tuple(listings[step % len(listings)]))))
        if any(write.kind is WriteKind.DELETE for write in writes):
            return decisions.now
    return None


def test_a_row_is_deleted_only_by_the_leader_and_only_after_long_absence() -> None:
    """A listing that is older than the rows, or lacks a page, never costs a lease."""
    assert first_delete("a", [KEPT], 900) == ABSENCE_SECONDS
    assert first_delete("z", [KEPT], 900) is None


def test_a_shard_that_is_listed_now_and_then_is_never_deleted() -> None:
    assert first_delete("a", [KEPT, (*KEPT, Shard("gone"))], 2_000) is None


def test_empty_listings_delete_nothing() -> None:
    assert first_delete("a", [()], 2_000) is None


def test_an_empty_listing_does_not_end_a_held_lease() -> None:
    """Its row vanished, and whether its shard did, too, only a listing with shards can tell."""
    decisions = Decisions("me", KEEPING)
    (take,) = decisions.writes(Answered(ReadRows(), Scan((Lease("a", "stream", checkpoint="it"),))))
    decisions.tell(Answered(WriteLease(take), WriteOutcome.ACCEPTED, 0.0))
    decisions.now = 7.0
    (renewal,) = decisions.writes(RenewDue())
    assert ReadRow("a") in decisions.tell(Answered(WriteLease(renewal), WriteOutcome.REFUSED, 7.0))
    assert ListShards() in decisions.tell(Answered(ReadRow("a"), None))

    commands = decisions.tell(Answered(ListShards(), ShardList(())))
    assert not any(isinstance(command, StopConsumer) for command in commands)
    assert set(decisions.holdings.held) == {"a"}

    decisions.tell(SyncDue())
    (creation,) = decisions.writes(Answered(ListShards(), ShardList((Shard("a"),))))
    assert creation.kind is WriteKind.CREATE
    assert (creation.seen.owner, creation.seen.checkpoint) == ("me", "it")
