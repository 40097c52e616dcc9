"""The rule for a shard whose owner lives and names no obstacle: its records and its checkpoint decide. Pure."""

from __future__ import annotations

from streamclient.base.times import duration
from streamclient.model import Lease
from streamclient.operate import situations
from streamclient.operate.cases import Case, Explanation
from streamclient.operate.facts import RowFacts

UNNAMED = ", whose session row has no room to name all shards that stand still: its log names them"
"""The words for a worker whose session row may have no room to name the obstacle of this shard."""

SET_ASIDE = "; the records after its checkpoint are parked or skipped"
"""The words for a shard whose owner has parked or skipped every record after the checkpoint."""


def judge_by_records(case: Case, row: RowFacts, lease: Lease) -> Explanation:
    """Return the verdict about a shard by its next unread record and the age of its checkpoint."""
    since = case.facts.age_seconds(row.checkpoint_micros)
    is_moving = _has_moved(case, lease) or since <= case.facts.lease_duration_seconds
    head = case.head
    if head is None:
        return _without_head(case, lease, is_moving=is_moving)
    if head.is_trimmed:
        text = "does not move: the records after its checkpoint are past the stream's retention and lost"
        return case.verdict(situations.POSITION_TRIMMED, text)
    if head.problem:
        return case.verdict(situations.READING_FAILS, f"cannot be read at its checkpoint: {head.problem}")
    if head.next_record_micros is None:
        text = f"moves: worker {lease.owner} has read everything there is"
        is_set_aside = case.facts.is_set_aside(case.shard_id)
        return case.verdict(situations.CAUGHT_UP, f"{text}{SET_ASIDE if is_set_aside else ''}")
    lag = duration(case.facts.age_seconds(head.next_record_micros))
    if is_moving:
        text = f"moves: worker {lease.owner} reads it{_rate(case, lease)}, with a lag of {lag}"
        return case.verdict(situations.READING, text)
    held = duration(min(since, case.facts.age_seconds(row.owner_micros)))
    waiting = f"although unread records wait, the oldest for {lag}"
    if case.session(lease.owner) is None:
        text = f"does not move: worker {lease.owner} renews it, but has not moved the checkpoint for {held}, {waiting}"
        return case.verdict(situations.OWNER_MUTE, text)
    if _is_perhaps_unnamed(case, lease):
        return case.verdict(situations.OWNER_SAYS, f"does not move on worker {lease.owner}{UNNAMED}")
    text = (
        f"moves without a checkpoint: worker {lease.owner} names no obstacle, but has stored no checkpoint for {held}, "
        f"{waiting}"
    )
    return case.verdict(situations.NO_CHECKPOINT, text)


def _without_head(case: Case, lease: Lease, *, is_moving: bool) -> Explanation:
    if is_moving:
        return case.verdict(situations.READING, f"moves: worker {lease.owner} reads it{_rate(case, lease)}")
    names = UNNAMED if _is_perhaps_unnamed(case, lease) else ", which names no obstacle"
    text = f"is held by worker {lease.owner}{names}; the records after its checkpoint were not looked up"
    return case.verdict(situations.HELD, text)


def _is_perhaps_unnamed(case: Case, lease: Lease) -> bool:
    session = case.session(lease.owner)
    return session is not None and session.info.unnamed > 0


def _has_moved(case: Case, lease: Lease) -> bool:
    before = case.facts.earlier.get(case.shard_id)
    return before is not None and before.lease is not None and before.lease.checkpoint != lease.checkpoint


def _rate(case: Case, lease: Lease) -> str:
    before = case.facts.earlier.get(case.shard_id)
    old = before.lease.progress if before is not None and before.lease is not None else None
    if old is None or lease.progress is None or case.facts.observed_seconds <= 0:
        return ""
    rate = max(0, lease.progress.records - old.records) / case.facts.observed_seconds
    return f" at {rate:.0f} records/s"
