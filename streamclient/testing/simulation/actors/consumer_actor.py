"""The reader of one shard in a simulated process: the production ``ConsumerMachine`` with simulated calls.

The code around the state machine does what ``streamclient.worker.shard_consumer`` does. The user code is
``SimulatedProcessor``. A call into user code runs to its end even if the lease is lost. A process that is frozen in the
middle of a call continues the call after the freeze, as a zombie does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve

from streamclient.base.backoff import decision_of
from streamclient.base.position import Position
from streamclient.base.reasons import Raised
from streamclient.base.times import MICROS_PER_SECOND
from streamclient.core.consumer import consumer_events as facts
from streamclient.core.consumer.consumer_events import ConsumerEvent, Told
from streamclient.core.consumer.machine import ConsumerMachine
from streamclient.core.consumer.parked import first_generations
from streamclient.core.events import (
    AnswerEnd,
    CheckpointOutcome,
    ConsumerStopped,
    EndRead,
    OrderOver,
    Severity,
    StartConsumer,
)
from streamclient.errors import DependencyException, ErrorKind, TrimmedDataException
from streamclient.interfaces import RetryableAction
from streamclient.model import ParkedRecord, RecordOrder, ShutdownReason
from streamclient.records import StreamRecord
from streamclient.testing.simulation.actors.processor_actor import SimulatedProcessor
from streamclient.testing.simulation.kernel import NO_ANSWER, UNREADABLE, Dice
from streamclient.testing.simulation.roles import ProcessRole, Request
from streamclient.testing.simulation.simulated_stream import STREAM_ID, PartOfShard, SimulatedPage, place_of, places_of
from streamclient.testing.simulation.world import SimulatedWorld

BATCH_RECORDS = 5
"""The largest number of records in one page of a shard without backlog. The number is small, so that hand-overs often
happen while a batch is processed."""

CUT_SHARE = 0.02
"""While faults happen, the share of an open shard's pages that lack their next iterator and some of their records.
These pages model truncated pages, whose bytes look like the last page of a closed shard."""

REPEATED_SHARE = 0.01
"""The share of pages with records whose next iterator is wrong: it is equal to the requested iterator. Pages have this
error only while faults happen."""

ELSEWHERE_SHARE = 0.01
"""While faults happen, the share of pages that come from another shard. Their records are always older than the last
page that the consumer has read, because a consumer cannot recognise newer records of another shard."""

ELSEWHERE_AGAIN_SHARE = 0.3
"""The share of pages that come from another shard while the consumer rereads pages after a wrong page. The share is
large, because wrong pages come in series."""

RECORD_BYTES = 100

BACKLOG_PART = 4
"""The divisor of a shard's backlog. A page holds a quarter of the backlog in addition to its ordinary records, so that
a shard with a lag catches up in a few reads."""

STORE_DOWN_SHARE = 0.1
"""The share of calls to the parking store that fail while faults happen."""

UNANSWERED = Raised.of(NO_ANSWER)
GONE = Raised.of(DependencyException("no such shard", kind=ErrorKind.PERMANENT, code="OTSObjectNotExist"))
TRIMMED = Raised.of(TrimmedDataException("past the retention"))
STORE_IS_DOWN = DependencyException("the parking store is down", kind=ErrorKind.TRANSIENT)


class Consumer:
    """The consumer of one shard in one simulated process."""

    def __init__(self, world: SimulatedWorld, process: ProcessRole, start: StartConsumer) -> None:
        info = start.shard_info
        self.world, self.agenda = world, world.agenda
        self.process: ProcessRole = process
        self.lease_key: str = info.shard_id
        self.identifier, self.epoch = start.identifier, info.epoch
        self.shard = self.world.stream.shards[info.shard_id]
        self.checkpoint = start.checkpoint
        self.pending = start.pending
        self.orders = self._known_orders = start.orders
        """The orders about records that an operator had given before the consumer started."""
        self.machine = ConsumerMachine(
            start,
            world.config,
            process.dice,
            record_id=_record_id,
            key_text=str,
            table_pace=process.pace,
            tree=lambda: process.holdings.tree,
        )
        self.has_ended = False
        self.processor: SimulatedProcessor | None = None
        """The present processor, or the last processor after its end; ``None`` before the first processor."""
        self.is_made = False
        """Whether the consumer has a processor object; false if the user's factory raised."""
        self.is_given_up = False
        """Whether the consumer waits for the decision of an operator, for example after a loss of records."""
        self.faults = Dice.of(world.plan.seed, "pages", process.name, start.identifier)
        self._end_visit = 0
        self._call = 0
        """The number of the newest call into user code. To take a queued call back, the consumer increases this number:
        a call with an older number does not begin any more."""
        self._is_queued = False

    def begin(self) -> None:
        """Start the consumer, which then reads its shard."""
        self.handle(facts.Began())

    def ask_to_stop(self, reason: ShutdownReason) -> None:
        """Ask the consumer to end as soon as no user code runs."""
        self.handle(facts.StopAsked(reason))

    def mark(self, reason: ShutdownReason) -> None:
        """Make the consumer's processor ask for its own shutdown with ``reason``; do nothing without a processor."""
        if self.processor is not None:
            self._later(0.0, self.handle, facts.Marked(self.processor.number, reason))

    def accept_loss(self) -> None:
        """Confirm, as an operator does, that the lost records may be skipped."""
        self.is_given_up = False
        self._later(0.0, self.handle, facts.LossAccepted())

    def obey(self, orders: tuple[RecordOrder, ...]) -> None:
        """Obey the orders about records. A new order about the record at which the shard halted ends the halt."""
        halt, is_new = self.machine.halt_reason, not {*orders} <= {*self._known_orders}
        named = {record_id for order in orders for record_id in order.record_ids}
        self._known_orders = orders
        if halt is not None and is_new and self.machine.lost is None and halt.record_id in {"", *named}:
            self.is_given_up = False
        self.handle(facts.OrdersGiven(orders))

    def vanish(self) -> None:
        """End the consumer because its process has died. The core gets no event."""
        self.has_ended = True
        self.world.consumer_ended(self)

    def handle(self, event: ConsumerEvent) -> None:
        """Let the state machine handle an event, and carry out its commands."""
        self.world.events += 1
        for command in self.machine.handle(event, self.process.local()):
            _CARRY_OUT[type(command)](self, command)

    def __repr__(self) -> str:
        return f"<consumer {self.identifier} of {self.lease_key} at {self.place}, epoch {self.epoch}>"

    @property
    def place(self) -> int:
        """The number, within the shard, of the next record that the consumer reads."""
        return self._place(self.machine.position)

    # --- time ----------------------------------------------------------------------------------------------------

    def _later(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call ``call`` after ``seconds``, or later if the process is frozen then. An ended consumer calls nothing."""
        self.agenda.after(seconds, self._when_awake, call, arguments)

    def _when_awake(self, call: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if self.has_ended:
            return
        frozen_until, agenda = self.process.frozen_until, self.agenda
        if frozen_until > agenda.now:
            agenda.at(frozen_until, self._when_awake, call, arguments)
        else:
            call(*arguments)

    def work(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        """Let user code work for ``seconds``, and longer if it hangs; then continue with ``call``."""
        self._later(seconds, self._when_it_returns, call, arguments)

    def _when_it_returns(self, call: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        hangs_until, agenda = self.world.hangs.get(self.lease_key, 0.0), self.agenda
        if hangs_until > agenda.now:
            agenda.at(hangs_until, self._when_awake, self._when_it_returns, (call, arguments))
        else:
            call(*arguments)

    # --- calls into user code ------------------------------------------------------------------------------------

    def _start_call(self, name: str, call: Callable[..., None], *arguments: Any) -> None:
        """Run a call into user code when a thread is free, which is usually immediately."""
        self._call += 1
        self._is_queued = self.process.dice.chance(self.world.habits.queued_share)
        if self._is_queued:
            self._later(self.world.plan.round_seconds, self._run, self._call, name, call, arguments)
        else:
            self._run(self._call, name, call, arguments)

    def _run(self, number: int, name: str, call: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if number == self._call:
            self._is_queued = False
            self.world.laws.call_began(self, name)
            call(*arguments)

    def returns(self, error: BaseException | None = None, value: object = None) -> None:
        """Let the running call into user code return ``value``, or raise ``error``."""
        self.is_made = error is None or bool(value)
        self.world.laws.call_ended(self)
        self.handle(facts.CallReturned(None if error is None else Raised.of(error), value))

    def _take_back(self, command: facts.TakeBack) -> None:
        if self._is_queued:
            self._is_queued = False
            self._call += 1
            self.handle(facts.CallTakenBack())

    def _new_processor(self, command: facts.NewProcessor) -> None:
        self.processor = SimulatedProcessor(self.world, self, command)
        self.world.laws.processor_started(self)

    @property
    def _present(self) -> SimulatedProcessor:
        assert self.processor is not None
        return self.processor

    def _initialize(self, command: facts.Initialize) -> None:
        self._start_call("initialize", self._present.initialize)

    def _process_records(self, command: facts.ProcessRecords) -> None:
        self._start_call("process_records", self._present.process, places_of(command.records))

    def _shut_down(self, command: facts.ShutDown) -> None:
        self.is_given_up = self.machine.halt_reason is not None
        self._start_call("shutdown", self._present.shutdown, command.reason)

    def _ask_strategy(self, command: facts.AskStrategy) -> None:
        self._start_call("retry_strategy", self.work, self.world.habits.prompt_seconds, self._strategy_says, command)

    def _strategy_says(self, command: facts.AskStrategy) -> None:
        strategy = self.world.config.task_retry_strategy
        assert strategy is not None
        self.returns(value=decision_of(strategy, RetryableAction.TASK_PROCESS, command.error, command.retries))

    # --- the parking store ---------------------------------------------------------------------------------------

    def _ask_parked_keys(self, command: facts.AskParkedKeys) -> None:
        self._start_call("parked_keys", self.work, self.world.habits.prompt_seconds, self._keys_found)

    def _keys_found(self) -> None:
        if self._is_store_down():
            self.returns(STORE_IS_DOWN)
        else:
            self.returns(value=list(self.world.parking.parked_keys(STREAM_ID)))

    def _park(self, command: facts.Park) -> None:
        self._start_call("park", self.work, self.world.habits.prompt_seconds, self._parked, command)

    def _parked(self, command: facts.Park) -> None:
        if command.generations is None:
            ordered = [command.page.records[index] for index in command.indices]
            keys = self.world.parking.parked_keys(STREAM_ID)
            generations = first_generations(keys, self.lease_key, ordered, _record_id, command.tree)
            command = evolve(command, generations=generations)
        records = [_parked_record(self, command, number) for number in range(len(command.indices))]
        if self._is_store_down():
            self.returns(STORE_IS_DOWN)
            return
        self.world.parking.park(records)
        self.world.laws.records_parked(self, records)
        self.world.sink.set_aside(self.lease_key, places_of([each.record for each in records]))
        self.world.counts["parked"] += len(records)
        self.returns(value=records)

    def _is_store_down(self) -> bool:
        return self.world.is_writing and self.process.dice.chance(STORE_DOWN_SHARE)

    # --- reading and time ----------------------------------------------------------------------------------------

    def _read(self, command: facts.Read) -> None:
        self.world.laws.read_began(self)
        failed = facts.ReadFailed(command.visit, UNANSWERED)
        self._asked(failed, self._page, command.visit, command.position, self.process.local())

    def _asked(self, failed: ConsumerEvent, answer: Callable[..., None], *given: Any) -> None:
        """Call the stream: after a while call ``answer``, or handle ``failed`` if the call to the stream fails."""
        process, network = self.process, self.world.network
        fate = network.fate(process.name, process.dice)
        seconds = 2.0 * network.delay(process.name, process.dice)
        if fate in UNREADABLE:
            self._later(seconds, self.handle, failed)
        else:
            self._later(seconds, answer, *given)

    def _page(self, visit: int, position: Position, read_at: float) -> None:
        shard, start = self.shard, self._place(position)
        if not position.is_iterator:
            self.world.begins_at_oldest(self.lease_key)
        if not shard.is_listed:
            self.handle(facts.ReadFailed(visit, GONE))
        elif start < shard.trimmed:
            self.handle(facts.ReadFailed(visit, TRIMMED))
        else:
            self.handle(facts.PageRead(visit, self._page_at(position, start), read_at))

    def _page_at(self, position: Position, start: int) -> SimulatedPage:
        shard, dice = self.shard, self.process.dice
        size = 1 + dice.randrange(BATCH_RECORDS) + (shard.size - start) // BACKLOG_PART
        end = min(start + size, shard.size)
        if end == shard.size and not shard.is_open:
            following = Position.SHARD_END
        else:
            following = position if end == start and position.is_iterator else Position(self.world.new_value(end))
        hint = dice.choice((None, end < shard.size))
        if self.world.is_writing and self.world.disturbs_pages:
            share = ELSEWHERE_AGAIN_SHARE if self.machine.trail.goes_back else ELSEWHERE_SHARE
            if self.faults.chance(share) and (found := self._page_of_another_shard()) is not None:
                return found
            end, following = self._disturbed(position, start, end, following)
        return SimulatedPage(PartOfShard(shard, start, end), following, hint, RECORD_BYTES * (end - start))

    def _disturbed(self, position: Position, start: int, end: int, following: Position) -> tuple[int, Position]:
        """Return the end and the next position of a page, now and then changed so that the page is wrong."""
        dice, injected = self.faults, self.world.injected
        if self.shard.is_open and dice.chance(CUT_SHARE):
            injected["cut page"] += 1
            return start + dice.randrange(end - start + 1), Position.SHARD_END
        if end > start and position.is_iterator and dice.chance(REPEATED_SHARE):
            injected["repeated page"] += 1
            return end, position
        return end, following

    def _page_of_another_shard(self) -> SimulatedPage | None:
        """Return an older page of another shard, if one exists. Its next position looks valid for this shard."""
        last, dice, stream = self.machine.trail.last, self.faults, self.world.stream
        other = stream.shards[dice.choice(sorted(stream.shards))]
        before = 0 if last is None else stream.place_at(other.shard_id, last.timestamp_micros // MICROS_PER_SECOND)
        oldest = max(other.trimmed, stream.place_at(other.shard_id, 1.0))  # skips records of time 0
        if other is self.shard or before <= oldest:
            return None
        self.world.injected["page of another shard"] += 1
        start = oldest + dice.randrange(before - oldest)
        end = min(start + 1 + dice.randrange(BATCH_RECORDS), before)
        following = Position(self.world.new_value(min(end, self.shard.size)))
        return SimulatedPage(PartOfShard(other, start, end), following, None, RECORD_BYTES * (end - start))

    def _confirm_end(self, command: facts.ConfirmEnd) -> None:
        self._end_visit = command.visit
        self.agenda.after(0.0, self.process.deliver, EndRead(self.lease_key, self.identifier, command.read_at))

    def end_judged(self, answer: AnswerEnd) -> None:
        """Give the state machine the core's answer about the end of the shard."""
        judged = facts.EndJudged(self._end_visit, answer.is_shown, answer.since_read, answer.detail)
        self._later(0.0, self.handle, judged)

    def _find_first_left(self, command: facts.FindFirstLeft) -> None:
        failed = facts.FirstLeftUnknown(command.visit, UNANSWERED)
        self._asked(failed, self.handle, facts.FirstLeftFound(command.visit, None))

    def _read_ahead(self, command: facts.ReadAhead) -> None:
        self.world.laws.records_came(self)

    def _wait(self, command: facts.Wait) -> None:
        if command.is_idle and command.seconds:
            self.world.laws.idle_wait_began(self)
        self._later(command.seconds, self.handle, facts.TimeCame(command.visit))

    def _place(self, position: Position) -> int:
        if position.is_shard_end:
            return self.shard.size
        return place_of(position.text) if position.is_iterator else self.shard.trimmed

    # --- the checkpointer ----------------------------------------------------------------------------------------

    def _offer(self, command: facts.Offer) -> None:
        self._present.positions.offer(command.position, command.progress, command.last)

    def _withdraw(self, command: facts.Withdraw) -> None:
        self._present.positions.withdraw(command.position)

    def _permit(self, command: facts.Permit) -> None:
        self._present.positions.permit(command.position, command.progress, command.last)

    def _retract(self, command: facts.Retract) -> None:
        self._present.positions.retract()

    def _store_set_aside(self, command: facts.StoreSetAside) -> None:
        place = self._present.pass_set_aside()
        if place is not None:
            self._later(0.0, self._present.store_set_aside, place)

    def _close_checkpoints(self, command: facts.CloseCheckpoints) -> None:
        self._present.is_closed = True

    def checkpoint_answered(self, request: Request, outcome: CheckpointOutcome) -> None:
        """Handle the core's answer to a checkpoint request.

        The state machine gets the answer immediately; user code continues a moment later.
        """
        if self.has_ended:
            return
        progress = request.progress
        self.handle(facts.CheckpointAnswered(outcome, request.value, progress, request.pending))
        self._later(self.world.habits.prompt_seconds, request.answered, outcome)

    # --- reports -------------------------------------------------------------------------------------------------

    def _tell(self, command: facts.Tell) -> None:
        self.world.counts[_COUNTED[command.what]] += 1
        if command.what is Told.LOSS_GIVEN_UP:
            self.world.loss_given_up(self.lease_key)

    def _order_ended(self, command: facts.OrderEnded) -> None:
        self.world.counts["orders withdrawn" if command.is_withdrawn else "orders obeyed"] += 1
        self.world.counts["ordered records taken out"] += command.taken
        event = OrderOver(
            self.lease_key, self.identifier, command.order, command.taken, is_withdrawn=command.is_withdrawn
        )
        self.agenda.after(0.0, self.process.deliver, event)

    def _log(self, command: facts.LogLine) -> None:
        if command.severity is not Severity.INFO:
            self.world.note(self.process.label, command.severity.value, self.lease_key, command.text)

    def _nothing(self, command: object) -> None:
        """Carry out a command that has no effect in a simulation, for example the report of an outage."""

    def _ended(self, command: facts.Ended) -> None:
        self.has_ended = True
        self.process.forget(self)
        self.world.consumer_ended(self)
        self.world.laws.consumer_ended(self)
        event = ConsumerStopped(self.lease_key, self.identifier, command.end)
        self.agenda.after(0.0, self.process.deliver, event)


_COUNTED: Mapping[Told, str] = {told: told.name.lower().replace("_", " ") for told in Told}

_CARRY_OUT: Mapping[type, Callable[[Consumer, Any], None]] = {
    facts.Initialize: Consumer._initialize,
    facts.ProcessRecords: Consumer._process_records,
    facts.AskParkedKeys: Consumer._ask_parked_keys,
    facts.Park: Consumer._park,
    facts.AskStrategy: Consumer._ask_strategy,
    facts.ShutDown: Consumer._shut_down,
    facts.TakeBack: Consumer._take_back,
    facts.Read: Consumer._read,
    facts.ReadAhead: Consumer._read_ahead,
    facts.DropReading: Consumer._nothing,
    facts.FindFirstLeft: Consumer._find_first_left,
    facts.ConfirmEnd: Consumer._confirm_end,
    facts.Wait: Consumer._wait,
    facts.NewProcessor: Consumer._new_processor,
    facts.Offer: Consumer._offer,
    facts.Withdraw: Consumer._withdraw,
    facts.Permit: Consumer._permit,
    facts.Retract: Consumer._retract,
    facts.StoreSetAside: Consumer._store_set_aside,
    facts.CloseCheckpoints: Consumer._close_checkpoints,
    facts.Tell: Consumer._tell,
    facts.PageDone: Consumer._nothing,
    facts.OrderEnded: Consumer._order_ended,
    facts.TellOutage: Consumer._nothing,
    facts.LogLine: Consumer._log,
    facts.Ended: Consumer._ended,
}


def _record_id(record: StreamRecord) -> str:
    return f"{record.sequence_info.row_index:010d}"


def _parked_record(consumer: Consumer, command: facts.Park, number: int) -> ParkedRecord:
    index, failure = command.indices[number], command.failure
    record = command.page.records[index]
    return ParkedRecord(
        record_id=_record_id(record),
        stream_id=STREAM_ID,
        shard_id=consumer.lease_key,
        record=record,
        position=command.position,
        index=index,
        generation=(command.generations or ())[number],
        error=failure.error,
        traceback="",
        attempts=failure.attempts,
        parked_micros=consumer.world.wall_micros(),
    )
