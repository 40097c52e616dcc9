"""What a worker says of its shards, to its program and to operators, and what it knows for that. Owner thread.

What operators are told goes out in the worker's row with heartbeats, so it costs no request; what has not changed costs
no bytes either.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping

from attrs import evolve

from streamclient._version import __version__
from streamclient.base.processes import process_space
from streamclient.base.reasons import Cause, Reason, ReasonKind, kind_of, text_of
from streamclient.core.consumer.machine import ConsumerMachine
from streamclient.core.consumer.retention import MICROS_PER_HOUR, Backlog, RecordClock, RetentionReport
from streamclient.core.consumer.transitions import Phase
from streamclient.core.held import HeldLease
from streamclient.core.worker_info import ShardTrouble, WorkerInfo
from streamclient.model import ShardState, ShardStatus, ShutdownReason
from streamclient.worker.health import CallWatchdog, WorkerHealth

FRESH_MARGIN_SECONDS = 5.0
"""A caught-up shard is read again within the longest idle pause; if it was not for so much longer, it is held up, and
what may have come meanwhile counts as unread."""


class StreamFacts:
    """The stream's retention, and an estimate of the service's time."""

    def __init__(self, wall_micros: Callable[[], int], longest_idle_millis: int) -> None:
        self._wall_micros = wall_micros
        self._fresh_seconds = longest_idle_millis / 1_000 + FRESH_MARGIN_SECONDS
        self._clock = RecordClock()
        self.reads = CallWatchdog("no read of the stream succeeded")
        """Of any shard."""
        self.expiration_micros: int | None = None
        """How long the stream keeps a record; ``None`` until it was described."""

    def described(self, expiration_hours: int | None) -> None:
        """DescribeStream answered."""
        if expiration_hours is not None:
            self.expiration_micros = expiration_hours * MICROS_PER_HOUR

    def saw(self, record_micros: int, now: float) -> None:
        """A record of that time was read."""
        self._clock.saw(record_micros, now)

    def service_micros(self, now: float) -> int:
        """The service's time, about."""
        return self._clock.micros(self._wall_micros(), now)

    def report(self, backlog: Backlog, now: float) -> RetentionReport:
        """How a shard with that backlog stands."""
        return backlog.report(
            now,
            self.service_micros(now),
            expiration_micros=self.expiration_micros,
            fresh_seconds=self._fresh_seconds,
        )

    def loss_micros(self, backlog: Backlog) -> float:
        """When the shard's oldest unread record is deleted; the smaller, the more urgent. Unknown counts as now."""
        unread_micros = backlog.unread_micros
        return 0.0 if unread_micros is None else float(unread_micros + (self.expiration_micros or 0))


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
    if machine.is_asking:
        return Reason(Cause.STRATEGY_ASKED)
    if machine.resume_at is not None:
        what = "start" if phase is Phase.BACKING_OFF else "attempt"
        return Reason(Cause.NEXT_TRY, what, f"{max(0.0, machine.resume_at - now):.1f} s")
    if phase is Phase.CLOSING and not machine.is_final and not machine.halt_reason:
        is_end = machine.closing is ShutdownReason.TERMINATE  # which counts as one more failure if it is not stored
        unless = ", unless the end is stored before" if is_end else ""
        pause = machine.backoff.next_restart_seconds(more_failures=int(is_end))
        return Reason(Cause.NEXT_TRY, "start", f"at least {pause:.1f} s{unless}")
    if phase is Phase.STARTING:
        return Reason(Cause.PRESENT_TRY, "start")
    is_parking = phase is Phase.PARKING and cause is Cause.PARKING_FAILED
    if is_parking or (phase is Phase.READING and is_reading) or phase is Phase.DELIVERING:
        return Reason(Cause.PRESENT_TRY, "attempt")
    return None


def because(status: ShardStatus, reasons: tuple[Reason, ...]) -> ShardStatus:
    """The status with these reasons, and with what follows from them."""
    if not reasons and not status.reasons:
        return status
    return evolve(status, reasons=reasons, reason=text_of(*reasons), reason_kind=kind_of(reasons))


def over_status(status: ShardStatus, over: Reason | None) -> ShardStatus:
    """The same shard on a worker that has failed or ended, if there is a reason: nothing of it moves any more."""
    if over is None or status.state is ShardState.SHUTDOWN_COMPLETE:
        return status
    told = status.reasons if over.cause is Cause.WORKER_ENDED and status.reasons else (over, *status.reasons)
    stopped = evolve(status, state=ShardState.SHUTTING_DOWN, forecast="")
    return evolve(because(stopped, told), reason_kind=ReasonKind.LEASE)


STAND_IN_ROWS = frozenset({Cause.FINISHED, Cause.PARENT})
"""What the lease rows show anyway. What is said of a parent changes with each heartbeat of its owner, besides."""


class PublishedInfo:
    """Puts the text together, and remembers the last one."""

    def __init__(self, lease_duration_millis: int, started_micros: int) -> None:
        self._process = WorkerInfo(
            host=socket.gethostname(),
            pid=os.getpid(),
            space=process_space(),
            version=__version__,
            started_micros=started_micros,
            lease_duration_millis=lease_duration_millis,
        )
        self._last = self._process.to_json()

    @property
    def text(self) -> str:
        """What is told at present."""
        return self._last

    def changed(self, statuses: Mapping[str, ShardStatus], health: WorkerHealth, left: Iterable[str]) -> str | None:
        """The text for this state; ``None`` if it is the same as before."""
        info = evolve(
            self._process,
            trouble=health.reason,
            shards={key: _trouble(status) for key, status in statuses.items() if _is_told(status)},
            left=tuple(left),
        )
        text = info.to_json()
        if text == self._last:
            return None
        self._last = text
        return text


def _is_told(status: ShardStatus) -> bool:
    """Whether there is a reason that does not stand in the lease rows anyway."""
    return bool(status.reasons) and status.reasons[0].cause not in STAND_IN_ROWS


def _trouble(status: ShardStatus) -> ShardTrouble:
    return ShardTrouble(status.reason, status.reason_kind.value, status.reasons)
