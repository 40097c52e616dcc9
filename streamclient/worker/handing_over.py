"""The processor of one shard as its consumer calls it: in the executor, or handed over to a receiver.

A *receiver* gets each call in the owner thread, returns soon, and ends the call later, in any thread. Loops and event
loops are receivers, so a shard needs no thread while its batch is out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from streamclient.base import checks
from streamclient.interfaces import (
    InitializationInput,
    IRecordProcessor,
    IRecordProcessorFactory,
    ProcessRecordsInput,
    ShutdownInput,
)
from streamclient.model import ShutdownReason
from streamclient.records import StreamRecord
from streamclient.worker.checkpointer import RecordProcessorCheckpointer
from streamclient.worker.usercode import HandedCall, checked_processor


class Receiver(ABC):
    """Receives the calls of one shard, in the owner thread and one after the other, and ends each one later.

    Each method returns soon and raises nothing. The code that works on a call claims it first. ``call.finish`` ends it;
    ``call.give_back`` ends a call that has neither finished nor failed. A call that is not claimed may be taken
    back at any time, without notice.
    """

    @abstractmethod
    def initialize(self, given: InitializationInput, call: HandedCall) -> None:
        """Begin the first call."""

    @abstractmethod
    def process(self, given: ProcessRecordsInput, call: HandedCall) -> None:
        """Begin the delivery of one batch."""

    @abstractmethod
    def shutdown(self, given: ShutdownInput, call: HandedCall) -> None:
        """Begin the last call, which is finished, never given back. It comes unless ``initialize`` was taken back."""

    @abstractmethod
    def closed(self) -> None:
        """Learn that nothing more can be stored: the lease is lost, or all calls are over.

        After the loss of the lease, a call may still be out.
        """


class ReceiverFactory(IRecordProcessorFactory):
    """Makes one receiver per acquisition of a shard.

    ``create_processor`` makes a processor that does the same in the calling thread, for callers that have no owner.
    """

    @abstractmethod
    def make_receiver(self, checkpointer: RecordProcessorCheckpointer) -> Receiver:
        """Make a receiver, in the owner thread: return soon, raise nothing, run no user code."""

    def close(self) -> None:  # most have started nothing
        """End what the factory has started. The worker calls this when no shard is left. The default does nothing."""


ProcessorMaker = Callable[[], IRecordProcessor] | ReceiverFactory
"""Makes the processors of shards, or their receivers."""


class ProcessorSession:
    """A processor with its checkpointer and marker.

    ``initialize``, ``process`` and ``shutdown`` run in the user's executor, never two at a time.
    """

    def __init__(
        self,
        given: InitializationInput,
        make: Callable[[], IRecordProcessor],
        checkpointer: RecordProcessorCheckpointer,
    ) -> None:
        self._given = given
        self._make = make
        self.checkpointer = checkpointer
        self._processor: IRecordProcessor | None = None

    @property
    def is_made(self) -> bool:
        """Whether the factory has made the processor."""
        return self._processor is not None

    def initialize(self) -> None:
        """Make the processor and initialise it."""
        self._processor = checked_processor(self._make())
        checks.done("initialize", self._processor.initialize(self._given))  # type: ignore[func-returns-value]  # it may

    def process(self, records: Sequence[StreamRecord], attempt: int) -> None:
        """Hand over one batch."""
        if self._processor is not None:
            given = batch_of(records, attempt, self._given, self.checkpointer)
            checks.done("process_records", self._processor.process_records(given))

    def shutdown(self, reason: ShutdownReason) -> None:
        """Call ``shutdown`` with the reason; see ``shut_down``."""
        if self._processor is not None:
            shut_down(self._processor, ShutdownInput(reason, self.checkpointer))

    def close(self, because: str) -> None:
        """Refuse all checkpoints from now on. Owner thread only."""
        self.checkpointer.close(because)


class ReceiverSession:
    """A receiver with its checkpointer and marker. Owner thread only."""

    is_made = True

    def __init__(
        self, given: InitializationInput, receiver: Receiver, checkpointer: RecordProcessorCheckpointer
    ) -> None:
        self._given = given
        self._receiver = receiver
        self.checkpointer = checkpointer

    def initialize(self, call: HandedCall) -> None:
        """Begin the first call."""
        self._receiver.initialize(self._given, call)

    def process(self, records: Sequence[StreamRecord], attempt: int, call: HandedCall) -> None:
        """Begin the delivery of one batch."""
        self._receiver.process(batch_of(records, attempt, self._given, self.checkpointer), call)

    def shutdown(self, reason: ShutdownReason, call: HandedCall) -> None:
        """Begin the last call."""
        self._receiver.shutdown(ShutdownInput(reason, self.checkpointer), call)

    def close(self, because: str) -> None:
        """Refuse all checkpoints from now on, and say so to the receiver."""
        self.checkpointer.close(because)
        self._receiver.closed()


def shut_down(processor: IRecordProcessor, given: ShutdownInput) -> None:
    """Call the processor's ``shutdown``. If it has none, store the end of the shard as that method promises.

    Code that wraps a processor of the user calls this function, not ``shutdown`` itself.
    """
    if getattr(type(processor), "shutdown", None) is not IRecordProcessor.shutdown:
        checks.done("shutdown", processor.shutdown(given))  # type: ignore[func-returns-value]  # it may
    elif given.shutdown_reason is ShutdownReason.TERMINATE and getattr(given.checkpointer, "has_stored_all", False):
        given.checkpointer.checkpoint()


def batch_of(
    records: Sequence[StreamRecord], attempt: int, given: InitializationInput, checkpointer: RecordProcessorCheckpointer
) -> ProcessRecordsInput:
    """Return the argument of ``process_records``, and record that the processor is given these records."""
    checkpointer.give(len(records))
    return ProcessRecordsInput(records, checkpointer, given.shutdown_marker, attempt)


def session_of(
    given: InitializationInput,
    make: ProcessorMaker,
    checkpointer: RecordProcessorCheckpointer,
) -> ProcessorSession | ReceiverSession:
    """Return the session of a processor or receiver, whichever the user's factory makes."""
    if isinstance(make, ReceiverFactory):
        return ReceiverSession(given, make.make_receiver(checkpointer), checkpointer)
    return ProcessorSession(given, make, checkpointer)
