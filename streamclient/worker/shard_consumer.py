"""The consumer of one shard, which carries out the decisions of ``streamclient.core.consumer``. Owner thread only.

The consumer uses the fetch pool, the executor, timers and the parking store, and reports each result as an event.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from attrs import evolve

from streamclient.base import logs
from streamclient.base.backoff import decision_of
from streamclient.base.reasons import Cause, Raised, Reason
from streamclient.core.consumer import consumer_events
from streamclient.core.consumer.consumer_events import ConsumerEvent, ShardPage, Told
from streamclient.core.consumer.consumer_positions import HandedOutPositions
from streamclient.core.consumer.machine import ConsumerMachine
from streamclient.core.consumer.page_answers import READ_NAME
from streamclient.core.consumer.retention import Backlog
from streamclient.core.consumer.transitions import PUBLIC_STATES, Phase
from streamclient.core.events import AnswerEnd, CheckpointOutcome, Severity, StartConsumer
from streamclient.interfaces import InitializationInput, RetryableAction
from streamclient.model import RecordOrder, ShardInfo, ShardStatus, ShutdownReason, TrimmedRange
from streamclient.records import place_of
from streamclient.worker.checkpointer import CheckpointTicket, RecordProcessorCheckpointer
from streamclient.worker.consumer_parts import IN_TURN, AlwaysInTurn, ConsumerParts, ReadingTurn, park, parked_keys
from streamclient.worker.fetcher import DataFetcher, OldestLeft, ShardSource
from streamclient.worker.handing_over import ProcessorSession, ReceiverSession, session_of
from streamclient.worker.health import CallWatch
from streamclient.worker.owner_loop import Timer
from streamclient.worker.read_calls import PATIENT_SECONDS
from streamclient.worker.statuses import because, consumer_reasons
from streamclient.worker.usercode import HandedCall, ShutdownMarker, UserCall, log_with

_log = logs.logger(__name__)
LEVELS = {Severity.INFO: logging.INFO, Severity.WARNING: logging.WARNING, Severity.ERROR: logging.ERROR}

IDLE_SLACK = 0.05
"""The largest fraction of an idle shard's pause by which the shard may be read early, together with other shards. An
early read delays no record. So fifty idle shards wake the threads only a few times in each pause, not fifty times."""

LEAST_PATIENT_PAUSES = 5
"""The smallest pause, in multiples of ``PATIENT_SECONDS``, after which a read may wait for a busy thread."""

_OF_PARKING = {Cause.CALL_QUEUED: Cause.PARKING_QUEUED, Cause.CALL_RUNS: Cause.PARKING_RUNS}
"""The causes to show while a call of the parking store waits or runs. The keys are the causes for other calls."""


class ShardConsumer:
    """A consumer of one shard, from the command ``StartConsumer`` to the event ``ConsumerStopped``."""

    def __init__(self, start: StartConsumer, around: ConsumerParts, turn: ReadingTurn | None = None) -> None:
        config = around.config
        self.shard_info: ShardInfo = evolve(start.shard_info, table_name=around.table_name)
        self.shard_id: str = start.shard_info.shard_id
        self.own_info: ShardInfo = evolve(start.shard_info, lease_identifier=start.identifier)
        """The shard, with this consumer's own id as ``lease_identifier``. In ``shard_info``, successive consumers of
        one acquisition have the same identifier."""
        self.machine: ConsumerMachine = around.machine(start)
        """The state machine that decides for this consumer. Only this class sends it events; others only read it."""
        self._start = start
        self._around = around
        self._turn = turn or AlwaysInTurn()
        self._events: deque[ConsumerEvent] = deque()
        self._is_handling = False
        self._backlog = Backlog(None if start.progress is None else start.progress.record_micros or None)
        self._session: ProcessorSession | ReceiverSession | None = None
        self._fetcher: DataFetcher | None = None
        self._read_visit = self._end_visit = 0
        self._is_patient = False
        """Whether the next read may wait for a busy thread, because a long pause precedes it anyway."""
        self._call: UserCall | None = None
        self._answer: Any = None
        """The result of the present call of user code. The thread of the call sets it."""
        self._timer: Timer | None = None
        warn_after = config.limits.slow_processor_warning_millis
        self._call_watch = CallWatch(self.shard_id, warn_after, config.limits.user_code_limit_millis)
        self._read_watch = CallWatch(self.shard_id, warn_after, config.limits.read_limit_millis)

    # --- the coordinator's requests ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the consumer: its state machine then gives the command to make the first processor."""
        self._handle(consumer_events.Began())

    def stop(self, reason: ShutdownReason) -> None:
        """Stop the consumer as soon as no user code runs. A stronger reason replaces the reason of an earlier call."""
        self._handle(consumer_events.StopAsked(reason))

    def abandon(self) -> None:
        """Abandon user code that still runs, because the worker ends. From now on, that code can store no position.

        If no thread has begun the present call, the call never runs.
        """
        if self._call is not None:
            self._call.cancel()
        if self._fetcher is not None:
            self._fetcher.discard()
        if self._session is not None:
            self._session.close("the worker ended before the processor did")

    def checkpoint_requested(self) -> None:
        """Record that a checkpoint request was sent. One call of ``checkpoint_answered`` follows."""
        self._handle(consumer_events.CheckpointAsked())

    def checkpoint_answered(self, ticket: CheckpointTicket, outcome: CheckpointOutcome) -> None:
        """Record the outcome of a checkpoint request: whether it was stored, prepared or refused."""
        self._handle(consumer_events.CheckpointAnswered(outcome, ticket.value, ticket.progress, ticket.pending))

    def was_read_up_to(self, micros: int) -> None:
        """Record that all records before the time ``micros`` were read. If a time is already known, that time stays."""
        self._backlog.was_read_up_to(micros, self._around.loop.now())

    def accept_loss(self) -> TrimmedRange | None:
        """Let a shard that stopped because of lost records go on; return the range of the lost records."""
        lost = self.machine.lost
        self._handle(consumer_events.LossAccepted())
        return lost

    def obey(self, orders: tuple[RecordOrder, ...]) -> None:
        """Obey ``orders``, the operators' present orders about records, instead of all earlier orders."""
        self._handle(consumer_events.OrdersGiven(orders))

    def end_judged(self, answer: AnswerEnd) -> None:
        """Record whether the list of shards shows the end of the shard."""
        self._handle(consumer_events.EndJudged(self._end_visit, answer.is_shown, answer.since_read, answer.detail))

    def status(self, now: float) -> ShardStatus:
        """Return the status of the shard at the monotonic time ``now``, with the reasons for which it waits."""
        machine = self.machine
        report = self._around.facts.report(self._backlog, now, machine.backoff.poll_interval)
        status = ShardStatus(
            shard_id=self.shard_id,
            state=PUBLIC_STATES[machine.phase],
            checkpoint=machine.stored,
            failures=machine.backoff.failures,
            user_code_seconds=0.0 if self._call is None else self._call.running_seconds(now),
            lag_seconds=report.lag_seconds,
            time_to_loss_seconds=report.time_to_loss_seconds,
            forecast=report.forecast,
            lost=machine.lost,
        )
        is_reading = self._fetcher is not None and self._fetcher.reading is not None
        return because(status, tuple(consumer_reasons(machine, self._hold_ups(now), now, is_reading=is_reading)))

    def watch(self, now: float) -> None:
        """Log slow calls; if a call for the shard exceeds its limit, report that the consumer makes no progress."""
        name = "" if self._call is None else self._call.name
        reasons = (
            self._call_watch.look(self._call, name, now),
            self._read_watch.look(None if self._fetcher is None else self._fetcher.reading, READ_NAME, now),
        )
        for reason in filter(None, reasons):
            if not self.machine.is_lost:
                self._around.stalled(self.own_info, reason)

    def reads_for(self, now: float) -> float:
        """Return the seconds for which the awaited read has been under way; 0.0 if no read is awaited."""
        reading = self._fetcher.reading if self._fetcher is not None and self.machine.phase is Phase.READING else None
        return 0.0 if reading is None or reading.started_at is None else now - reading.started_at

    @property
    def has_set_aside(self) -> bool:
        """Whether records came after the last requested checkpoint, and all of them were parked or skipped."""
        return self._session is not None and self._session.checkpointer.has_set_aside

    @property
    def ahead_bytes(self) -> int:
        """The size of the pages read ahead, in bytes."""
        return 0 if self._fetcher is None else self._fetcher.ahead_bytes

    def __repr__(self) -> str:
        return repr(self.machine)

    def _hold_ups(self, now: float) -> Iterator[Reason]:
        """Yield the reasons for which the shard waits: for its turn, a slow call, or a checkpoint."""
        phase, turn, delay = self.machine.phase, self._turn.hold_up(), None
        if self._call is not None:
            delay = self._call_watch.delay_reason(self._call, self._call.name, now)
            if delay is not None and phase is Phase.PARKING:
                delay = evolve(delay, cause=_OF_PARKING[delay.cause])
        elif phase is Phase.READING and self._fetcher is not None:
            delay = self._read_watch.delay_reason(self._fetcher.reading, READ_NAME, now)
        elif self.machine.open_requests and phase in (Phase.STARTING, Phase.CLOSING):
            delay = Reason(Cause.CHECKPOINT)
        yield from filter(None, (turn, delay))

    # --- events and commands -------------------------------------------------------------------------------------

    def _handle(self, event: ConsumerEvent) -> None:
        """Handle ``event`` first, and then all events that result from ``event``, in order of arrival."""
        self._events.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        machine = self.machine
        try:
            while self._events:
                visit = machine.visit
                commands = machine.handle(self._events.popleft(), self._around.loop.now())
                if machine.visit != visit:
                    self._phase_changed()
                for command in commands:
                    _CARRY_OUT[type(command)](self, command)
        finally:
            self._is_handling = False

    def _phase_changed(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.machine.phase not in IN_TURN:
            self._turn.end()

    # --- the processor -------------------------------------------------------------------------------------------

    @property
    def _present(self) -> ProcessorSession | ReceiverSession:
        """The object that calls the present processor or receiver; raise if the consumer has neither."""
        if self._session is None:
            raise ValueError(f"{self!r} has no processor")
        return self._session

    def _new_processor(self, command: consumer_events.NewProcessor) -> None:
        around, number = self._around, command.number
        checkpointer = RecordProcessorCheckpointer(
            self.shard_id,
            HandedOutPositions(self.shard_id, command.initial, command.progress),
            partial(around.send_checkpoint, self.own_info),
            around.wait,
            around.config.limits.checkpoint_timeout_millis,
            epoch=self.shard_info.epoch,
        )
        marker = ShutdownMarker(
            lambda reason: around.loop.post(partial(self._handle, consumer_events.Marked(number, reason)))
        )
        given = InitializationInput(
            self.shard_info,
            command.initial,
            checkpointer,
            marker,
            command.pending,
            progress=command.progress,
            lost_after=command.lost_after,
            fleet_has_processed=self._start.fleet_has_processed,
        )
        self._session = session_of(given, around.make_processor, checkpointer)
        self._fetcher = DataFetcher(
            ShardSource(
                stream_api=around.stream_api,
                stream_id=self.shard_info.stream_id,
                shard_id=self.shard_id,
                limit=around.max_records,
                measured=around.instruments.measured,
            ),
            loop=around.loop,
            reads=around.reads,
            loss_micros=partial(around.facts.loss_micros, self._backlog),
            budget=around.prefetch,
            most_ahead_bytes=around.config.prefetch.prefetch_bytes,
        )

    def _call_processor(self, name: str, work: Callable[..., None]) -> None:
        """Run ``work`` in the executor, or hand the call over to the receiver if the shard has a receiver."""
        if isinstance(self._session, ReceiverSession):
            self._call = self._around.user_code.hand_over(name, self.shard_id, work, self._returned, self._given_back)
        else:
            self._start_call(name, work)

    def _start_call(self, name: str, function: Callable[[], None]) -> None:
        self._answer = None
        self._call = self._around.user_code.run(name, self.shard_id, function, self._returned)

    def _returned(self, error: Raised | None) -> None:
        call, self._call = self._call, None
        if call is not None and call.started_at is not None:
            what = None if error is None else error.error
            if error is not None and call.name == "process_records":
                self._present.checkpointer.take_back()
            self._around.instruments.user_code_ended(self.shard_id, call.name, call.started_at, what)
        self._handle(consumer_events.CallReturned(error, self._answer))

    def _given_back(self) -> None:
        self._call = None
        self._handle(consumer_events.CallTakenBack())

    def _initialize(self, command: consumer_events.Initialize) -> None:
        def initialize(*call: HandedCall) -> None:
            try:
                self._present.initialize(*call)
            finally:
                self._answer = self._present.is_made

        self._call_processor("initialize", initialize)

    def _process(self, command: consumer_events.ProcessRecords) -> None:
        self._call_processor("process_records", partial(self._present.process, command.records, command.attempt))

    def _shut_down(self, command: consumer_events.ShutDown) -> None:
        self._call_processor("shutdown", partial(self._present.shutdown, command.reason))

    def _ask_strategy(self, command: consumer_events.AskStrategy) -> None:
        def ask() -> None:
            strategy = self._around.config.task_retry_strategy
            if strategy is not None:
                self._answer = decision_of(strategy, RetryableAction.TASK_PROCESS, command.error, command.retries)

        self._start_call("retry_strategy", ask)

    def _ask_parked_keys(self, command: consumer_events.AskParkedKeys) -> None:
        def ask() -> None:
            store = self._around.config.failure_policy.parking
            self._answer = [] if store is None else parked_keys(store, self.shard_info, self._around)

        self._start_call("parked_keys", ask)

    def _park(self, command: consumer_events.Park) -> None:
        def call() -> None:
            self._answer = park(command, self.shard_info, self._around)

        self._start_call("park", call)

    def _take_back(self, command: consumer_events.TakeBack) -> None:
        if self._call is not None and self._call.cancel():
            self._call = None
            self._handle(consumer_events.CallTakenBack())

    # --- reading and time ----------------------------------------------------------------------------------------

    @property
    def _reader(self) -> DataFetcher:
        """The fetcher of the present processor; raise if the consumer has no fetcher."""
        if self._fetcher is None:
            raise ValueError(f"{self!r} has not started reading")
        return self._fetcher

    def _read(self, command: consumer_events.Read) -> None:
        self._read_visit = command.visit
        is_patient, self._is_patient = self._is_patient, False
        fetch = partial(self._reader.fetch, command.position, self._page_came, self._read_failed, is_patient=is_patient)
        self._turn.ask(fetch)

    def _page_came(self, page: ShardPage) -> None:
        around, now = self._around, self._around.loop.now()
        around.facts.reads.succeeded(now)
        if page.records:
            first_micros = place_of(page.records, 0).timestamp_micros
            around.page_came(self.shard_id, self._backlog.unread_micros, first_micros)
            self._backlog.came(first_micros, now)
            around.facts.saw(place_of(page.records, -1).timestamp_micros, now)
        self._handle(consumer_events.PageRead(self._read_visit, page, self._reader.read_at))

    def _read_failed(self, error: Raised) -> None:
        self._handle(consumer_events.ReadFailed(self._read_visit, error))

    def _read_ahead(self, command: consumer_events.ReadAhead) -> None:
        self._reader.read_ahead(command.page)

    def _drop_reading(self, command: consumer_events.DropReading) -> None:
        self._reader.discard()

    def _find_first_left(self, command: consumer_events.FindFirstLeft) -> None:
        def found(left: OldestLeft) -> None:
            self._handle(consumer_events.FirstLeftFound(command.visit, left.place, left.is_known))

        def failed(error: Raised) -> None:
            self._handle(consumer_events.FirstLeftUnknown(command.visit, error))

        self._reader.find_first_left(found, failed)

    def _confirm_end(self, command: consumer_events.ConfirmEnd) -> None:
        self._end_visit = command.visit
        if self._around.confirm_end(self.own_info, command.read_at):
            self._handle(consumer_events.EndJudged(command.visit, is_shown=True))

    def _wait(self, command: consumer_events.Wait) -> None:
        if command.visit != self.machine.visit:
            return
        slack_seconds = command.seconds * IDLE_SLACK if command.is_idle else 0.0
        self._is_patient = command.is_idle and command.seconds >= PATIENT_SECONDS * LEAST_PATIENT_PAUSES
        time_came = partial(self._time_came, command.visit)
        self._timer = self._around.loop.call_later(command.seconds, time_came, slack_seconds=slack_seconds)

    def _time_came(self, visit: int) -> None:
        """End the pause that the state machine began in its ``visit``.

        Before a read, or a new try with a page, wait for the shard's turn; a stop ends this wait.
        """
        self._timer = None
        go_on = partial(self._handle, consumer_events.TimeCame(visit))
        if self.machine.phase is Phase.WAITING:
            self._turn.ask(go_on)
        else:
            go_on()

    # --- the checkpointer ----------------------------------------------------------------------------------------

    def _offer(self, command: consumer_events.Offer) -> None:
        self._present.checkpointer.offer(command.position, command.progress, command.last)

    def _withdraw(self, command: consumer_events.Withdraw) -> None:
        self._present.checkpointer.withdraw(command.position)

    def _permit(self, command: consumer_events.Permit) -> None:
        self._present.checkpointer.permit(command.position, command.progress, command.last)

    def _retract(self, command: consumer_events.Retract) -> None:
        self._present.checkpointer.retract()

    def _store_set_aside(self, command: consumer_events.StoreSetAside) -> None:
        self._present.checkpointer.store_set_aside()

    def _close_checkpoints(self, command: consumer_events.CloseCheckpoints) -> None:
        self._present.close(command.because)

    # --- statistics and logs -------------------------------------------------------------------------------------

    def _tell(self, command: consumer_events.Tell) -> None:
        instruments, shard_id = self._around.instruments, self.shard_id
        match command.what:
            case Told.ACCEPTED:
                instruments.accepted(shard_id, command.records)
            case Told.PARKED:
                instruments.parked(shard_id, command.records)
            case Told.REDELIVERED:
                instruments.redelivered()
            case Told.RESTARTED:
                instruments.restarted()
            case Told.END_NOT_STORED:
                instruments.end_not_stored()
            case Told.LOSS_GIVEN_UP:
                self._backlog.forget()
            case Told.CAUGHT_UP | Told.END_REACHED:
                now = self._around.loop.now()
                self._backlog.caught_up(self._around.facts.service_micros(now), now)
            case Told.MAY_FOLLOW:
                self._backlog.may_follow()
        if command.what in (Told.CAUGHT_UP, Told.MAY_FOLLOW):
            instruments.found_nothing(shard_id)

    def _page_done(self, command: consumer_events.PageDone) -> None:
        self._turn.end()
        self._around.instruments.page_done(self.shard_id, command.page.body_bytes)
        if command.last is not None:
            self._backlog.dealt_with(command.last.timestamp_micros, self._around.loop.now())

    def _order_ended(self, command: consumer_events.OrderEnded) -> None:
        self._around.ended_order(self.own_info, command)

    def _tell_outage(self, command: consumer_events.TellOutage) -> None:
        around, raised, is_read = self._around, command.error, command.of == READ_NAME
        if is_read:
            around.facts.reads.failed(raised, around.loop.now())
        kind = (command.of, type(raised.error).__name__, raised.code)
        around.outages.log(logging.WARNING if is_read else logging.ERROR, kind, "%s", command.text)

    def _log_line(self, command: consumer_events.LogLine) -> None:
        log_with(_log, LEVELS[command.severity], command.text, command.error)

    def _ended(self, command: consumer_events.Ended) -> None:
        self._around.ended(self.own_info, command.end)


_CARRY_OUT: Mapping[type, Callable[[ShardConsumer, Any], None]] = {
    consumer_events.Initialize: ShardConsumer._initialize,
    consumer_events.ProcessRecords: ShardConsumer._process,
    consumer_events.AskParkedKeys: ShardConsumer._ask_parked_keys,
    consumer_events.Park: ShardConsumer._park,
    consumer_events.AskStrategy: ShardConsumer._ask_strategy,
    consumer_events.ShutDown: ShardConsumer._shut_down,
    consumer_events.TakeBack: ShardConsumer._take_back,
    consumer_events.Read: ShardConsumer._read,
    consumer_events.ReadAhead: ShardConsumer._read_ahead,
    consumer_events.DropReading: ShardConsumer._drop_reading,
    consumer_events.FindFirstLeft: ShardConsumer._find_first_left,
    consumer_events.ConfirmEnd: ShardConsumer._confirm_end,
    consumer_events.Wait: ShardConsumer._wait,
    consumer_events.NewProcessor: ShardConsumer._new_processor,
    consumer_events.Offer: ShardConsumer._offer,
    consumer_events.Withdraw: ShardConsumer._withdraw,
    consumer_events.Permit: ShardConsumer._permit,
    consumer_events.Retract: ShardConsumer._retract,
    consumer_events.StoreSetAside: ShardConsumer._store_set_aside,
    consumer_events.CloseCheckpoints: ShardConsumer._close_checkpoints,
    consumer_events.Tell: ShardConsumer._tell,
    consumer_events.PageDone: ShardConsumer._page_done,
    consumer_events.OrderEnded: ShardConsumer._order_ended,
    consumer_events.TellOutage: ShardConsumer._tell_outage,
    consumer_events.LogLine: ShardConsumer._log_line,
    consumer_events.Ended: ShardConsumer._ended,
}
