"""The metrics of a worker, made from its events. No decision depends on metrics.

The coordinator passes every event, with the resulting commands, to this module. Every second it also passes the
statuses of all shards. Consumers and fetch threads report a few facts that are not events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attrs import frozen

from streamclient.base.reasons import ReasonKind, WorkerHealth
from streamclient.core import events
from streamclient.core.events import Answered, CheckpointOutcome, Command, Event, Scan, Severity
from streamclient.core.held import HeldLease
from streamclient.core.leases import LeaseWrite
from streamclient.core.write_rules import WriteKind, WriteOutcome, was_applied
from streamclient.interfaces import IMetrics
from streamclient.metrics import metric_table
from streamclient.metrics.labelled import NO_METRICS
from streamclient.metrics.request_metrics import result_of
from streamclient.model import CheckpointPosition, Metric, ShardStatus
from streamclient.tablestore.stream_api import RecordPage

LINGER_SECONDS: Final = 120.0
"""The time for which the counters of a shard stay after the shard has left this worker. It is twice the longest usual
time between two scrapes, so that a scrape sees the last counts. Gauges are removed immediately, because a stale gauge
is wrong."""

LEASE_STATES: Final = ("running", "waiting", "finished")
"""The values of the label ``state`` of ``streamclient_leases``. Each lease is in exactly one of these states."""


NO_CAUSE: Final = "none"
"""The value of the label ``cause`` for a shard that makes progress. Only shards without progress have a cause."""

SHOWN_FROM_ZERO: Final = (metric_table.RECORDS_PARKED, metric_table.STALLS)
"""The counters that are shown as 0 from the beginning. If a series begins with its first event, Prometheus sees no
increase."""


@frozen(kw_only=True)
class WorkerSample:
    """The measurements that concern the whole worker, taken at one time."""

    ahead_bytes: int
    """The size of all pages read ahead, in bytes."""
    clock_slow_seconds: float
    unowned: int | None = None
    """The number of unfinished shards that no worker holds; ``None`` for workers that do not share leases."""


class Gauges:
    """The gauges of a worker. They are set from the statuses of its shards, and removed when a shard has left."""

    def __init__(self, metrics: IMetrics) -> None:
        self._metrics = metrics
        self._last: dict[Metric, dict[str, float]] = {
            metric_table.LAG_SECONDS: {},
            metric_table.TIME_TO_LOSS_SECONDS: {},
        }
        self._states: set[tuple[str, str, str]] = set()
        self._with_counts: set[str] = set()
        self._gone_at: dict[str, float] = {}

    def counts_of(self, shard_id: str) -> None:
        """Record that the shard has counters. They are removed ``LINGER_SECONDS`` after the shard has left."""
        self._with_counts.add(shard_id)

    def sample(self, statuses: Mapping[str, ShardStatus], of_worker: WorkerSample, now: float) -> None:
        """Set all gauges from ``statuses`` and ``of_worker``."""
        self._set_shards(metric_table.LAG_SECONDS, {key: status.lag_seconds for key, status in statuses.items()})
        seconds = {key: status.time_to_loss_seconds for key, status in statuses.items()}
        self._set_shards(metric_table.TIME_TO_LOSS_SECONDS, seconds)
        self._set_totals(statuses)
        self._metrics.set(metric_table.PREFETCH_BUFFER_BYTES, of_worker.ahead_bytes)
        self._metrics.set(metric_table.CLOCK_SLOW_SECONDS, of_worker.clock_slow_seconds)
        if of_worker.unowned is not None:
            self._metrics.set(metric_table.UNOWNED_SHARDS, of_worker.unowned)
        self._forget_counts(statuses, now)

    def close(self) -> None:
        """Clear all gauges, because the worker holds no lease any more. The counters stay."""
        for metric in self._last:
            self._set_shards(metric, {})
        self._set_totals({})
        self._metrics.set(metric_table.PREFETCH_BUFFER_BYTES, 0)
        self._metrics.forget(metric_table.CLOCK_SLOW_SECONDS)
        self._metrics.forget(metric_table.UNOWNED_SHARDS)

    def _set_shards(self, metric: Metric, values: Mapping[str, float | None]) -> None:
        last = self._last[metric]
        known = {shard_id: value for shard_id, value in values.items() if value is not None}
        for shard_id, value in known.items():
            if last.get(shard_id) != value:
                self._metrics.set(metric, value, shard=shard_id)
        for shard_id in last.keys() - known.keys():
            self._metrics.forget(metric, shard=shard_id)
        self._last[metric] = known

    def _set_totals(self, statuses: Mapping[str, ShardStatus]) -> None:
        leases = Counter(map(_lease_state, statuses.values()))
        for state in LEASE_STATES:
            self._metrics.set(metric_table.LEASES, leases[state], state=state)
        shards = Counter(map(_activity, statuses.values()))
        self._states |= shards.keys()
        for state, reason, cause in sorted(self._states):
            count = shards[state, reason, cause]
            self._metrics.set(metric_table.SHARDS, count, state=state, reason=reason, cause=cause)

    def _forget_counts(self, statuses: Mapping[str, ShardStatus], now: float) -> None:
        for shard_id in self._with_counts:
            if shard_id in statuses:
                self._gone_at.pop(shard_id, None)
            else:
                self._gone_at.setdefault(shard_id, now)
        for shard_id in [shard_id for shard_id, gone_at in self._gone_at.items() if now - gone_at >= LINGER_SECONDS]:
            del self._gone_at[shard_id]
            self._with_counts.discard(shard_id)
            self._metrics.forget(metric_table.RECORDS_PROCESSED, shard=shard_id)
            self._metrics.forget(metric_table.RECORDS_SIZE_BYTES, shard=shard_id)


def _activity(status: ShardStatus) -> tuple[str, str, str]:
    """Return the values of the labels state, reason and cause of ``streamclient_shards`` for a shard."""
    cause = status.reasons[0].cause.value if status.reasons else NO_CAUSE
    return status.state.value.lower(), status.reason_kind.value, cause


def _lease_state(status: ShardStatus) -> str:
    if status.checkpoint == CheckpointPosition.SHARD_END:
        return "finished"
    return "running" if status.has_consumer else "waiting"


SAMPLE_SECONDS = 1.0
"""The interval at which gauges are set. Each shard costs about ten microseconds, so a thousand shards cost a hundredth
of a core."""

END_NOT_STORED = "end_not_stored"
"""The value of the label ``call`` for a processor that raised no error, but did not store the end of its shard."""

MEANT_TO_WAIT = frozenset({ReasonKind.PARENTS, ReasonKind.PAUSED})
"""The kinds of reasons for which a shard is meant to wait. After a hand-over, such a wait is not measured as a gap in
reading."""


@frozen
class _Waiting:
    """A checkpoint that user code has requested and that is not answered yet."""

    kind: str
    since: float


class Instruments:
    """The metrics of one worker on one stream. Owner thread only, except ``judged`` and ``measured``.

    Args:
        metrics: the receiver of the metrics, which adds the labels of the worker and never raises.
        worker_identifier: the name of this worker, to recognize leases that were handed over to it.
        held: the held leases by key, as a view that always shows the present leases.
        now: returns monotonic seconds.
    """

    def __init__(
        self,
        metrics: IMetrics,
        worker_identifier: str,
        held: Mapping[str, HeldLease],
        now: Callable[[], float],
    ) -> None:
        self.is_on: bool = metrics is not NO_METRICS
        self._metrics = metrics
        self.worker_identifier = worker_identifier
        self._held = held
        self._now = now
        self._gauges = Gauges(metrics)
        self._known: set[str] = set()
        self._ending_writes: dict[str, LeaseWrite] = {}
        self._checkpoints: dict[int, _Waiting] = {}
        self._scan_asked_at: float | None = None
        self._handed_at: dict[str, float] = {}
        self.parked_records: Counter[str] = Counter()
        """The number of records of each shard that were parked since the worker began. The keys are shard ids. Parked
        records are counted even without metrics."""
        for counter in SHOWN_FROM_ZERO:
            metrics.increment(counter, 0)

    # --- reports of the coordinator --------------------------------------------------------------------------------

    def handled(self, event: Event, commands: Sequence[Command], now: float) -> None:
        """Record an event and the commands that followed from it."""
        if not self.is_on:
            return
        note = _ANSWERS.get(type(event.call)) if isinstance(event, Answered) else _NOTES.get(type(event))
        if note is not None:
            note(self, event, now)
        for command in commands:
            note = _NOTES.get(type(command))
            if note is not None:
                note(self, command, now)
        self._note_moves(event, commands)

    def sample(self, statuses: Mapping[str, ShardStatus], of_worker: WorkerSample) -> None:
        """Record the present state of every held shard and of the worker."""
        if self.is_on:
            for key in [key for key in self._handed_at if key in statuses]:
                if statuses[key].reason_kind in MEANT_TO_WAIT:
                    del self._handed_at[key]
            self._gauges.sample(statuses, of_worker, self._now())

    def close(self) -> None:
        """Record the end of the worker. The outcome of waiting checkpoints is unknown, and no lease is held."""
        if self.is_on:
            for request_id in list(self._checkpoints):
                self._checkpoint_answered(events.AnswerCheckpoint(request_id, CheckpointOutcome.UNKNOWN), self._now())
            self._gauges.close()

    # --- reports of consumers ---------------------------------------------------------------------------------------

    def user_code_ended(self, shard_id: str, call: str, started_at: float, error: BaseException | None) -> None:
        """Record that a call into user code returned or raised."""
        if not self.is_on:
            return
        self._metrics.observe(metric_table.USER_CODE_SECONDS, self._now() - started_at, call=call)
        if error is not None:
            self._metrics.increment(metric_table.USER_CODE_FAILURES, call=call)
        if call == "process_records":
            self._metrics.increment(metric_table.BATCHES, outcome="accepted" if error is None else "failed")
            self._reads_again(shard_id, started_at)

    def accepted(self, shard_id: str, records: int) -> None:
        """Record that user code accepted ``records`` records."""
        if self.is_on:
            self._gauges.counts_of(shard_id)
            self._metrics.increment(metric_table.RECORDS_PROCESSED, records, shard=shard_id)

    def page_done(self, shard_id: str, size_bytes: int) -> None:
        """Count the bytes of a page, because every record of the page was accepted or parked."""
        if self.is_on:
            self._gauges.counts_of(shard_id)
            self._metrics.increment(metric_table.RECORDS_SIZE_BYTES, size_bytes, shard=shard_id)

    def found_nothing(self, shard_id: str) -> None:
        """Record a read that found no record to deliver."""
        self._reads_again(shard_id, self._now())

    def redelivered(self) -> None:
        """Record that records are delivered to the same processor again."""
        self._metrics.increment(metric_table.REDELIVERIES)

    def parked(self, shard_id: str, records: int) -> None:
        """Record that ``records`` records were stored in the parking store."""
        self.parked_records[shard_id] += records
        self._metrics.increment(metric_table.RECORDS_PARKED, records)

    def stalled(self) -> None:
        """Record that the worker gave up a lease or a channel because its consumer made no progress."""
        self._metrics.increment(metric_table.STALLS)

    def suspected_loss(self, cause: str) -> None:
        """Record that a tunnel may have skipped records of a channel."""
        self._metrics.increment(metric_table.SUSPECTED_LOSSES, cause=cause)

    def restarted(self) -> None:
        """Record that a shard got a new processor in place of its earlier processor."""
        self._metrics.increment(metric_table.RESTARTS)

    def end_not_stored(self) -> None:
        """Record that the processor let a shard end without storing the end."""
        self._metrics.increment(metric_table.USER_CODE_FAILURES, call=END_NOT_STORED)

    # --- any thread ------------------------------------------------------------------------------------------------

    def judged(self, health: WorkerHealth) -> None:
        """Record the health of the worker. Called every second, and when the worker fails or ends."""
        self._metrics.set(metric_table.UNHEALTHY, float(not health.is_healthy))

    def measured(self, read: Callable[[], RecordPage]) -> RecordPage:
        """Call ``read``, count and time it, and return its page; raise the error that it raises."""
        if not self.is_on:
            return read()
        started_at = self._now()
        try:
            page = read()
        except BaseException as error:
            self._metrics.increment(metric_table.READS, result=result_of(error))
            raise
        finally:
            self._metrics.observe(metric_table.READ_SECONDS, self._now() - started_at)
        self._metrics.increment(metric_table.READS, result="records" if page.records else "empty")
        return page

    # --- events and commands -----------------------------------------------------------------------------------------

    def _scan_asked(self, command: events.ReadRows, now: float) -> None:
        self._scan_asked_at = now

    def _scanned(self, answer: Answered[Scan], now: float) -> None:
        if answer.value is None:
            return
        if self._scan_asked_at is not None:
            self._metrics.observe(metric_table.SCAN_SECONDS, now - self._scan_asked_at)
            self._scan_asked_at = None
        ours = {
            row.lease_key
            for row in answer.value.rows
            if row.owner == self.worker_identifier and row.is_handed_over and not row.is_finished
        }
        kept = {key: at for key, at in self._handed_at.items() if key in ours or key in self._known}
        self._handed_at = {key: now for key in ours if key not in self._known} | kept

    def _write_sent(self, command: events.WriteLease, now: float) -> None:
        is_ending = command.write.kind in (WriteKind.TRANSFER, WriteKind.DELETE)
        if is_ending and command.write.lease_key in self._held:
            self._ending_writes[command.write.lease_key] = command.write

    def _write_answered(self, answer: Answered[WriteOutcome], now: float) -> None:
        outcome = answer.value or WriteOutcome.UNCERTAIN
        match answer.call:
            case events.WriteLease(write):
                kind = write.kind.value.replace(" ", "_")
                self._metrics.increment(metric_table.LEASE_WRITES, kind=kind, outcome=outcome.value)
            case events.WriteWorker(of_worker):
                self._metrics.increment(metric_table.SESSION_WRITES, kind=of_worker.kind.value, outcome=outcome.value)

    def _wakes_sent(self, answer: Answered[None], now: float) -> None:
        if isinstance(answer.call, events.WakeWorkers):
            self._metrics.increment(metric_table.WAKES, len(answer.call.names))

    def _checkpoint_asked(self, event: events.CheckpointRequested, now: float) -> None:
        self._checkpoints[event.request_id] = _Waiting("checkpoint" if event.pending is None else "prepare", now)

    def _checkpoint_answered(self, command: events.AnswerCheckpoint, now: float) -> None:
        waiting = self._checkpoints.pop(command.request_id, None)
        if waiting is not None:
            self._metrics.observe(metric_table.CHECKPOINT_SECONDS, now - waiting.since)
            self._metrics.increment(metric_table.CHECKPOINTS, kind=waiting.kind, outcome=command.outcome.value)

    def _epoch_answered(self, answer: Answered[int], now: float) -> None:
        self._metrics.increment(metric_table.EPOCH_DRAWS, outcome="failed" if answer.value is None else "drawn")

    def _stalled(self, event: events.ConsumerStalled, now: float) -> None:
        self.stalled()

    # --- leases that come and go -------------------------------------------------------------------------------------

    def _note_moves(self, event: Event, commands: Sequence[Command]) -> None:
        """Count leases that the worker has taken or lost.

        Only leases that ``event`` or ``commands`` name are checked, because no other lease can have changed.
        """
        for key in {_key_of(fact) for fact in (event, *commands)} - {""}:
            is_held = key in self._held
            if is_held and key not in self._known:
                self._known.add(key)
                self._metrics.increment(metric_table.LEASE_MOVES, move="taken")
            elif not is_held and key in self._known:
                self._known.discard(key)
                self._handed_at.pop(key, None)
                self._metrics.increment(metric_table.LEASE_MOVES, move=self._way_out(key, event, commands))

    def _way_out(self, key: str, event: Event, commands: Sequence[Command]) -> str:
        sent = self._ending_writes.pop(key, None)
        if sent is not None and _is_done(sent, event):
            if sent.kind is WriteKind.DELETE:
                return "deleted"
            return "given" if sent.seen.is_finished else "handed_over"
        reports = [command for command in commands if isinstance(command, events.Report) and command.lease_key == key]
        is_expected = bool(reports) and all(report.severity is Severity.INFO for report in reports)
        return "left" if is_expected else "lost"

    def _reads_again(self, shard_id: str, at: float) -> None:
        handed_at = self._handed_at.pop(shard_id, None)
        if handed_at is not None:
            self._metrics.observe(metric_table.HAND_OVER_GAP_SECONDS, max(0.0, at - handed_at))


_NOTES: Mapping[type, Callable[[Instruments, Any, float], None]] = {
    events.ReadRows: Instruments._scan_asked,
    events.WriteLease: Instruments._write_sent,
    events.CheckpointRequested: Instruments._checkpoint_asked,
    events.AnswerCheckpoint: Instruments._checkpoint_answered,
    events.ConsumerStalled: Instruments._stalled,
}

_ANSWERS: Mapping[type, Callable[[Instruments, Any, float], None]] = {
    events.ReadRows: Instruments._scanned,
    events.WriteLease: Instruments._write_answered,
    events.WriteWorker: Instruments._write_answered,
    events.WakeWorkers: Instruments._wakes_sent,
    events.DrawEpoch: Instruments._epoch_answered,
}


def _key_of(fact: Event | Command) -> str:
    """Return the key of the lease that an event or command concerns; empty if it concerns no lease or all leases."""
    match fact:
        case Answered(call):
            return _key_of(call)
        case events.WriteLease(write):
            return write.lease_key
        case events.StartConsumer(shard_info):
            return shard_info.shard_id
    return getattr(fact, "lease_key", None) or ""


def _is_done(sent: LeaseWrite, event: Event) -> bool:
    """Return whether the event confirms that the write was applied."""
    match event:
        case Answered(events.WriteLease(write), outcome):
            return write == sent and outcome is WriteOutcome.ACCEPTED
        case Answered(events.ReadRow(), row, error=None):
            return was_applied(row, sent)
    return False
