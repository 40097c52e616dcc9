"""A function ``run`` for tests, which gives records to a processor through the consumer that runs in production.

Reads, calls, pauses and checkpoints are the same as in a worker. The stream and the stored checkpoint are in memory.
Time is simulated: it moves only when the run has nothing else to do, so pauses take no real time.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import partial
from typing import Any

from attrs import evolve, frozen

from streamclient.base import checks
from streamclient.base.pools import run_call
from streamclient.base.reasons import text_of
from streamclient.base.times import MICROS_PER_SECOND
from streamclient.config import ClientConfig, FailurePolicy
from streamclient.core.consumer.reading_pace import WorkerPace
from streamclient.core.consumer.transitions import Phase
from streamclient.core.events import AnswerCheckpoint, CheckpointOutcome, ConsumerEnd, StartConsumer
from streamclient.errors import ConfigurationError, StreamClientException
from streamclient.interfaces import (
    InitializationInput,
    IParkingStore,
    IRecordProcessor,
    ProcessRecordsInput,
    ShutdownInput,
)
from streamclient.metrics.labelled import NO_METRICS
from streamclient.model import CheckpointPosition, ParkedRecord, ShardInfo, ShutdownReason
from streamclient.records import StreamRecord
from streamclient.testing.builders import in_places
from streamclient.testing.fakes import FakeStream
from streamclient.worker.checkpointer import CheckpointTicket
from streamclient.worker.consumer_parts import ConsumerParts
from streamclient.worker.handing_over import shut_down
from streamclient.worker.handlers.batches import RecordProcessorFactory
from streamclient.worker.handlers.handler_processor import blocking_maker
from streamclient.worker.instruments import Instruments
from streamclient.worker.owner_loop import OwnerLoop, Question
from streamclient.worker.parking.parked_frames import record_id
from streamclient.worker.parking.parking_memory import MemoryParkingStore
from streamclient.worker.parking.parking_replay import replay_records
from streamclient.worker.read_calls import OwnerReads, PrefetchBudget, ReadQueue
from streamclient.worker.shard_consumer import ShardConsumer
from streamclient.worker.statuses import StreamFacts
from streamclient.worker.usercode import UserCode, checked_processor

MOST_RESTARTS = 10
"""The largest number of new processors in a row that start at the same stored checkpoint. A worker would restart
for ever. ``run`` gives up, because a processor that failed this often under equal conditions will fail again."""

TABLE = "orders"
SHARD = "shard-1"
WORKER = "run"

STARTED_AT_SECONDS = 1_600_000_000.0
"""The simulated time at which a run begins, in seconds since 1970."""


@frozen(kw_only=True)
class ProcessorRun:
    """The result of ``run``: the calls, checkpoints and failures, and the parked records."""

    checkpoints: tuple[int, ...]
    """The number of records before each stored checkpoint, parked records included, in order. The end of the shard is
    also a checkpoint. A replay stores no checkpoints. It has one entry for each removal of parked records instead: the
    total number of records removed so far."""
    given: tuple[tuple[StreamRecord, ...], ...]
    """The records of each call of ``process_records``, in order. A record that was delivered twice occurs twice."""
    failures: tuple[Exception, ...]
    """The exceptions that the processor and its factory raised, in order, one for each failed call."""
    parked: tuple[StreamRecord, ...]
    """The records that are parked at the end, in the order of the shard."""
    reasons: tuple[str, ...]
    """The reason for each record of ``parked``: the type and text of the exception, or a note that the record was not
    tried because an earlier record of its key is parked. In a replay, the reason why the replay of the key ended."""


class RunFailed(StreamClientException):
    """The failure of a run that would never end: one processor after another starts, and none stores a new checkpoint.

    ``__cause__`` is the processor's last exception, if it raised one. The attribute ``run`` has the result
    up to the failure.
    """

    def __init__(self, text: str, run: ProcessorRun) -> None:
        super().__init__(text)
        self.run = run


_records = checks.Check(
    "an iterable of StreamRecords",
    lambda value: isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping | StreamRecord),
)


@checks.explains_names
def run(
    processor: RecordProcessorFactory,
    records: Iterable[StreamRecord],
    *,
    batch: int = 1000,
    policy: FailurePolicy | None = None,
    ends: bool = False,
    is_replay: bool = False,
) -> ProcessorRun:
    """Deliver ``records`` to a processor as a worker delivers one shard, and return the result.

    All calls run in the calling thread. ``run`` itself does not sleep, connect or start a thread. Pauses, for example
    those of ``policy``, pass in simulated time.

    When all records are dealt with, the processor gets ``shutdown(STOLEN)``, as when its worker stops. The run ends
    earlier if ``policy`` stops the shard, or if the processor marks itself as done. A
    processor with its own threads may have unprocessed records at that shutdown. ``ends`` lets the run wait for these
    records.

    Args:
        processor: a class or function that makes processors, as for ``Worker``.
        records: the records in the order of the shard. Records without a ``sequence_info``, as ``put`` makes
            them, get the microseconds 1, 2, 3 and so on.
        batch: the largest number of records in one call.
        policy: the treatment of failures; by default that of ``ClientConfig``, which starts a new processor.
            The policy's parking store is not used: records are parked in memory.
        ends: whether the shard ends after the records. If so, the processor gets ``shutdown(TERMINATE)`` and must
            checkpoint the end of the shard in that call.
        is_replay: whether the records are delivered as ``replay_parked`` delivers parked records: one record in each
            call, key by key, with a processor for each key. No policy applies; the first failure ends a key's replay.

    Raises:
        ConfigurationError: an argument is invalid; the processor was not called.
        RunFailed: 10 restarts in a row stored no new checkpoint, as when a record always fails and the policy restarts,
            or when ``shutdown(TERMINATE)`` does not store the end.
        BaseException: the processor raised an error that is not an ``Exception``, such as ``KeyboardInterrupt``.
    """
    calls = _RecordedCalls(blocking_maker("processor", processor))
    checks.positive.require("batch", batch)
    checks.optional(checks.instance(FailurePolicy)).require("policy", policy)
    checks.flag.require("ends", ends)
    if checks.flag.require("is_replay", is_replay) and (ends or policy is not None):
        raise ConfigurationError(
            "is_replay cannot be combined with policy or ends: a replay has no failure policy, and its shard never ends"
        )
    placed = in_places(_records.require("records", records))
    if is_replay:
        return _replayed(calls, placed)
    store = MemoryParkingStore()
    config = ClientConfig() if policy is None else ClientConfig(failure_policy=_parking_in(store, policy))
    shard = _OneShard(calls, config, placed, batch, ends=ends)
    trouble = shard.drive()
    result = calls.result(shard.checkpoints, [(each.record, each.error) for each in store.parked()])
    if trouble:
        raise RunFailed(trouble, result) from (calls.failures[-1] if calls.failures else None)
    return result


def _parking_in(store: IParkingStore, policy: FailurePolicy) -> FailurePolicy:
    return policy if policy.parking is None else evolve(policy, parking=store)


class _RecordedCalls:
    """The maker of a run's processors, which also records their calls."""

    def __init__(self, make: Callable[[], IRecordProcessor]) -> None:
        self._make = make
        self.given: list[tuple[StreamRecord, ...]] = []
        self.failures: list[Exception] = []
        self.interrupt: BaseException | None = None
        """The error that ends the run, because it is not an ``Exception``; ``None`` without such an error."""
        self.processors = 0
        """The number of processors made since the last new checkpoint, including the processor that stored it."""

    def make(self) -> IRecordProcessor:
        """Make a processor that records its calls in this object."""
        self.processors += 1
        with self.recorded():
            return _RecordedProcessor(checked_processor(self._make()), self)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record an error that the body of the ``with`` statement raises, and raise it again."""
        try:
            yield
        except Exception as error:
            self.failures.append(error)
            raise
        except BaseException as error:
            self.interrupt = error
            raise

    def result(self, checkpoints: Sequence[int], parked: Sequence[tuple[StreamRecord, str]]) -> ProcessorRun:
        """Return the result of the run. ``parked`` holds the records that are parked at the end, and their reasons."""
        return ProcessorRun(
            checkpoints=tuple(checkpoints),
            given=tuple(self.given),
            failures=tuple(self.failures),
            parked=tuple(record for record, _ in parked),
            reasons=tuple(reason for _, reason in parked),
        )


class _RecordedProcessor(IRecordProcessor):
    """A processor that passes calls on to another processor, and records the calls."""

    def __init__(self, processor: IRecordProcessor, calls: _RecordedCalls) -> None:
        self._processor, self._calls = processor, calls

    def initialize(self, initialization_input: InitializationInput) -> None:
        with self._calls.recorded():
            answer = self._processor.initialize(initialization_input)  # type: ignore[func-returns-value]  # user code may
            checks.done("initialize", answer)

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        self._calls.given.append(tuple(process_records_input.records))
        with self._calls.recorded():
            checks.done("process_records", self._processor.process_records(process_records_input))

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        with self._calls.recorded():
            shut_down(self._processor, shutdown_input)


class _QueuedCalls(Executor):
    """An executor whose calls wait until the run carries them out, one by one between turns of the owner loop."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], object]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append(partial(run_call, future, partial(fn, *args, **kwargs)))
        return future


class _OneShard:
    """One shard in memory with its consumer, run on a simulated clock."""

    def __init__(
        self, calls: _RecordedCalls, config: ClientConfig, records: Sequence[StreamRecord], batch: int, *, ends: bool
    ) -> None:
        self._calls, self._ends = calls, ends
        self._stream = FakeStream(TABLE, (SHARD,))
        self._stream.append(SHARD, *records)
        self._end = f"{SHARD}@{len(records)}"
        self._now = STARTED_AT_SECONDS
        self._loop = OwnerLoop(lambda: self._now)
        self._turns = threading.RLock()
        """The lock for turns of the owner loop. User threads also run turns, while they wait for a checkpoint."""
        self._queue = _QueuedCalls()
        self._has_ended = False
        self._trouble = ""
        self.checkpoints: list[int] = []
        info = ShardInfo(SHARD, self._stream.stream_id, frozenset(), WORKER, epoch=1)
        start = StartConsumer(info, CheckpointPosition.TRIM_HORIZON)
        self._consumer = ShardConsumer(start, self._parts(config, batch))

    def _parts(self, config: ClientConfig, batch: int) -> ConsumerParts:
        loop = self._loop
        return ConsumerParts(
            loop=loop,
            user_code=UserCode(self._queue, loop),
            reads=OwnerReads(ReadQueue(self._queue), loop),
            prefetch=PrefetchBudget(config.prefetch.prefetch_total_bytes),
            pace=WorkerPace(config).table(),
            stream_api=self._stream,
            make_processor=self._calls.make,
            config=config,
            table_name=TABLE,
            max_records=batch,
            dice=random.Random(1),
            facts=StreamFacts(self._wall_micros),
            wall_micros=self._wall_micros,
            wait=self._wait,
            send_checkpoint=self._send,
            confirm_end=lambda shard, read_at: True,
            ended=self._ended,
            stalled=lambda shard, why: None,
            instruments=Instruments(NO_METRICS, WORKER, {}, loop.now),
        )

    def drive(self) -> str:
        """Run the consumer to its end. Return the reason of a failure, or ``""`` after success."""
        self._consumer.begin()
        try:
            while not self._has_ended and self._consumer.machine.phase is not Phase.HALTED:
                self._step()
        finally:
            with self._turns:
                self._consumer.abandon()
                self._loop.close()
        return self._trouble

    def _step(self) -> None:
        """Carry out one waiting call or, if no call waits, run a turn of the owner loop.

        If the loop has no messages, move the simulated time forward to the loop's next timer before the turn.
        """
        if self._queue.waiting:
            self._queue.waiting.popleft()()
            if self._calls.interrupt is not None:
                raise self._calls.interrupt
            return
        with self._turns:
            if self._queue.waiting:  # a turn in a thread of the processor has added a call meanwhile
                return
            if not self._loop.has_messages:
                due = self._loop.next_timer
                if due is None:
                    raise StreamClientException(f"{self._consumer!r} waits, but nothing is left that can end the wait")
                self._now = max(self._now, due)
            self._loop.turn(0.0, self._look)

    def _look(self) -> None:
        """End the shard or stop the consumer when all records are dealt with; give up after too many restarts."""
        machine = self._consumer.machine
        if machine.stop_reason is not None:
            return
        if machine.phase is Phase.WAITING and machine.position.text == self._end:
            if self._ends:
                self._stream.close(SHARD, "")
            else:
                self._consumer.stop(ShutdownReason.STOLEN)
        elif machine.phase is Phase.BACKING_OFF and self._calls.processors > MOST_RESTARTS:
            why = "" if machine.reason is None else f": {text_of(machine.reason)}"
            self._trouble = f"the processor stored no new checkpoint in {MOST_RESTARTS} restarts in a row{why}"
            self._consumer.stop(ShutdownReason.STOLEN)

    def _send(self, shard: ShardInfo, ticket: CheckpointTicket, timeout_seconds: float) -> bool:
        return self._loop.post(Question(partial(self._store, ticket), ticket.refuse), timeout_seconds)

    def _store(self, ticket: CheckpointTicket) -> None:
        if not ticket.is_open():
            ticket.refuse()
            return
        if ticket.pending is None:
            self.checkpoints.append(0 if ticket.progress is None else ticket.progress.records)
            if ticket.value != self._consumer.machine.stored:
                self._calls.processors = 1
        self._consumer.checkpoint_requested()
        self._consumer.checkpoint_answered(ticket, CheckpointOutcome.STORED)
        ticket.answer(AnswerCheckpoint(0, CheckpointOutcome.STORED))

    def _wait(self, event: threading.Event, seconds: float) -> bool:
        """Run turns of the owner loop until ``event`` is set or no messages are left; return whether ``event`` is set.

        These turns store the checkpoint for which the calling thread waits. ``seconds`` is not used.
        """
        with self._turns:
            while not event.is_set() and self._loop.has_messages:
                self._loop.turn(0.0)
        return event.is_set()

    def _ended(self, shard: ShardInfo, end: ConsumerEnd) -> None:
        self._has_ended = True

    def _wall_micros(self) -> int:
        return int(self._now * MICROS_PER_SECOND)


def _replayed(calls: _RecordedCalls, records: Sequence[StreamRecord]) -> ProcessorRun:
    """Replay ``records`` as the parked records of one shard, and return the result of the run."""
    store = _CountingStore()
    store.park([_parked(index, record) for index, record in enumerate(records)])
    report = replay_records(store, calls.make, store.parked(), ends=lambda raised: not isinstance(raised, Exception))
    reasons = {left.key: left.error for left in report.left}
    return calls.result(store.counts, [(each.record, reasons[each.record.primary_key]) for each in store.parked()])


class _CountingStore(MemoryParkingStore):
    """A parking store in memory that counts the removed records."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []
        """The total number of removed records after each removal."""

    def remove(self, records: Sequence[ParkedRecord]) -> None:
        """Remove ``records``, and add the new total to ``counts``."""
        super().remove(records)
        self.counts.append((self.counts[-1] if self.counts else 0) + len(records))


def _parked(index: int, record: StreamRecord) -> ParkedRecord:
    return ParkedRecord(
        record_id=record_id(record),
        stream_id=TABLE,
        shard_id=SHARD,
        record=record,
        position=CheckpointPosition.TRIM_HORIZON,
        index=index,
        generation=1,
        error="",
        traceback="",
        attempts=0,
        parked_micros=int(STARTED_AT_SECONDS * MICROS_PER_SECOND),
    )
