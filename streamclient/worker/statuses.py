"""What is said of a held shard, from its lease and from its consumer. Owner thread."""

from __future__ import annotations

from attrs import evolve

from streamclient.core.retention import Backlog
from streamclient.core.tenancy import HeldLease
from streamclient.model import ShardState, ShardStatus
from streamclient.reasons import Cause, Reason, ReasonKind, kind_of, text_of
from streamclient.worker.stream_facts import StreamFacts


def lease_status(held: HeldLease, facts: StreamFacts, now: float) -> ShardStatus:
    """A shard without a consumer. What it has not read ages meanwhile, as far as its stored progress tells."""
    progress = held.lease.progress
    backlog = Backlog(None if progress is None or held.lease.is_finished else progress.record_micros or None)
    report = facts.report(backlog, now)
    status = ShardStatus(
        shard_id=held.lease.lease_key,
        state=held.state,
        checkpoint=held.checkpoint,
        lag_seconds=report.lag_seconds,
        time_to_loss_seconds=report.time_to_loss_seconds,
        forecast=report.forecast,
    )
    return status if held.reason is None else because(status, (held.reason,))


def joined_status(held: HeldLease | None, of_consumer: ShardStatus) -> ShardStatus:
    """A shard with a consumer: what holds the lease up, a hand-over for example, comes before what holds it up."""
    if held is None or held.reason is None:
        return of_consumer
    return because(of_consumer, (held.reason, *of_consumer.reasons))


def because(status: ShardStatus, reasons: tuple[Reason, ...]) -> ShardStatus:
    """The status with these reasons, and with what follows from them."""
    return evolve(status, reasons=reasons, reason=text_of(*reasons), reason_kind=kind_of(reasons))


def over_status(status: ShardStatus, over: Reason | None) -> ShardStatus:
    """The same shard on a worker that has failed or ended, if there is a reason: nothing of it moves any more."""
    if over is None or status.state is ShardState.SHUTDOWN_COMPLETE:
        return status
    told = status.reasons if over.cause is Cause.WORKER_ENDED and status.reasons else (over, *status.reasons)
    stopped = evolve(status, state=ShardState.SHUTTING_DOWN, forecast="")
    return evolve(because(stopped, told), reason_kind=ReasonKind.LEASE)
