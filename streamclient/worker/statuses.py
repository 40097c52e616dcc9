"""What is said of a held shard, from its lease and from its consumer. Owner thread."""

from __future__ import annotations

from attrs import evolve

from streamclient.core.retention import Backlog
from streamclient.core.tenancy import HeldLease
from streamclient.model import ReasonKind, ShardState, ShardStatus
from streamclient.worker.stream_facts import StreamFacts

ENDED = "its worker has ended"
"""What is said of a shard that was left behind without another reason."""

_KINDS = {
    ShardState.PAUSED: ReasonKind.PAUSED,
    ShardState.SHUTDOWN_COMPLETE: ReasonKind.FINISHED,
    ShardState.SHUTTING_DOWN: ReasonKind.LEASE,
}


def lease_status(held: HeldLease, facts: StreamFacts, now: float) -> ShardStatus:
    """A shard without a consumer. What it has not read ages meanwhile, as far as its stored progress tells."""
    progress = held.lease.progress
    backlog = Backlog(None if progress is None or held.lease.is_finished else progress.record_micros or None)
    report = facts.report(backlog, now)
    return ShardStatus(
        shard_id=held.lease.lease_key,
        state=held.state,
        checkpoint=held.checkpoint,
        reason=held.reason,
        reason_kind=_kind(held),
        lag_seconds=report.lag_seconds,
        time_to_loss_seconds=report.time_to_loss_seconds,
        forecast=report.forecast,
    )


def joined_status(held: HeldLease | None, of_consumer: ShardStatus) -> ShardStatus:
    """A shard with a consumer: what holds the lease up, a hand-over for example, comes before what holds it up."""
    if held is None or not held.reason:
        return of_consumer
    return evolve(
        of_consumer,
        reason="; ".join(filter(None, (held.reason, of_consumer.reason))),
        reason_kind=_kind(held),
    )


def _kind(held: HeldLease) -> ReasonKind:
    if not held.reason:
        return ReasonKind.NONE
    about_lease = held.needs_epoch or held.is_absent or held.is_unsettled or held.is_draining
    return _KINDS.get(held.state, ReasonKind.LEASE if about_lease else ReasonKind.PARENTS)


def over_status(status: ShardStatus, because: str) -> ShardStatus:
    """The same shard on a worker that has failed or ended, if there is a reason: nothing of it moves any more."""
    if not because or status.state is ShardState.SHUTDOWN_COMPLETE:
        return status
    reason = status.reason if because == ENDED and status.reason else "; ".join(filter(None, (because, status.reason)))
    return evolve(status, state=ShardState.SHUTTING_DOWN, reason=reason, reason_kind=ReasonKind.LEASE, forecast="")
