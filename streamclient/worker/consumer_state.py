"""What a shard's consumer remembers, and the few moves that all its phases share. Owner thread only."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from functools import partial

from attrs import evolve, field, frozen

from streamclient.config import ClientConfig
from streamclient.core.events import ConsumerEnd, StartConsumer
from streamclient.core.lifecycle import PUBLIC_STATES, Outcome, Phase, next_phase
from streamclient.core.position import Position
from streamclient.core.retention import Backlog
from streamclient.core.retry import decision_of
from streamclient.interfaces import IRecordProcessor, RetryableAction
from streamclient.model import CheckpointPosition, ShardInfo, ShardStatus, ShutdownReason, TrimmedRange
from streamclient.outages import OutageLog
from streamclient.reasons import Cause, Reason
from streamclient.records import SequenceInfo
from streamclient.stream.api import StreamApi
from streamclient.worker.backoff import ConsumerBackoff
from streamclient.worker.checkpointer import CheckpointTicket, RecordProcessorCheckpointer
from streamclient.worker.fetcher import DataFetcher, ShardSource
from streamclient.worker.health import CallWatchdog
from streamclient.worker.instruments import Instruments
from streamclient.worker.loop import OwnerLoop, Timer
from streamclient.worker.positions import NO_PROGRESS, HandedOutPositions
from streamclient.worker.prefetch import PrefetchBudget
from streamclient.worker.reads import ReadLane, ReadQueue
from streamclient.worker.session import ProcessorSession
from streamclient.worker.statuses import because
from streamclient.worker.stream_facts import StreamFacts
from streamclient.worker.usercode import UserCall, UserCode
from streamclient.worker.watchdog import CallWatch

_log = logging.getLogger(__name__)

LONG_READ_SECONDS = 5.0
"""A read that takes longer counts as one that is not answered; a page takes milliseconds."""

READ_NAME = "reading"
"""How statuses and logs name a read."""

STORED_REASONS = (ShutdownReason.ZOMBIE, ShutdownReason.STOLEN, ShutdownReason.PAUSED, ShutdownReason.PROCESS_DONE)
"""Reasons after which this consumer ends; with the others, a new processor starts."""

_OF_PARKING: Mapping[Cause, Cause] = {
    Cause.CALL_QUEUED: Cause.PARKING_QUEUED,
    Cause.CALL_RUNS: Cause.PARKING_RUNS,
}
"""A call of the parking store is named as such."""


@frozen(kw_only=True)
class Surroundings:
    """What every consumer of a worker shares."""

    loop: OwnerLoop
    user_code: UserCode
    fetch_pool: Executor
    """For looking around; records are read through ``reads``."""
    reads: ReadQueue
    prefetch: PrefetchBudget
    stream_api: StreamApi
    make_processor: Callable[[], IRecordProcessor]
    config: ClientConfig
    table_name: str
    max_records: int
    dice: random.Random
    facts: StreamFacts
    wall_micros: Callable[[], int]
    wait: Callable[[threading.Event, float], bool]
    send_checkpoint: Callable[[ShardInfo, CheckpointTicket, float], bool]
    ended: Callable[[ShardInfo, ConsumerEnd], None]
    stalled: Callable[[ShardInfo, str], None]
    """The consumer makes no progress; the text says why."""
    instruments: Instruments
    outages: OutageLog = field(factory=lambda: OutageLog(_log))
    """One outage strikes all shards of a worker."""


class ConsumerState:
    """Fields, status and moves of one tenancy."""

    def __init__(self, start: StartConsumer, around: Surroundings) -> None:
        config = around.config
        self.shard_info = evolve(start.shard_info, table_name=around.table_name)
        self.shard_id = start.shard_info.shard_id
        self.own_info = evolve(start.shard_info, lease_identifier=start.identifier)
        """By which the worker knows this one consumer; the lease's identifier is that of several in a row."""
        self.around = around
        self.backoff = ConsumerBackoff(config, around.dice)
        self.stop_reason: ShutdownReason | None = None
        """Why somebody asked it to end, if anybody did."""
        self._phase = Phase.BACKING_OFF
        self._visit = 0
        self._stored = start.checkpoint
        self._progress = start.progress or NO_PROGRESS
        self._pending = start.pending
        self._backlog = Backlog(self._progress.record_micros or None)
        self._session: ProcessorSession | None = None
        self._fetcher: DataFetcher | None = None
        self._call: UserCall | None = None
        self._timer: Timer | None = None
        self._closing: ShutdownReason | None = None
        self._close_error = ""
        self._halt_reason: Reason | None = None
        self._lost: TrimmedRange | None = None
        self._last_processed: SequenceInfo | None = None
        self._open_requests = 0
        self._reason: Reason | None = None
        self._resume_at: float | None = None
        self._call_watch = CallWatch(
            self.shard_id,
            Cause.CALL_QUEUED,
            Cause.CALL_RUNS,
            config.slow_processor_warning_millis,
            config.user_code_limit_millis,
        )
        self._read_watch = CallWatch(
            self.shard_id,
            Cause.READ_QUEUED,
            Cause.READ_RUNS,
            config.slow_processor_warning_millis,
            config.read_limit_millis,
        )

    def status(self, now: float) -> ShardStatus:
        """What it is doing."""
        report = self.around.facts.report(self._backlog, now)
        status = ShardStatus(
            shard_id=self.shard_id,
            state=PUBLIC_STATES[self._phase],
            checkpoint=self._stored,
            failures=self.backoff.failures,
            user_code_seconds=0.0 if self._call is None else self._call.running_seconds(now),
            lag_seconds=report.lag_seconds,
            time_to_loss_seconds=report.time_to_loss_seconds,
            forecast=report.forecast,
            lost=self._lost,
        )
        return because(status, tuple(self._present_reasons(now)))

    def watch(self, now: float) -> None:
        """Log what takes long, and have the lease let go for what takes too long."""
        name = "" if self._call is None else self._call.name
        reasons = (
            self._call_watch.look(self._call, name, now),
            self._read_watch.look(None if self._fetcher is None else self._fetcher.reading, READ_NAME, now),
        )
        for reason in filter(None, reasons):
            if not self.is_lost:
                self.around.stalled(self.own_info, reason)

    def reads_for(self, now: float) -> float:
        """How long the read that it waits for has been under way, in seconds; 0.0 if it waits for none."""
        reading = self._fetcher.reading if self._fetcher is not None and self._phase is Phase.READING else None
        return 0.0 if reading is None or reading.started_at is None else now - reading.started_at

    @property
    def ahead_bytes(self) -> int:
        """Size of what was read ahead."""
        return 0 if self._fetcher is None else self._fetcher.ahead_bytes

    @property
    def is_lost(self) -> bool:
        """Whether the lease is gone and only user code that still runs keeps this consumer."""
        return self.stop_reason is ShutdownReason.ZOMBIE

    def __repr__(self) -> str:
        stop = self.stop_reason and self.stop_reason.value
        return f"<consumer of {self.shard_id}, {self._phase.value}, stop={stop}>"

    # --- tools ---------------------------------------------------------------------------------------------------

    @property
    def session(self) -> ProcessorSession:
        """The present processor with its checkpointer; there must be one."""
        if self._session is None:
            raise ValueError(f"{self!r} has no processor")
        return self._session

    @property
    def fetcher(self) -> DataFetcher:
        """Where reading stands; it must have started."""
        if self._fetcher is None:
            raise ValueError(f"{self!r} has not started reading")
        return self._fetcher

    def new_checkpointer(self, initial: str) -> RecordProcessorCheckpointer:
        """Checkpoints of one more processor that starts at a position."""
        return RecordProcessorCheckpointer(
            self.shard_id,
            HandedOutPositions(self.shard_id, initial, self._progress),
            partial(self.around.send_checkpoint, self.own_info),
            self.around.wait,
            self.around.config.checkpoint_timeout_millis,
            epoch=self.shard_info.epoch,
        )

    def new_fetcher(self, position: Position) -> DataFetcher:
        """Reading of this shard, from a position on."""
        around = self.around
        return DataFetcher(
            ShardSource(
                stream_api=around.stream_api,
                stream_id=self.shard_info.stream_id,
                shard_id=self.shard_id,
                limit=around.max_records,
                measured=around.instruments.measured,
            ),
            position,
            loop=around.loop,
            pool=ReadLane(around.reads, partial(around.facts.loss_micros, self._backlog)),
            budget=around.prefetch,
            most_ahead_bytes=around.config.prefetch_bytes,
        )

    def move(self, outcome: Outcome) -> None:
        """Change the phase; answers and timers of the visit that ends are ignored from now on."""
        self._phase = next_phase(self._phase, outcome)
        self._visit += 1
        self._resume_at = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def pause(self, seconds: float, then: Callable[[], None]) -> None:
        """Do something after a while, unless the phase changes before."""
        self._resume_at = self.around.loop.now() + seconds
        self._timer = self.around.loop.call_later(seconds, then)

    def call_user_code(
        self, name: str, function: Callable[[], None], done: Callable[[BaseException | None], None]
    ) -> None:
        """Run a function in the user's executor; ``done`` follows here with what it raised."""

        def finished(error: BaseException | None) -> None:
            call, self._call = self._call, None
            if call is not None and call.started_at is not None:
                self.around.instruments.user_code_ended(self.shard_id, name, call.started_at, error)
            done(error)

        self._call = self.around.user_code.run(name, self.shard_id, function, finished)

    def decide_on_retry(
        self, error: Exception, retries: int, ordinary: Callable[[], float | None], then: Callable[[float | None], None]
    ) -> None:
        """Call ``then`` with the pause before a retry in seconds, or ``None`` for no retry.

        The ordinary one, at once; or what the user's strategy says, which is user code and may take its time. If that
        fails, the reason says so, and the ordinary pause is taken.
        """
        strategy = self.around.config.task_retry_strategy
        if strategy is None:
            then(ordinary())
            return
        answers: list[float | None] = []

        def answered(problem: BaseException | None) -> None:
            if problem is not None:
                text = f"the retry strategy failed, so the ordinary pause is taken: {described(problem)}"
                if self._reason is not None:
                    self.say(evolve(self._reason, detail=f"{self._reason.detail}; {text}"))
                _log.error("shard %s: %s", self.shard_id, text, exc_info=problem)
            then(ordinary() if problem is not None else answers[0])

        def ask() -> None:
            answers.append(decision_of(strategy, RetryableAction.TASK_PROCESS, error, retries))

        self.call_user_code("retry_strategy", ask, answered)

    def report_failure(self, what: str, error: BaseException, level: int = logging.ERROR) -> None:
        """Name a failure of user code in the status and the log; after the lease is lost it is expected and quiet."""
        count = self.backoff.failures
        when = times(count) if count else "at its end"  # what fails then is no failure in a row
        self.say(Reason(Cause.PROCESSOR_FAILED, what, f"{when}: {what}: {described(error)}"))
        level = logging.INFO if self.is_lost else level
        trace = error if level >= logging.ERROR else None
        in_a_row = f" (failure {count} in a row)" if count else ""
        _log.log(level, "shard %s: %s%s: %s", self.shard_id, what, in_a_row, error, exc_info=trace)

    def say(self, reason: Reason) -> None:
        """Why the shard does not move."""
        self._reason = reason

    def moves(self) -> None:
        """What held the shard up is over."""
        self._reason = None

    def _present_reasons(self, now: float) -> Iterator[Reason]:
        """Everything that holds the shard up, the most important first."""
        if self.is_lost:
            yield Reason(Cause.LEASE_LOST)
        if self._reason is not None:
            yield self._reason
        yield from self._hold_ups(now)
        following = self._next_try(now)
        if self._reason is not None and following is not None:
            yield following

    def _next_try(self, now: float) -> Reason | None:
        """When what failed is tried again: told with the failure, so that nobody hears of one without the other."""
        if self._resume_at is not None:
            what = "start" if self._phase is Phase.BACKING_OFF else "attempt"
            return Reason(Cause.NEXT_TRY, what, f"{max(0.0, self._resume_at - now):.1f} s")
        is_replaced = self._phase is Phase.CLOSING and self._closing is ShutdownReason.PROCESS_RESTART
        if is_replaced and not self._is_final and not self._halt_reason:
            return Reason(Cause.NEXT_TRY, "start", f"at least {self.backoff.next_restart_seconds:.1f} s")
        return self._present_try()

    def _present_try(self) -> Reason | None:
        """What failed is tried again just now."""
        if self._phase is Phase.STARTING:
            return Reason(Cause.PRESENT_TRY, "start")
        is_parked = self._reason is not None and self._reason.cause is Cause.PARKING_FAILED
        is_parking = self._phase is Phase.PARKING and is_parked
        is_reading = self._phase is Phase.READING and self.fetcher.reading is not None
        if is_parking or is_reading or self._phase is Phase.DELIVERING:
            return Reason(Cause.PRESENT_TRY, "attempt")
        return None

    @property
    def _is_final(self) -> bool:
        """Whether no other processor follows the one that is closed."""
        return self._is_finished or self.stop_reason in STORED_REASONS

    @property
    def _is_finished(self) -> bool:
        return self._stored == CheckpointPosition.SHARD_END

    def _hold_ups(self, now: float) -> Iterator[Reason]:
        """What the present phase waits for, as far as it is worth telling."""
        closing = self._closing if self._phase is Phase.CLOSING else None
        if closing not in (None, ShutdownReason.ZOMBIE) and self._reason is None:
            yield Reason(Cause.CLOSING, closing.value)
        delay = None
        if self._call is not None:
            delay = self._call_watch.delay_reason(self._call, self._call.name, now)
            if delay is not None and self._phase is Phase.PARKING:
                delay = evolve(delay, cause=_OF_PARKING[delay.cause])
        elif self._phase is Phase.READING:
            delay = self._read_watch.delay_reason(self.fetcher.reading, READ_NAME, now)
        elif self._open_requests and self._phase in (Phase.STARTING, Phase.CLOSING):
            delay = Reason(Cause.CHECKPOINT)
        if delay is not None:
            yield delay


def watch_reads(reads: CallWatchdog, consumers: Iterable[ConsumerState], now: float) -> None:
    """Note reads that fail, or have not been answered for a while: a client may repeat one for minutes by itself."""
    watched = list(consumers)
    if any(consumer.reads_for(now) > LONG_READ_SECONDS for consumer in watched):
        reads.failed(None, now)
    elif not any(consumer.backoff.read_failures for consumer in watched):
        reads.succeeded(now)  # nobody waits for one, or not any more


def times(count: int) -> str:
    """Once, or n times."""
    return "once" if count == 1 else f"{count} times"


def described(error: BaseException) -> str:
    """Type and text of an error, for statuses and logs."""
    return f"{type(error).__name__}: {error}"
