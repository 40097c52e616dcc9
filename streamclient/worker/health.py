"""The health of a worker, judged by the success of its calls, and the time limits of reads and user-code calls."""

from __future__ import annotations

import itertools
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from attrs import evolve

from streamclient.base import logs
from streamclient.base.reasons import (
    Cause,
    FailingShard,
    Raised,
    Reason,
    ReasonKind,
    WorkerHealth,
    counted,
    described,
    text_of,
)
from streamclient.core.consumer.machine import ConsumerMachine
from streamclient.core.events import (
    Answered,
    Command,
    DrawEpoch,
    ListShards,
    ReadRows,
    ReadSignals,
    ResolveAndCreate,
    WriteLease,
    WriteWorker,
)
from streamclient.core.held import HeldLease
from streamclient.core.write_rules import WriteKind, WriteOutcome

_log = logs.logger(__name__)


def logged_change(before: WorkerHealth, now: WorkerHealth, who: str) -> WorkerHealth:
    """Return ``now``, the present health; log it if the worker has become healthy or unhealthy since ``before``."""
    if now.is_healthy and not before.is_healthy:
        _log.info("%s is healthy again", who)
    elif before.is_healthy and not now.is_healthy:
        _log.error("%s is unhealthy: %s", who, now.reason)
    return now


class CallWatchdog:
    """A watchdog that measures the time since one kind of call last succeeded. One thread writes, any thread may read.

    With ``due_since``, the time always runs: since the last success, or since ``due_since`` before the first success.
    Without ``due_since``, the time begins to run at a request or at a failure, and ends at the next success.
    """

    def __init__(self, what: str, due_since: float | None = None) -> None:
        """Watch calls; ``what`` is the text before a duration, such as "no scan of the status table succeeded"."""
        self._what = what
        self._is_always_due = due_since is not None
        self._without: tuple[float | None, Exception | Raised | None] = (due_since, None)

    @property
    def is_failing(self) -> bool:
        """Whether the last call failed."""
        return self._without[1] is not None

    def asked(self, now: float) -> None:
        """Record that an answer is due from now on. If an answer is already due, change nothing."""
        if self._without[0] is None:
            self._without = (now, None)

    def succeeded(self, now: float) -> None:
        """Record that the call succeeded, or that no answer is awaited any more."""
        self._without = (now if self._is_always_due else None, None)

    def failed(self, error: Exception | Raised | None, now: float) -> None:
        """Record that the call was answered with an error, or that it got no answer."""
        since, known = self._without
        self._without = (now if since is None else since, error or known)

    def trouble(self, now: float, limit_seconds: float) -> str:
        """Return a text that says for how long the call has not succeeded; empty within ``limit_seconds``."""
        since, error = self._without
        if since is None or now - since <= limit_seconds:
            return ""
        return f"{self._what} for {now - since:.0f} s{_because(error)}"


class WatchedConsumer(Protocol):
    """The part of a consumer on which the health of its worker depends."""

    @property
    def shard_id(self) -> str:
        """The id of the consumer's shard."""

    @property
    def machine(self) -> ConsumerMachine:
        """The state machine that decides for the consumer."""

    def reads_for(self, now: float) -> float:
        """Return the seconds for which the awaited read has been under way; 0.0 if no read is awaited."""


LONG_READ_SECONDS = 5.0
"""The duration after which a read counts as unanswered. Usually a read takes milliseconds."""

MOST_FAULTS_TOLD = 3
"""The largest number of shards that the health of a worker names. Further shards are only counted."""

LEAST_FAILURES = 2
"""The number of consecutive failures from which a processor counts as failing."""

STOPPED_BY_POLICY = (Cause.FAILING_RECORD, Cause.PARKED_SHARE)
"""The causes for which the failure policy stops a shard whose processor has failed."""

FAILING_KINDS = (ReasonKind.PROCESSOR, ReasonKind.PARKING, ReasonKind.DECISION)
"""The kinds of reasons that say why a processor fails."""

NOT_BELIEVED = (Cause.END_NOT_SHOWN, Cause.NO_PROGRESS)
"""The causes for which a shard stands still although its pages arrive: the content of the pages is not plausible."""


def watch_reads(reads: CallWatchdog, consumers: Iterable[WatchedConsumer], now: float) -> None:
    """Record in ``reads`` whether reads fail or stay unanswered for long.

    A read of more than ``LONG_READ_SECONDS`` counts as a failure, because the client may retry it for minutes.
    """
    watched = list(consumers)
    if any(consumer.reads_for(now) > LONG_READ_SECONDS for consumer in watched):
        reads.failed(None, now)
    elif not any(consumer.machine.backoff.read_failures for consumer in watched):
        reads.succeeded(now)  # no read fails any more, or no read is awaited


class FaultWatch:
    """The time for which each shard has stood still because the service's responses are not plausible.

    One thread writes, any may read.
    """

    def __init__(self) -> None:
        self._faults: Mapping[str, tuple[float, str]] = {}

    def look(self, consumers: Iterable[WatchedConsumer], circles: Iterable[tuple[str, ...]], now: float) -> None:
        """Record the shards that stand still now, and the first shard of each of ``circles``; forget all other shards.

        In a circle, each shard has a parent in the circle, so none of them can be read.
        """
        told = {
            consumer.shard_id: text_of(consumer.machine.reason)
            for consumer in consumers
            if consumer.machine.reason is not None and consumer.machine.reason.cause in NOT_BELIEVED
        }
        told |= {circle[0]: text_of(Reason(Cause.PARENT_CIRCLE, ", ".join(circle))) for circle in circles}
        before = self._faults
        self._faults = {key: (before[key][0] if key in before else now, text) for key, text in told.items()}

    def trouble(self, now: float, limit_seconds: float) -> str:
        """Return a text that names the shards that have stood still for more than ``limit_seconds``."""
        late = [(key, since, text) for key, (since, text) in self._faults.items() if now - since > limit_seconds]
        return _first_few([f"shard {key} has not moved for {now - since:.0f} s: {text}" for key, since, text in late])


class FailingShards:
    """The time for which the processor of each shard has been failing. One thread writes, any may read."""

    def __init__(self, limit_millis: int, wall_micros: Callable[[], int]) -> None:
        """Begin without failing shards.

        The worker is unhealthy if a processor fails for longer than ``limit_millis``; 0 means no limit.
        """
        self._limit_seconds = limit_millis / 1_000
        self._wall_micros = wall_micros
        self._shards: Mapping[str, tuple[float, FailingShard]] = {}

    def look(self, consumers: Iterable[WatchedConsumer], now: float) -> None:
        """Record the shards whose processors are failing now, and forget all other shards."""
        before, failing = self._shards, {}
        for consumer in consumers:
            key, machine = consumer.shard_id, consumer.machine
            if _is_failing(machine):
                since, known = before.get(key) or (now, FailingShard(self._wall_micros(), "its processor fails"))
                # Keep the known reason: a new processor has no reason yet, and may fail at the same record again.
                if machine.reason is not None and machine.reason.kind in FAILING_KINDS:
                    known = evolve(known, reason=text_of(machine.reason))
                failing[key] = (since, known)
        self._shards = failing

    def trouble(self, now: float) -> str:
        """Return a text that names the shards whose processors fail for longer than the limit; empty if none does."""
        if not self._limit_seconds:
            return ""
        late = [(key, now - since, shard.reason) for key, (since, shard) in self._in_order()]
        limit = self._limit_seconds
        return _first_few([f"shard {key} has failed for {age:.0f} s: {why}" for key, age, why in late if age > limit])

    def told_in(self, health: WorkerHealth) -> WorkerHealth:
        """Return ``health`` with the failing shards added."""
        return with_failing_shards(health, {key: shard for key, (_, shard) in self._in_order()})

    def _in_order(self) -> list[tuple[str, tuple[float, FailingShard]]]:
        """Return the failing shards, beginning with the shard that has been failing for the longest time."""
        return sorted(self._shards.items(), key=lambda item: (item[1][0], item[0]))


def with_failing_shards(health: WorkerHealth, shards: Mapping[str, FailingShard], more: int = 0) -> WorkerHealth:
    """Return ``health`` with the first ``MOST_FAULTS_TOLD`` of ``shards``.

    The other shards are only counted, and ``more`` is added to their number.
    """
    named = dict(itertools.islice(shards.items(), MOST_FAULTS_TOLD))
    return evolve(health, failing_shards=named, more_failing_shards=len(shards) - len(named) + more)


def joined_health(streams: Mapping[str, WorkerHealth]) -> WorkerHealth:
    """Return the health of a worker, joined from the health of each of its ``streams``.

    The keys of ``streams`` are the names of the streams. If the worker has several streams, each reason names its
    stream.
    """
    if len(streams) == 1:
        return next(iter(streams.values()))
    reasons = [f"stream {name}: {health.reason}" for name, health in streams.items() if not health.is_healthy]
    shards = {f"{name}/{key}": it for name, health in streams.items() for key, it in health.failing_shards.items()}
    longest_first = dict(sorted(shards.items(), key=lambda item: item[1].since_micros))
    more = sum(health.more_failing_shards for health in streams.values())
    return with_failing_shards(WorkerHealth(not reasons, "; ".join(reasons)), longest_first, more)


def _is_failing(machine: ConsumerMachine) -> bool:
    is_stopped = machine.reason is not None and machine.reason.cause in STOPPED_BY_POLICY
    return is_stopped or machine.backoff.failures >= LEAST_FAILURES


def _first_few(texts: Sequence[str]) -> str:
    more = len(texts) - MOST_FAULTS_TOLD
    return "; ".join([*texts[:MOST_FAULTS_TOLD], *([f"and {counted(more, 'more shard')}"] if more > 0 else [])])


class HealthWatch:
    """A watch that judges the health of a running worker by the time since its calls last succeeded.

    Each kind of call has its own watchdog, so that the success of one kind does not hide the failures of another. The
    consumers update ``reads``: one successful read, of any shard, shows that the stream can be read. Any thread may
    call ``judge``; all other methods are for the owner thread.
    """

    def __init__(self, limit_millis: int, now: float, reads: CallWatchdog) -> None:
        self._limit_seconds = limit_millis / 1_000
        self._scans = CallWatchdog("no scan of the status table succeeded", now)
        self._signals = CallWatchdog("no read of the rows of workers succeeded")
        self._beats = CallWatchdog("no write of a worker's row was answered")
        self._writes = CallWatchdog("no lease write was answered")
        self._creations = CallWatchdog("no lease of a new shard was created")
        self._draws = CallWatchdog("no epoch was drawn")
        self._listings = CallWatchdog("no list of the stream's shards was read")
        self._reads = reads
        self.faults: FaultWatch = FaultWatch()
        self._has_scan_failed = False
        self._uncreated: set[str] = set()
        """The keys of leases that the worker has asked to create and that are not known to exist."""
        self._writes_under_way = 0
        self._last_write_at = now

    def asked(self, command: Command, now: float) -> None:
        """Record that a command is about to be carried out."""
        match command:
            case ReadSignals():
                self._signals.asked(now)
            case ListShards():
                self._listings.asked(now)
            case WriteWorker():
                self._beats.asked(now)
            case ResolveAndCreate(lease):
                self._uncreated.add(lease.lease_key)
                self._creations.asked(now)
            case WriteLease(write) if write.kind is WriteKind.CREATE:
                self._uncreated.add(write.lease_key)
                self._creations.asked(now)
            case WriteLease():
                self._writes_under_way += 1
                self._last_write_at = now
                self._writes.asked(now)

    def answered(self, answer: Answered[Any], now: float) -> None:
        """Record that a call has ended, with a result or with an error."""
        error = answer.error
        match answer.call:
            case ReadRows():
                self._has_scan_failed = error is not None
                _note(self._scans, error, now)
                if answer.value is not None and self._uncreated:
                    self._created({row.lease_key for row in answer.value.rows}, now)
            case ReadSignals():
                _note(self._signals, error, now)
                # Reads of a few worker rows replace most scans. After a failed scan, only another scan is a success.
                if error is None and not self._has_scan_failed:
                    self._scans.succeeded(now)
            case ListShards():
                _note(self._listings, error, now)
                if answer.value is not None and answer.value.shards:
                    self._created(self._uncreated - {shard.shard_id for shard in answer.value.shards}, now)
            case DrawEpoch():
                _note(self._draws, error, now)
            case WriteWorker():
                _note_write(self._beats, answer, now)
            case WriteLease(write) if write.kind is WriteKind.CREATE:
                self._creation_answered(write.lease_key, answer, now)
            case WriteLease():
                self._writes_under_way -= 1
                _note_write(self._writes, answer, now)

    def _creation_answered(self, lease_key: str, answer: Answered[WriteOutcome], now: float) -> None:
        """Record the result of the write that creates a lease.

        Ignore a failure if a scan has already shown the lease.
        """
        if answer.value is not WriteOutcome.UNCERTAIN:
            self._created({lease_key}, now)
        elif lease_key in self._uncreated:
            self._creations.failed(answer.error, now)

    def _created(self, lease_keys: set[str], now: float) -> None:
        """Record that the leases ``lease_keys`` need not be created any more: they exist, or their shards are gone."""
        if lease_keys & self._uncreated:
            self._uncreated -= lease_keys
            self._creations.succeeded(now)
            if self._uncreated:
                self._creations.asked(now)

    def watch(self, held: Iterable[HeldLease], now: float) -> None:
        """Record whether a lease of ``held`` waits for a new epoch. Forget the failed writes of an idle worker.

        A worker is idle if it holds no lease, no write is under way, and it has sent no write within the limit.
        """
        leases = list(held)
        if any(lease.reason is not None and lease.reason.cause is Cause.EPOCH for lease in leases):
            self._draws.asked(now)
        else:
            self._draws.succeeded(now)
        # While a lease is held, its renewals show whether writes succeed. A take that failed is repeated within a few
        # seconds if the lease is still wanted.
        is_idle = not (leases or self._writes_under_way)
        if is_idle and now - self._last_write_at > self._limit_seconds:
            self._writes.succeeded(now)

    def judge(self, now: float, *troubles: str) -> WorkerHealth:
        """Return the health of the worker.

        The worker is unhealthy if ``troubles`` has a text, if a shard stands still, or if a kind of call has not
        succeeded within the limit.
        """
        watched = (
            self._scans,
            self._signals,
            self._beats,
            self._writes,
            self._creations,
            self._draws,
            self._listings,
            self._reads,
        )
        faults = self.faults.trouble(now, self._limit_seconds)
        reasons = [*troubles, faults, *(watchdog.trouble(now, self._limit_seconds) for watchdog in watched)]
        present = [reason for reason in reasons if reason]
        return WorkerHealth(not present, "; ".join(present))


def _note(watch: CallWatchdog, error: Exception | Raised | None, now: float) -> None:
    if error is None:
        watch.succeeded(now)
    else:
        watch.failed(error, now)


def _note_write(watch: CallWatchdog, answer: Answered[WriteOutcome], now: float) -> None:
    """Record the answer to a write. A refused write counts as success, because the table has answered."""
    if answer.value is WriteOutcome.UNCERTAIN:
        watch.failed(answer.error, now)
    else:
        watch.succeeded(now)


def _because(error: Exception | Raised | None) -> str:
    return "" if error is None else f" ({error.text if isinstance(error, Raised) else described(error)})"


NOTABLE_QUEUEING_SECONDS = 1.0
"""The time for which a call waits for a thread before the status of its shard names the call."""

MOST_STACK_LINES = 60
"""The largest number of lines of a stack that are logged, counted from the innermost call."""


class CallUnderway(Protocol):
    """A call into user code, or a read. Its times are monotonic seconds."""

    started_at: float | None
    """The time at which a thread began the call; ``None`` while the call waits for a thread."""
    thread_id: int | None

    @property
    def queued_cause(self) -> Cause:
        """The cause that the shard's status shows while the call waits to begin."""

    @property
    def runs_cause(self) -> Cause:
        """The cause that the shard's status shows while the call runs."""

    @property
    def queued_at(self) -> float:
        """The time since which the shard has been waiting for the end of the call."""


class CallWatch:
    """A watch for slow calls of one kind, for one shard. It watches one call after the other."""

    def __init__(self, shard_id: str, warn_after_millis: int, limit_millis: int) -> None:
        self._shard_id = shard_id
        self._warn_after_seconds = warn_after_millis / 1_000
        self._limit_seconds = limit_millis / 1_000
        self._call: CallUnderway | None = None
        self._next_warning = 0.0
        self._is_given_up = False

    def look(self, call: CallUnderway | None, name: str, now: float) -> str:
        """Log a call that takes long; once it exceeds the limit, return the reason for which it is given up.

        A long call is logged again each time its duration has doubled. The reason is returned once for each call;
        otherwise the result is empty.
        """
        if call is not self._call:
            self._call, self._next_warning, self._is_given_up = call, self._warn_after_seconds, False
        if call is None:
            return ""
        waited = now - call.queued_at
        elapsed = waited if call.started_at is None else now - call.started_at
        if elapsed >= self._next_warning:
            self._next_warning = 2 * elapsed
            self._warn(call, name, elapsed)
        if not self._limit_seconds or waited < self._limit_seconds or self._is_given_up:
            return ""
        self._is_given_up = True
        return f"{text_of(self._reason(call, name, elapsed))}, over the limit of {self._limit_seconds:.0f} s"

    def delay_reason(self, call: CallUnderway | None, name: str, now: float) -> Reason | None:
        """Return a reason that names ``call`` if the shard has waited long for the call; otherwise ``None``."""
        if call is None:
            return None
        notable = NOTABLE_QUEUEING_SECONDS if call.started_at is None else self._warn_after_seconds
        seconds = now - (call.queued_at if call.started_at is None else call.started_at)
        return self._reason(call, name, seconds) if seconds >= notable else None

    def _reason(self, call: CallUnderway, name: str, seconds: float) -> Reason:
        return Reason(call.queued_cause if call.started_at is None else call.runs_cause, name, f"{seconds:.0f} s")

    def _warn(self, call: CallUnderway, name: str, elapsed: float) -> None:
        stack = _stack_of(call.thread_id)
        _log.warning(
            "shard %s: %s%s",
            self._shard_id,
            text_of(self._reason(call, name, elapsed)),
            f", now at:\n{stack}" if stack else "",
            extra=logs.of_shard(self._shard_id),
        )


def _stack_of(thread_id: int | None) -> str:
    frame = None if thread_id is None else sys._current_frames().get(thread_id)
    if frame is None:
        return ""
    lines = "".join(traceback.format_stack(frame)).splitlines(keepends=True)
    return "".join(lines[-MOST_STACK_LINES:])
