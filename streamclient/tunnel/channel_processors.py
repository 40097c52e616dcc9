"""The processors that users run on a tunnel: a plain callback, a channel processor, or any record processor."""

from __future__ import annotations

import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from attrs import frozen

from streamclient.base import checks
from streamclient.config import ProcessorKind, processor_kind
from streamclient.errors import ConfigurationError
from streamclient.interfaces import (
    InitializationInput,
    IRecordProcessor,
    IRecordProcessorFactory,
    ProcessRecordsInput,
    ShutdownInput,
)
from streamclient.model import ShutdownReason
from streamclient.records import ColumnType, StreamRecord
from streamclient.wire.columns import records_by_column
from streamclient.worker.handing_over import ReceiverFactory
from streamclient.worker.handlers.batches import AsyncBatchHandler, AsyncRecordProcessor
from streamclient.worker.handlers.handler_processor import processor_maker


@frozen
class ChannelRecordsInput:
    """Argument of ``IChannelProcessor.process`` (Java: ``ProcessRecordsInput`` of the tunnel package)."""

    records: Sequence[StreamRecord]
    """Records in the channel's order. Rows of full data have a sequence of zeros. The sequence is immutable and equals
    a tuple of the same records. A worker makes each record object only when it is first read."""
    channel_id: str

    def arrow(self, schema: Mapping[str, ColumnType] | None = None) -> Any:
        """Return the same records by column, like ``ProcessRecordsInput.arrow``; joined pages are converted."""
        return records_by_column(self.records, schema)


class IChannelProcessor(ABC):
    """Processes the records of all channels, or of one if a factory makes it (Java: ``IChannelProcessor``).

    The worker stores progress, every ``checkpoint_interval_millis`` and once more at the end. The stored progress
    covers only calls that returned. A call that raises is repeated as the failure policy says; nothing is skipped. A
    processor shared by all channels is called for several channels at once, but never twice at once for one channel.
    """

    @abstractmethod
    def process(self, records_input: ChannelRecordsInput) -> None:
        """Process one batch."""

    @abstractmethod
    def shutdown(self) -> None:
        """Clean up after a channel that ended, was released or was lost; called once for each channel that began."""


class IChannelProcessorFactory(ABC):
    """Makes one channel processor per channel."""

    @abstractmethod
    def create_processor(self) -> IChannelProcessor:
        """Make a new channel processor."""


ChannelCallback = Callable[[Sequence[StreamRecord]], None] | Callable[[Sequence[StreamRecord], str], None]
"""The smallest processor: a function of a batch's records, or of the records and the id of their channel. The function
receives the id if its second parameter is positional and has no default."""

TunnelProcessor = (
    ChannelCallback
    | IChannelProcessor
    | IChannelProcessorFactory
    | IRecordProcessorFactory
    | type[IRecordProcessor]
    | AsyncBatchHandler
    | type[AsyncRecordProcessor]
)
"""The processors that ``TunnelWorker`` accepts."""

_ASYNC = (ProcessorKind.ASYNC_HANDLER, ProcessorKind.ASYNC_MAKER)


class CallbackProcessor(IChannelProcessor):
    """A callback as a channel processor."""

    def __init__(self, callback: ChannelCallback) -> None:
        self._callback: Callable[..., object] = callback
        self._takes_channel = _takes_channel(callback)

    def process(self, records_input: ChannelRecordsInput) -> None:
        """Call the callback with the records."""
        if self._takes_channel:
            answer = self._callback(records_input.records, records_input.channel_id)
        else:
            answer = self._callback(records_input.records)
        checks.done("the callback", answer)

    def shutdown(self) -> None:
        """Do nothing, because a function needs no shutdown."""


def _takes_channel(callback: Callable[..., None]) -> bool:
    """Return whether a second positional parameter is required.

    A parameter with a default is meant to keep its default.
    """
    try:
        parameters = list(inspect.signature(callback).parameters.values())
    except ValueError:  # some built-in functions have no signature
        return False
    positional = [known for known in parameters if known.kind in (known.POSITIONAL_ONLY, known.POSITIONAL_OR_KEYWORD)]
    return len(positional) > 1 and positional[1].default is inspect.Parameter.empty


class ChannelRecordProcessor(IRecordProcessor):
    """A channel processor as a record processor, which stores progress by itself."""

    def __init__(
        self,
        processor: IChannelProcessor,
        checkpoint_interval_millis: int,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        is_shared: bool,
    ) -> None:
        """Make it.

        Raise ``ConfigurationError`` for a processor, for example of a factory, whose methods defer their work.
        """
        why = checks.deferring_method(IChannelProcessor, checks.done("the processor factory", processor))
        if why:
            raise ConfigurationError(f"the processor factory made {checks.shown(processor)}, which does no work: {why}")
        self._processor = processor
        self._interval_seconds = checkpoint_interval_millis / 1_000
        self._monotonic = monotonic
        self._is_shared = is_shared
        self._channel_id = ""
        self._stored_at = 0.0

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Remember the channel."""
        self._channel_id = initialization_input.shard_info.shard_id
        self._stored_at = self._monotonic()

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Process the records, and store progress if it is due.

        Do so also for an idle channel, because its log goes on.
        """
        if process_records_input.records:
            given = ChannelRecordsInput(process_records_input.records, self._channel_id)
            checks.done("process", self._processor.process(given))
        now = self._monotonic()
        if now - self._stored_at >= self._interval_seconds:
            process_records_input.checkpointer.checkpoint()
            self._stored_at = now

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Store progress once more, unless the channel is lost, and tell the processor that its channel ended.

        A processor that all channels share goes on after a failure, so it is not told then.
        """
        reason = shutdown_input.shutdown_reason
        try:
            if reason is not ShutdownReason.ZOMBIE:
                shutdown_input.checkpointer.checkpoint()
        finally:
            if not (self._is_shared and reason is ShutdownReason.PROCESS_RESTART):
                checks.done("shutdown", self._processor.shutdown())


def stores_by_itself(processor: object) -> bool:
    """Return whether the processor stores its own progress. Record processors do; for others the worker stores it."""
    is_class = isinstance(processor, type) and issubclass(processor, IRecordProcessor)
    return is_class or isinstance(processor, IRecordProcessorFactory) or processor_kind(processor) in _ASYNC


def _deferring(processor: object) -> str:
    """Return why calls of a user's processor would do no work; empty if they do work."""
    if isinstance(processor, IChannelProcessorFactory | IRecordProcessorFactory):
        return checks.deferring(processor.create_processor)
    if isinstance(processor, IChannelProcessor):
        return checks.deferring_method(IChannelProcessor, processor)
    if isinstance(processor, type):
        return checks.deferring_method(IRecordProcessor, processor)
    return checks.deferring(processor)


def record_processor_maker(
    processor: object, checkpoint_interval_millis: int, monotonic: Callable[[], float] = time.monotonic
) -> Callable[[], IRecordProcessor] | ReceiverFactory:
    """Return the maker of a record processor or receiver for each channel, from the user's processor.

    Raises:
        ConfigurationError: ``processor`` cannot process records.
    """
    if processor_kind(processor) in _ASYNC:
        return processor_maker("processor", processor)
    why = _deferring(processor)
    if why:
        raise ConfigurationError(f"processor must do its work when it is called, not {checks.shown(processor)}: {why}")
    adapt = partial(ChannelRecordProcessor, checkpoint_interval_millis=checkpoint_interval_millis, monotonic=monotonic)
    if isinstance(processor, IChannelProcessorFactory):
        return lambda: adapt(processor.create_processor(), is_shared=False)
    if isinstance(processor, ReceiverFactory):
        return processor
    if isinstance(processor, IRecordProcessorFactory):
        return processor.create_processor
    if isinstance(processor, IChannelProcessor):
        return lambda: adapt(processor, is_shared=True)
    if isinstance(processor, type) and issubclass(processor, IRecordProcessor):
        return processor
    if callable(processor) and not isinstance(processor, type):
        shared = CallbackProcessor(processor)
        return lambda: adapt(shared, is_shared=True)
    raise ConfigurationError(
        "processor must be a function of records, an async def of one batch, an IChannelProcessor, an "
        "IChannelProcessorFactory, an IRecordProcessorFactory or a class of record processors, async or not, not "
        f"{processor!r}"
    )
