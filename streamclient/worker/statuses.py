"""What is said of a held shard, from its lease and from its consumer. Owner thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attrs import evolve

from streamclient.core.consumer.machine import ConsumerMachine
from streamclient.core.consumer.retention import Backlog
from streamclient.core.consumer.table import Phase
from streamclient.core.held import HeldLease
from streamclient.model import ShardState, ShardStatus, ShutdownReason
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


def consumer_reasons(
    machine: ConsumerMachine, hold_ups: Iterable[Reason], now: float, *, is_reading: bool
) -> Iterator[Reason]:
    """Everything that holds a shard with a consumer up, the most important first; ``hold_ups`` is what takes long."""
    if machine.is_lost:
        yield Reason(Cause.LEASE_LOST)
    if machine.reason is not None:
        yield machine.reason
    elif machine.phase is Phase.CLOSING and machine.closing not in (None, ShutdownReason.ZOMBIE):
        yield Reason(Cause.CLOSING, machine.closing.value)
    yield from hold_ups
    following = _next_try(machine, now, is_reading=is_reading)
    if machine.reason is not None and following is not None:
        yield following


def _next_try(machine: ConsumerMachine, now: float, *, is_reading: bool) -> Reason | None:
    """When what failed is tried again: told with the failure, so that nobody hears of one without the other."""
    phase, cause = machine.phase, None if machine.reason is None else machine.reason.cause
    if machine.resume_at is not None:
        what = "start" if phase is Phase.BACKING_OFF else "attempt"
        return Reason(Cause.NEXT_TRY, what, f"{max(0.0, machine.resume_at - now):.1f} s")
    is_replaced = phase is Phase.CLOSING and machine.closing is ShutdownReason.PROCESS_RESTART
    if is_replaced and not machine.is_final and not machine.halt_reason:
        return Reason(Cause.NEXT_TRY, "start", f"at least {machine.backoff.next_restart_seconds:.1f} s")
    if phase is Phase.STARTING:
        return Reason(Cause.PRESENT_TRY, "start")
    is_parking = phase is Phase.PARKING and cause is Cause.PARKING_FAILED
    if is_parking or (phase is Phase.READING and is_reading) or phase is Phase.DELIVERING:
        return Reason(Cause.PRESENT_TRY, "attempt")
    return None


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
