"""What a shard's consumer remembers, and the few moves that all its phases share. Owner thread only."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from functools import partial

from attrs import evolve, frozen

from streamclient.config import ClientConfig
from streamclient.core.events import ConsumerEnd, StartConsumer
from streamclient.core.lifecycle import PUBLIC_STATES, Outcome, Phase, next_phase
from streamclient.core.position import Position
from streamclient.core.retention import Backlog
from streamclient.interfaces import IRecordProcessor
from streamclient.model import CheckpointPosition, ReasonKind, ShardInfo, ShardStatus, ShutdownReason, TrimmedRange
from streamclient.records import SequenceInfo
from streamclient.stream.api import StreamApi
from streamclient.worker.backoff import ConsumerBackoff
from streamclient.worker.checkpointer import CheckpointTicket, RecordProcessorCheckpointer
from streamclient.worker.fetcher import DataFetcher, ShardSource
from streamclient.worker.instruments import Instruments
from streamclient.worker.loop import OwnerLoop, Timer
from streamclient.worker.positions import NO_PROGRESS, HandedOutPositions
from streamclient.worker.prefetch import PrefetchBudget
from streamclient.worker.reads import ReadLane, ReadQueue
from streamclient.worker.session import ProcessorSession
from streamclient.worker.stream_facts import StreamFacts
from streamclient.worker.usercode import UserCall, UserCode
from streamclient.worker.watchdog import CallWatch

_log = logging.getLogger(__name__)

READ_NAME = "reading"
"""How statuses and logs name a read."""

STORED_REASONS = (ShutdownReason.ZOMBIE, ShutdownReason.STOLEN, ShutdownReason.PAUSED, ShutdownReason.PROCESS_DONE)
"""Reasons after which this consumer ends; with the others, a new processor starts."""

_CLOSING_REASONS: Mapping[ShutdownReason | None, str] = {
    ShutdownReason.STOLEN: "being handed over",
    ShutdownReason.PAUSED: "being paused",
    ShutdownReason.TERMINATE: "the shard has ended",
    ShutdownReason.PROCESS_DONE: "its processor is done with it",
    ShutdownReason.PROCESS_RESTART: "its processor is being replaced",
}
"""By the reason that the processor is told."""


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


class ConsumerState:
    """Fields, status and moves of one tenancy."""

    def __init__(self, start: StartConsumer, around: Surroundings) -> None:
        config = around.config
        self.shard_info = evolve(start.shard_info, table_name=around.table_name)
        self.shard_id = start.shard_info.shard_id
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
        self._halt_reason = ""
        self._lost: TrimmedRange | None = None
        self._last_processed: SequenceInfo | None = None
        self._open_requests = 0
        self._reason = ""
        self._reason_kind = ReasonKind.NONE
        self._resume_at: float | None = None
        self._call_watch = CallWatch(
            self.shard_id, "executor", config.slow_processor_warning_millis, config.user_code_limit_millis
        )
        self._read_watch = CallWatch(
            self.shard_id, "fetch pool", config.slow_processor_warning_millis, config.read_limit_millis
        )

    def status(self, now: float) -> ShardStatus:
        """What it is doing."""
        report = self.around.facts.report(self._backlog, now)
        kind, reason = self._present_reason(now)
        return ShardStatus(
            shard_id=self.shard_id,
            state=PUBLIC_STATES[self._phase],
            checkpoint=self._stored,
            reason=reason,
            failures=self.backoff.failures,
            reason_kind=kind,
            user_code_seconds=0.0 if self._call is None else self._call.running_seconds(now),
            lag_seconds=report.lag_seconds,
            time_to_loss_seconds=report.time_to_loss_seconds,
            forecast=report.forecast,
            lost=self._lost,
        )

    def watch(self, now: float) -> None:
        """Log what takes long, and have the lease let go for what takes too long."""
        name = "" if self._call is None else self._call.name
        reasons = (
            self._call_watch.look(self._call, name, now),
            self._read_watch.look(None if self._fetcher is None else self._fetcher.reading, READ_NAME, now),
        )
        for reason in filter(None, reasons):
            if not self.is_lost:
                self.around.stalled(self.shard_info, reason)

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
            partial(self.around.send_checkpoint, self.shard_info),
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

    def report_failure(self, what: str, error: BaseException, level: int = logging.ERROR) -> None:
        """Name a failure of user code in the status and the log; after the lease is lost it is expected and quiet."""
        count = self.backoff.failures
        self.say(f"processor failed {times(count)}: {what}: {described(error)}", ReasonKind.PROCESSOR)
        level = logging.INFO if self.is_lost else level
        trace = error if level >= logging.ERROR else None
        _log.log(level, "shard %s: %s (failure %s in a row): %s", self.shard_id, what, count, error, exc_info=trace)

    def say(self, reason: str, kind: ReasonKind) -> None:
        """Why the shard does not move."""
        self._reason, self._reason_kind = reason, kind

    def moves(self) -> None:
        """What held the shard up is over."""
        self.say("", ReasonKind.NONE)

    def _present_reason(self, now: float) -> tuple[ReasonKind, str]:
        """Everything that holds the shard up; the first of it gives the kind."""
        found = [(ReasonKind.LEASE, "the lease is lost")] if self.is_lost else []
        if self._reason:
            found.append((self._reason_kind, self._reason))
        found += self._hold_ups(now)
        following = self._next_try(now)
        if self._reason and following:
            found.append((self._reason_kind, following))
        return (found[0][0] if found else ReasonKind.NONE), "; ".join(text for _, text in found)

    def _next_try(self, now: float) -> str:
        """When what failed is tried again: told with the failure, so that nobody hears of one without the other."""
        if self._resume_at is not None:
            what = "start" if self._phase is Phase.BACKING_OFF else "attempt"
            return f"next {what} in {max(0.0, self._resume_at - now):.1f} s"
        is_replaced = self._phase is Phase.CLOSING and self._closing is ShutdownReason.PROCESS_RESTART
        if is_replaced and not self._is_final and not self._halt_reason:
            return f"next start in at least {self.backoff.next_restart_seconds:.1f} s"
        return self._present_try()

    def _present_try(self) -> str:
        """What failed is tried again just now."""
        if self._phase is Phase.STARTING:
            return "the next start is under way"
        is_parking = self._phase is Phase.PARKING and self._reason_kind is ReasonKind.PARKING
        is_reading = self._phase is Phase.READING and self.fetcher.reading is not None
        return "the next attempt is under way" if is_parking or is_reading or self._phase is Phase.DELIVERING else ""

    @property
    def _is_final(self) -> bool:
        """Whether no other processor follows the one that is closed."""
        return self._is_finished or self.stop_reason in STORED_REASONS

    @property
    def _is_finished(self) -> bool:
        return self._stored == CheckpointPosition.SHARD_END

    def _hold_ups(self, now: float) -> Iterator[tuple[ReasonKind, str]]:
        """What the present phase waits for, as far as it is worth telling."""
        if self._phase is Phase.CLOSING and self._closing in _CLOSING_REASONS and not self._reason:
            yield ReasonKind.LEASE, _CLOSING_REASONS[self._closing]
        if self._call is not None:
            delay = self._call_watch.delay_reason(self._call, self._call.name, now)
            if delay and self._phase is Phase.PARKING:
                yield ReasonKind.PARKING, f"waits for the parking store: {delay}"
            elif delay:
                yield ReasonKind.USER_CODE, delay
        elif self._phase is Phase.READING:
            delay = self._read_watch.delay_reason(self.fetcher.reading, READ_NAME, now)
            if delay:
                yield ReasonKind.READING, delay
        elif self._open_requests and self._phase in (Phase.STARTING, Phase.CLOSING):
            yield ReasonKind.CHECKPOINT, "waits for the answer to a checkpoint"


def times(count: int) -> str:
    """Once, or n times."""
    return "once" if count == 1 else f"{count} times"


def described(error: BaseException) -> str:
    """Type and text of an error, for statuses and logs."""
    return f"{type(error).__name__}: {error}"
