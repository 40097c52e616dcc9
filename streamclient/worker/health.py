"""The health of a worker, judged by the answers that it really got; and the time limit of calls."""

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
    """Return the present health, and log it if it has changed."""
    if now.is_healthy and not before.is_healthy:
        _log.info("%s is healthy again", who)
    elif before.is_healthy and not now.is_healthy:
        _log.error("%s is unhealthy: %s", who, now.reason)
    return now


class CallWatchdog:
    """Measures the time since a kind of call last succeeded. One thread writes, any thread may read.

    A regular call is due from a first moment on, whether it fails or gets no answer at all. An occasional call is
    judged from its request, or from its first failure, to its next success.
    """

    def __init__(self, what: str, due_since: float | None = None) -> None:
        """Watch calls; ``what`` is the text before a duration, such as "no scan of the status table succeeded"."""
        self._what = what
        self._is_always_due = due_since is not None
        self._without: tuple[float | None, Exception | Raised | None] = (due_since, None)

    @property
    def is_failing(self) -> bool:
        """Whether the last answer was an error."""
        return self._without[1] is not None

    def asked(self, now: float) -> None:
        """Record that an answer is due from now on, unless one is already due."""
        if self._without[0] is None:
            self._without = (now, None)

    def succeeded(self, now: float) -> None:
        """Record that the call was answered, or that no answer is awaited any more."""
        self._without = (now if self._is_always_due else None, None)

    def failed(self, error: Exception | Raised | None, now: float) -> None:
        """Record that the call was answered with an error, or not at all."""
        since, known = self._without
        self._without = (now if since is None else since, error or known)

    def trouble(self, now: float, limit_seconds: float) -> str:
        """Return the trouble in words; empty if the call succeeded within the limit."""
        since, error = self._without
        if since is None or now - since <= limit_seconds:
            return ""
        return f"{self._what} for {now - since:.0f} s{_because(error)}"


class WatchedConsumer(Protocol):
    """A consumer whose reads are watched."""

    @property
    def shard_id(self) -> str:
        """Id of the consumer's shard."""

    @property
    def machine(self) -> ConsumerMachine:
        """The machine that decides for the consumer."""

    def reads_for(self, now: float) -> float:
        """Return how long the awaited read has been under way, in seconds."""


LONG_READ_SECONDS = 5.0
"""Duration after which a read counts as unanswered. A page takes milliseconds."""

MOST_FAULTS_TOLD = 3
"""The largest number of shards that the health of a worker names. Further ones are counted."""

LEAST_FAILURES = 2
"""Consecutive failures from which on a processor fails again and again."""

STOPPED_BY_POLICY = (Cause.FAILING_RECORD, Cause.PARKED_SHARE)
"""Causes of shards that stand still because their processors failed."""

FAILING_KINDS = (ReasonKind.PROCESSOR, ReasonKind.PARKING, ReasonKind.DECISION)
"""Kinds of reasons that tell how a processor fails."""

NOT_BELIEVED = (Cause.END_NOT_SHOWN, Cause.NO_PROGRESS)
"""Causes of shards that stand still although pages arrive, because the pages cannot be true."""


def watch_reads(reads: CallWatchdog, consumers: Iterable[WatchedConsumer], now: float) -> None:
    """Record whether reads fail or have long been unanswered. A client may repeat one read for minutes by itself."""
    watched = list(consumers)
    if any(consumer.reads_for(now) > LONG_READ_SECONDS for consumer in watched):
        reads.failed(None, now)
    elif not any(consumer.machine.backoff.read_failures for consumer in watched):
        reads.succeeded(now)  # no read is awaited, or none any more


class FaultWatch:
    """Time since each shard has stood still because of the service's answers. Written by one thread, read by any."""

    def __init__(self) -> None:
        self._faults: Mapping[str, tuple[float, str]] = {}

    def look(self, consumers: Iterable[WatchedConsumer], circles: Iterable[tuple[str, ...]], now: float) -> None:
        """Record the faults of this moment, and forget all others."""
        told = {
            consumer.shard_id: text_of(consumer.machine.reason)
            for consumer in consumers
            if consumer.machine.reason is not None and consumer.machine.reason.cause in NOT_BELIEVED
        }
        told |= {circle[0]: text_of(Reason(Cause.PARENT_CIRCLE, ", ".join(circle))) for circle in circles}
        before = self._faults
        self._faults = {key: (before[key][0] if key in before else now, text) for key, text in told.items()}

    def trouble(self, now: float, limit_seconds: float) -> str:
        """Return in words which shards have stood still for longer than the limit; empty if none has."""
        late = [(key, since, text) for key, (since, text) in self._faults.items() if now - since > limit_seconds]
        return _first_few([f"shard {key} has not moved for {now - since:.0f} s: {text}" for key, since, text in late])


class FailingShards:
    """Time since the processor of each shard has failed. Written by one thread, read by any."""

    def __init__(self, limit_millis: int, wall_micros: Callable[[], int]) -> None:
        """Watch processors. The worker is unhealthy if one fails for longer than ``limit_millis``; 0 for no limit."""
        self._limit_seconds = limit_millis / 1_000
        self._wall_micros = wall_micros
        self._shards: Mapping[str, tuple[float, FailingShard]] = {}

    def look(self, consumers: Iterable[WatchedConsumer], now: float) -> None:
        """Record the failing shards of this moment, and forget all others."""
        before, failing = self._shards, {}
        for consumer in consumers:
            key, machine = consumer.shard_id, consumer.machine
            if _is_failing(machine):
                since, known = before.get(key) or (now, FailingShard(self._wall_micros(), "its processor fails"))
                # A new processor that repeats earlier records has no such reason, and may fail at the same one again.
                if machine.reason is not None and machine.reason.kind in FAILING_KINDS:
                    known = evolve(known, reason=text_of(machine.reason))
                failing[key] = (since, known)
        self._shards = failing

    def trouble(self, now: float) -> str:
        """Return in words which shards' processors have failed for longer than the limit; empty if none has."""
        if not self._limit_seconds:
            return ""
        late = [(key, now - since, shard.reason) for key, (since, shard) in self._in_order()]
        limit = self._limit_seconds
        return _first_few([f"shard {key} has failed for {age:.0f} s: {why}" for key, age, why in late if age > limit])

    def told_in(self, health: WorkerHealth) -> WorkerHealth:
        """Return the health with the failing shards in it."""
        return with_failing_shards(health, {key: shard for key, (_, shard) in self._in_order()})

    def _in_order(self) -> list[tuple[str, tuple[float, FailingShard]]]:
        """Return the failing shards, the longest failing first."""
        return sorted(self._shards.items(), key=lambda item: (item[1][0], item[0]))


def with_failing_shards(health: WorkerHealth, shards: Mapping[str, FailingShard], more: int = 0) -> WorkerHealth:
    """Return the health with the first few of ``shards``.

    The others are counted, together with ``more`` further shards.
    """
    named = dict(itertools.islice(shards.items(), MOST_FAULTS_TOLD))
    return evolve(health, failing_shards=named, more_failing_shards=len(shards) - len(named) + more)


def joined_health(streams: Mapping[str, WorkerHealth]) -> WorkerHealth:
    """Return the health of a worker, from the health of its ``streams``, by name.

    With several, each reason names its stream.
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
    """Time since the calls of a running worker last succeeded. Owner thread; any thread may call ``judge``.

    Each kind of call has its own watchdog, so that none counts as successful because another is. The readers update
    ``reads``: one success, of any shard, shows that the stream can be read.
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
        """Leases to create that are not known to exist."""
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
        """Record that a call returned, with or without its result."""
        error = answer.error
        match answer.call:
            case ReadRows():
                self._has_scan_failed = error is not None
                _note(self._scans, error, now)
                if answer.value is not None and self._uncreated:
                    self._created({row.lease_key for row in answer.value.rows}, now)
            case ReadSignals():
                _note(self._signals, error, now)
                # Reads of a few worker rows replace most scans, but not a scan that failed.
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
        """Process the answer to a creation. A late one is ignored, because a scan has already shown the lease."""
        if answer.value is not WriteOutcome.UNCERTAIN:
            self._created({lease_key}, now)
        elif lease_key in self._uncreated:
            self._creations.failed(answer.error, now)

    def _created(self, lease_keys: set[str], now: float) -> None:
        """Record that these leases exist or their shards are gone, so that their creation is not awaited any more."""
        if lease_keys & self._uncreated:
            self._uncreated -= lease_keys
            self._creations.succeeded(now)
            if self._uncreated:
                self._creations.asked(now)

    def watch(self, held: Iterable[HeldLease], now: float) -> None:
        """Forget failures for leases that are gone, and note calls that leases wait for; called regularly."""
        leases = list(held)
        if any(lease.reason is not None and lease.reason.cause is Cause.EPOCH for lease in leases):
            self._draws.asked(now)
        else:
            self._draws.succeeded(now)
        # A held lease is renewed; a take that failed is tried again within a few seconds if it is still wanted.
        is_idle = not (leases or self._writes_under_way)
        if is_idle and now - self._last_write_at > self._limit_seconds:
            self._writes.succeeded(now)

    def judge(self, now: float, *troubles: str) -> WorkerHealth:
        """Return unhealthy if a kind of call has not succeeded within the limit or there is a trouble, else healthy."""
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
    """Record the answer to a write. A refusal is an answer: the table works."""
    if answer.value is WriteOutcome.UNCERTAIN:
        watch.failed(answer.error, now)
    else:
        watch.succeeded(now)


def _because(error: Exception | Raised | None) -> str:
    return "" if error is None else f" ({error.text if isinstance(error, Raised) else described(error)})"


NOTABLE_QUEUEING_SECONDS = 1.0
"""Wait for a thread after which a call is named in the shard's status."""

MOST_STACK_LINES = 60
"""The largest number of lines of a stack that are logged, counted from the innermost call."""


class CallUnderway(Protocol):
    """A call into user code, or a read. Both times are monotonic seconds."""

    started_at: float | None
    """Time at which a thread began the call; ``None`` while the call waits for a thread."""
    thread_id: int | None

    @property
    def queued_cause(self) -> Cause:
        """The cause that the shard's status shows while the call waits to begin."""

    @property
    def runs_cause(self) -> Cause:
        """The cause that the shard's status shows while the call runs."""

    @property
    def queued_at(self) -> float:
        """The time from which the wait for the call's end counts."""


class CallWatch:
    """Watches one kind of call of one shard, one call after the other."""

    def __init__(self, shard_id: str, warn_after_millis: int, limit_millis: int) -> None:
        self._shard_id = shard_id
        self._warn_after_seconds = warn_after_millis / 1_000
        self._limit_seconds = limit_millis / 1_000
        self._call: CallUnderway | None = None
        self._next_warning = 0.0
        self._is_given_up = False

    def look(self, call: CallUnderway | None, name: str, now: float) -> str:
        """Log the call if it takes long, again at each doubling; return why it is given up, once it exceeds the limit.

        The reason is returned once for each call. At any other time the result is empty.
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
        """Return the reason that the shard waits for this call, or ``None`` if the wait is not long."""
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
