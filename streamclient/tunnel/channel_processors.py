"""The kinds of processors that users run on a tunnel: plain callbacks, channel processors and record processors."""

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
    """The argument of ``IChannelProcessor.process`` (Java: ``ProcessRecordsInput`` of the tunnel package)."""

    records: Sequence[StreamRecord]
    """The records of one batch, in the channel's order. Records of full data have zeros as their ``sequence_info``.
    ``records`` is immutable and equals a tuple of these records. Each record object is made when it is first used."""
    channel_id: str

    def arrow(self, schema: Mapping[str, ColumnType] | None = None) -> Any:
        """Return the records by column, like ``ProcessRecordsInput.arrow``.

        If ``records`` come from several joined pages, the method first makes an object for each record.
        """
        return records_by_column(self.records, schema)


class IChannelProcessor(ABC):
    """Processes the records of all channels, or of one channel if a factory makes it (Java: ``IChannelProcessor``).

    The worker stores progress every ``checkpoint_interval_millis``, and once more at the end. The stored progress
    covers only calls that returned. If a call raises, the failure policy decides how the call is repeated; no record is
    skipped. A processor that all channels share may be called for several channels at the same time. Calls for one
    channel never overlap.
    """

    @abstractmethod
    def process(self, records_input: ChannelRecordsInput) -> None:
        """Process one batch of records of one channel."""

    @abstractmethod
    def shutdown(self) -> None:
        """Clean up after a channel that ended, was released or was lost. Called once for each channel that began."""


class IChannelProcessorFactory(ABC):
    """Makes one channel processor for each channel."""

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
    """A channel processor that calls a user's callback."""

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
    """Return whether the callback requires a second positional parameter, which is then the id of the channel.

    A second parameter with a default keeps its default.
    """
    try:
        parameters = list(inspect.signature(callback).parameters.values())
    except ValueError:  # some built-in functions have no signature
        return False
    positional = [known for known in parameters if known.kind in (known.POSITIONAL_ONLY, known.POSITIONAL_OR_KEYWORD)]
    return len(positional) > 1 and positional[1].default is inspect.Parameter.empty


class ChannelRecordProcessor(IRecordProcessor):
    """A record processor that calls a user's channel processor and stores the progress itself."""

    def __init__(
        self,
        processor: IChannelProcessor,
        checkpoint_interval_millis: int,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        is_shared: bool,
    ) -> None:
        """Wrap ``processor``, which all channels use if ``is_shared`` is true.

        Raises:
            ConfigurationError: calls of the processor's methods would do no work, for example because they are async.
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
        """Remember the channel, and start the interval after which progress is stored."""
        self._channel_id = initialization_input.shard_info.shard_id
        self._stored_at = self._monotonic()

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Process the records, and store progress if the interval is over.

        Progress of an idle channel is stored, too, because its position moves on with the log.
        """
        if process_records_input.records:
            given = ChannelRecordsInput(process_records_input.records, self._channel_id)
            checks.done("process", self._processor.process(given))
        now = self._monotonic()
        if now - self._stored_at >= self._interval_seconds:
            process_records_input.checkpointer.checkpoint()
            self._stored_at = now

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Store progress once more, and call the channel processor's ``shutdown``.

        Progress of a lost channel is not stored. If all channels share the channel processor and a call failed, the
        processor goes on without a shutdown.
        """
        reason = shutdown_input.shutdown_reason
        try:
            if reason is not ShutdownReason.ZOMBIE:
                shutdown_input.checkpointer.checkpoint()
        finally:
            if not (self._is_shared and reason is ShutdownReason.PROCESS_RESTART):
                checks.done("shutdown", self._processor.shutdown())


def stores_by_itself(processor: object) -> bool:
    """Return whether the processor itself stores its progress, as record processors do. If not, the worker does."""
    is_class = isinstance(processor, type) and issubclass(processor, IRecordProcessor)
    return is_class or isinstance(processor, IRecordProcessorFactory) or processor_kind(processor) in _ASYNC


def _deferring(processor: object) -> str:
    """Return why calls of a user's processor would do no work, for example because its method is a generator.

    The text is empty if calls do work.
    """
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
    """Return a function that makes a record processor for each channel, or return a ``ReceiverFactory``.

    The records go to the user's ``processor``. A ``ReceiverFactory`` is returned if ``processor`` is async or is itself
    a ``ReceiverFactory``.

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
        "IChannelProcessorFactory, an IRecordProcessorFactory or a class of (async) record processors, not "
        f"{processor!r}"
    )
