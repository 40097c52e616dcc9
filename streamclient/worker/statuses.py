"""The statuses of shards, for the worker's program and for operators. Owner thread only.

The heartbeats carry the information for operators in the worker's row, so it costs no request. Unchanged information is
not sent.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping

from attrs import evolve

from streamclient._version import __version__
from streamclient.base.processes import process_space
from streamclient.base.reasons import Cause, Reason, ReasonKind, WorkerHealth, kind_of, text_of
from streamclient.base.times import MICROS_PER_HOUR, MICROS_PER_SECOND
from streamclient.core.consumer.machine import ConsumerMachine
from streamclient.core.consumer.retention import Backlog, RecordClock, RetentionReport
from streamclient.core.consumer.transitions import Phase
from streamclient.core.costs import Cost
from streamclient.core.held import HeldLease
from streamclient.core.worker_info import ShardTrouble, WorkerInfo
from streamclient.model import ShardState, ShardStatus, ShutdownReason
from streamclient.worker.health import CallWatchdog

FRESH_MARGIN_SECONDS = 5.0
"""The time by which the next read of a caught-up shard may be late. If the read is later than that, the shard counts as
held up, and as having unread records."""


class StreamFacts:
    """The facts that all shards of a stream share: its retention, and an estimate of the service's time."""

    def __init__(self, wall_micros: Callable[[], int]) -> None:
        self._wall_micros = wall_micros
        self._clock = RecordClock()
        self.reads: CallWatchdog = CallWatchdog("no read of the stream succeeded")
        """The watchdog that measures the time since a read of any shard succeeded."""
        self.expiration_micros: int | None = None
        """The stream's retention in microseconds; ``None`` until the service has described the stream."""

    def described(self, expiration_hours: int | None) -> None:
        """Keep the retention that DescribeStream has returned, in hours; ``None`` changes nothing."""
        if expiration_hours is not None:
            self.expiration_micros = expiration_hours * MICROS_PER_HOUR

    def saw(self, record_micros: int, now: float) -> None:
        """Record that a record with the write time ``record_micros`` was read."""
        self._clock.saw(record_micros, now)

    def service_micros(self, now: float) -> int:
        """Return an estimate of the service's time, in microseconds since 1970."""
        return self._clock.micros(self._wall_micros(), now)

    def clock_slow_seconds(self, now: float) -> float:
        """Return a lower bound, in seconds, of the time by which this machine's clock is slow.

        The result is 0.0 if no record shows a slow clock.
        """
        wall_micros = self._wall_micros()
        return max(0, self._clock.micros(wall_micros, now) - wall_micros) / MICROS_PER_SECOND

    def report(self, backlog: Backlog, now: float, poll_interval: float = 0.0) -> RetentionReport:
        """Return the lag and time to loss of a shard with ``backlog`` that is read every ``poll_interval`` seconds."""
        return backlog.report(
            now,
            self.service_micros(now),
            expiration_micros=self.expiration_micros,
            fresh_seconds=poll_interval + FRESH_MARGIN_SECONDS,
        )

    def loss_micros(self, backlog: Backlog) -> float:
        """Return the time when the shard's oldest unread record will leave the stream, in microseconds since 1970.

        A smaller time is more urgent. The result is 0.0, the most urgent time, if that record is unknown.
        """
        unread_micros = backlog.unread_micros
        return 0.0 if unread_micros is None else float(unread_micros + (self.expiration_micros or 0))


def lease_status(held: HeldLease, facts: StreamFacts, now: float) -> ShardStatus:
    """Return the status of a shard without a consumer. The lag is computed from the progress that the lease stores."""
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
    """Return the consumer's status. A reason of ``held``, such as a hand-over, comes before the consumer's reasons."""
    if held is None or held.reason is None:
        return of_consumer
    return because(of_consumer, (held.reason, *of_consumer.reasons))


def consumer_reasons(
    machine: ConsumerMachine, hold_ups: Iterable[Reason], now: float, *, is_reading: bool
) -> Iterator[Reason]:
    """Yield the reasons that hold up a shard with a consumer, the most important first.

    ``hold_ups`` are the reasons that the state machine does not know: the wait for a turn, a slow call or a checkpoint.
    """
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
    """Return the reason that says when a failed shard is tried again; ``None`` if no try is planned."""
    phase, cause = machine.phase, None if machine.reason is None else machine.reason.cause
    if machine.is_asking:
        return Reason(Cause.STRATEGY_ASKED)
    if machine.resume_at is not None:
        what = "start" if phase is Phase.BACKING_OFF else "attempt"
        return Reason(Cause.NEXT_TRY, what, f"{max(0.0, machine.resume_at - now):.1f} s")
    if phase is Phase.CLOSING and not machine.is_final and not machine.halt_reason:
        is_end = machine.closing is ShutdownReason.TERMINATE  # a shard that ends without a stored end counts as failed
        unless = ", unless the end is stored before" if is_end else ""
        pause = machine.backoff.next_restart_seconds(more_failures=int(is_end))
        return Reason(Cause.NEXT_TRY, "start", f"at least {pause:.1f} s{unless}")
    if phase is Phase.STARTING:
        return Reason(Cause.PRESENT_TRY, "start")
    is_parking = phase is Phase.PARKING and cause is Cause.PARKING_FAILED
    is_next_read = phase is Phase.READING and is_reading and cause is not Cause.FINDING_LOSS
    if is_parking or is_next_read or phase is Phase.DELIVERING:
        return Reason(Cause.PRESENT_TRY, "attempt")
    return None


def because(status: ShardStatus, reasons: tuple[Reason, ...]) -> ShardStatus:
    """Return ``status`` with ``reasons`` instead of its own reasons, and with the fields that depend on reasons."""
    if not reasons and not status.reasons:
        return status
    return evolve(status, reasons=reasons, reason=text_of(*reasons), reason_kind=kind_of(reasons))


def over_status(status: ShardStatus, over: Reason | None) -> ShardStatus:
    """Return ``status`` as it is after the worker's end, for which ``over`` is the reason.

    If ``over`` is ``None``, the worker has not ended: return ``status`` unchanged. After the end of a worker, no shard
    makes progress on this worker.
    """
    if over is None or status.state is ShardState.SHUTDOWN_COMPLETE:
        return status
    told = status.reasons if over.cause is Cause.WORKER_ENDED and status.reasons else (over, *status.reasons)
    stopped = evolve(status, state=ShardState.SHUTTING_DOWN, forecast="")
    return evolve(because(stopped, told), reason_kind=ReasonKind.LEASE)


STAND_IN_ROWS = frozenset({Cause.FINISHED, Cause.PARENT})
"""The causes that are not sent to operators, because the lease rows show them. Also, the text about a parent would
change with each heartbeat of the parent's owner."""


COST_SECONDS = 60.0
"""The shortest time, in seconds, over which a worker adds up its cost for operators. So the cost is not written with
each heartbeat, and it includes quiet times as well as bursts of checkpoints."""


class PublishedInfo:
    """The information for operators in the worker's row, as a JSON text.

    ``costs`` returns the cost of all requests so far. Without ``costs``, the text contains no cost.
    """

    def __init__(
        self, lease_duration_millis: int, started_micros: int, costs: Callable[[], Cost] | None = None
    ) -> None:
        self._costs = costs
        self._counted = Cost()
        self._cost: Cost | None = None
        self._parked: Mapping[str, int] = {}
        self._parked_at = 0.0
        self._process = WorkerInfo(
            host=socket.gethostname(),
            pid=os.getpid(),
            space=process_space(),
            version=__version__,
            started_micros=started_micros,
            lease_duration_millis=lease_duration_millis,
            obeys_orders=True,
        )
        self._last = self._process.to_json()

    @property
    def text(self) -> str:
        """The latest text, as ``changed`` returned it; at first, a text without shards."""
        return self._last

    def changed(
        self,
        statuses: Mapping[str, ShardStatus],
        health: WorkerHealth,
        left: Iterable[str],
        *,
        pace: str = "",
        parked: Mapping[str, int] | None = None,
        set_aside: Iterable[str] = (),
        now: float = 0.0,
    ) -> str | None:
        """Return the text for the given state at ``now`` (monotonic seconds); ``None`` if the text is unchanged.

        ``set_aside`` are the shards in which all records after the last requested checkpoint were parked or skipped.
        The text names only the caught-up shards of ``set_aside``.
        """
        parked_of = self._latest_parked(parked or {}, now)
        info = evolve(
            self._process,
            trouble=health.reason,
            pace=pace,
            cost=self._latest_cost(),
            shards={key: _trouble(status) for key, status in statuses.items() if _is_told(status)},
            left=tuple(left),
            parked=sum(parked_of.values()),
            parked_of=parked_of,
            set_aside=tuple(sorted(key for key in set_aside if _is_caught_up(statuses.get(key)))),
        )
        text = info.to_json()
        if text == self._last:
            return None
        self._last = text
        return text

    def _latest_cost(self) -> Cost | None:
        """Return the cost of the latest complete period of at least ``COST_SECONDS``; ``None`` before the first."""
        if self._costs is not None:
            total = self._costs()
            latest = total.since(self._counted)
            if latest.seconds >= COST_SECONDS:
                self._counted, self._cost = total, latest
        return self._cost

    def _latest_parked(self, parked: Mapping[str, int], now: float) -> Mapping[str, int]:
        """Return the numbers of parked records by shard.

        After the first parked record, the numbers change at most every ``COST_SECONDS``.
        """
        if parked != self._parked and (not self._parked or now - self._parked_at >= COST_SECONDS):
            self._parked, self._parked_at = dict(parked), now
        return self._parked


def _is_told(status: ShardStatus) -> bool:
    """Return whether the status has a reason that the lease rows do not show."""
    return bool(status.reasons) and status.reasons[0].cause not in STAND_IN_ROWS


def _is_caught_up(status: ShardStatus | None) -> bool:
    return status is not None and status.lag_seconds == 0.0


def _trouble(status: ShardStatus) -> ShardTrouble:
    return ShardTrouble(status.reason, status.reason_kind.value, status.reasons)
