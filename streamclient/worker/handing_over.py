"""The two ways in which a consumer calls the user's code for its shard: in the executor, or through a receiver.

A *receiver* gets each call in the owner thread, returns soon, and ends the call later, in any thread. Batches reach
loops and event loops through receivers, so a shard needs no thread while its batch is processed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import MethodType

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
    """The receiver of the user-code calls for one shard. It gets one call after the other, and ends each call later.

    Each method runs in the owner thread, returns soon and raises no error. The code that works on a call claims the
    call first, and ends it with ``call.finish``. If the work was interrupted, without success or failure, the code ends
    the call with ``call.give_back``. The owner may take back an unclaimed call at any time, without notice.
    """

    @abstractmethod
    def initialize(self, given: InitializationInput, call: HandedCall) -> None:
        """Begin the call of ``initialize``, the first call of the shard."""

    @abstractmethod
    def process(self, given: ProcessRecordsInput, call: HandedCall) -> None:
        """Begin the call of ``process_records`` with one batch."""

    @abstractmethod
    def shutdown(self, given: ShutdownInput, call: HandedCall) -> None:
        """Begin the call of ``shutdown``, the last call of the shard. The receiver must not give this call back.

        The owner leaves this call out only if it has taken back the call of ``initialize``.
        """

    @abstractmethod
    def closed(self) -> None:
        """Record that no position can be stored any more, because the lease is lost or all calls are over.

        After the loss of the lease, a call may still be unfinished.
        """


class ThreadedFactory(IRecordProcessorFactory):
    """A factory that may run user code in threads of its own, between the calls of processors or receivers."""

    def is_own_thread(self) -> bool:
        """Return whether the calling thread is a thread of this factory. Usable from any thread.

        By default, the factory has no thread of its own.
        """
        return False


class ReceiverFactory(ThreadedFactory):
    """A factory that makes one receiver for each shard.

    Callers without an owner thread, such as a replay, use ``create_processor``. It makes a processor that does the work
    of a receiver in the calling thread.
    """

    @abstractmethod
    def make_receiver(self, checkpointer: RecordProcessorCheckpointer) -> Receiver:
        """Make the receiver of one shard. Called in the owner thread, so it returns soon and runs no user code."""

    def close(self) -> None:  # not abstract, because most factories have nothing to end
        """End the threads or tasks of this factory, after its last shard. The default does nothing."""


ProcessorMaker = Callable[[], IRecordProcessor] | ReceiverFactory
"""A function that makes the processor of a shard, or a factory that makes the receiver of a shard."""


def is_thread_of(make: ProcessorMaker) -> bool:
    """Return whether the calling thread is an own thread of ``make``, or of the factory whose method ``make`` is."""
    factory = make.__self__ if isinstance(make, MethodType) else make
    return isinstance(factory, ThreadedFactory) and factory.is_own_thread()


class ProcessorSession:
    """The processor of one shard, with its checkpointer and the input of its ``initialize``.

    ``initialize``, ``process`` and ``shutdown`` run in the user's executor, one at a time.
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
        # A method of the user may return a value, although the interface says that it returns ``None``.
        checks.done("initialize", self._processor.initialize(self._given))  # type: ignore[func-returns-value]

    def process(self, records: Sequence[StreamRecord], attempt: int) -> None:
        """Call the processor's ``process_records`` with one batch of ``records``."""
        if self._processor is not None:
            given = batch_of(records, attempt, self._given, self.checkpointer)
            checks.done("process_records", self._processor.process_records(given))

    def shutdown(self, reason: ShutdownReason) -> None:
        """Shut the processor down for ``reason``, with the function ``shut_down``."""
        if self._processor is not None:
            shut_down(self._processor, ShutdownInput(reason, self.checkpointer))

    def close(self, because: str) -> None:
        """Refuse all checkpoints from now on. Owner thread only."""
        self.checkpointer.close(because)


class ReceiverSession:
    """The calls of user code for one shard, which go through a ``Receiver``. Owner thread only.

    The object keeps the shard's checkpointer and the input of ``initialize``.
    """

    is_made = True

    def __init__(
        self, given: InitializationInput, receiver: Receiver, checkpointer: RecordProcessorCheckpointer
    ) -> None:
        self._given = given
        self._receiver = receiver
        self.checkpointer = checkpointer

    def initialize(self, call: HandedCall) -> None:
        """Begin the call of ``initialize``, the first call of the shard."""
        self._receiver.initialize(self._given, call)

    def process(self, records: Sequence[StreamRecord], attempt: int, call: HandedCall) -> None:
        """Begin the call of ``process_records`` with one batch."""
        self._receiver.process(batch_of(records, attempt, self._given, self.checkpointer), call)

    def shutdown(self, reason: ShutdownReason, call: HandedCall) -> None:
        """Begin the call of ``shutdown``, the last call of the shard."""
        self._receiver.shutdown(ShutdownInput(reason, self.checkpointer), call)

    def close(self, because: str) -> None:
        """Refuse all checkpoints from now on, and call ``closed`` of the receiver."""
        self.checkpointer.close(because)
        self._receiver.closed()


def shut_down(processor: IRecordProcessor, given: ShutdownInput) -> None:
    """Call the processor's ``shutdown``.

    If the processor does not override ``shutdown``, store the end of the shard, provided that the shard was read to its
    end and that all batches of the processor are stored.

    Code that wraps a processor of the user calls this function, not ``shutdown`` itself.
    """
    if getattr(type(processor), "shutdown", None) is not IRecordProcessor.shutdown:
        # A method of the user may return a value, although the interface says that it returns ``None``.
        checks.done("shutdown", processor.shutdown(given))  # type: ignore[func-returns-value]
    elif given.shutdown_reason is ShutdownReason.TERMINATE and getattr(given.checkpointer, "has_stored_all", False):
        given.checkpointer.checkpoint()


def batch_of(
    records: Sequence[StreamRecord], attempt: int, given: InitializationInput, checkpointer: RecordProcessorCheckpointer
) -> ProcessRecordsInput:
    """Return the argument of ``process_records`` for a batch, and count the batch in ``checkpointer``."""
    checkpointer.give(len(records))
    return ProcessRecordsInput(records, checkpointer, given.shutdown_marker, attempt)


def session_of(
    given: InitializationInput,
    make: ProcessorMaker,
    checkpointer: RecordProcessorCheckpointer,
) -> ProcessorSession | ReceiverSession:
    """Return a ``ReceiverSession`` if ``make`` is a ``ReceiverFactory``, otherwise a ``ProcessorSession``."""
    if isinstance(make, ReceiverFactory):
        return ReceiverSession(given, make.make_receiver(checkpointer), checkpointer)
    return ProcessorSession(given, make, checkpointer)
