"""What users run on a tunnel: a plain callback, a channel processor, or any record processor."""

from __future__ import annotations

import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from attrs import frozen

from streamclient.base import checks
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


@frozen
class ChannelRecordsInput:
    """Argument of ``IChannelProcessor.process`` (Java: ``ProcessRecordsInput`` of the tunnel package)."""

    records: Sequence[StreamRecord]
    """In the channel's order. Rows of full data have a sequence of zeros. Immutable; a worker's are made when they are
    first looked at, and compare equal to the tuple of them."""
    channel_id: str

    def arrow(self, schema: Mapping[str, ColumnType] | None = None) -> Any:
        """The same records by column, as ``ProcessRecordsInput.arrow``. Joined pages are made of records."""
        return records_by_column(self.records, schema)


class IChannelProcessor(ABC):
    """Processes the records of all channels, or of one if a factory makes it (Java: ``IChannelProcessor``).

    Progress is stored by the worker, every ``checkpoint_interval_millis`` and once more at the end, and covers only
    calls that returned. A call that raises is repeated as the failure policy says; nothing is skipped. One processor
    shared by all channels is called for several channels at once, never twice at once for one.
    """

    @abstractmethod
    def process(self, records_input: ChannelRecordsInput) -> None:
        """Process one batch."""

    @abstractmethod
    def shutdown(self) -> None:
        """A channel has ended, was let go or was lost; called once for each channel that was begun."""


class IChannelProcessorFactory(ABC):
    """Makes one channel processor per channel."""

    @abstractmethod
    def create_processor(self) -> IChannelProcessor:
        """Make a new channel processor."""


ChannelCallback = Callable[[Sequence[StreamRecord]], None] | Callable[[Sequence[StreamRecord], str], None]
"""The smallest processor: a function of the records of one batch, or of these and the id of their channel. It gets the
id if its second parameter is positional and has no default."""

TunnelProcessor = (
    ChannelCallback | IChannelProcessor | IChannelProcessorFactory | IRecordProcessorFactory | type[IRecordProcessor]
)
"""What ``TunnelWorker`` accepts."""


class CallbackProcessor(IChannelProcessor):
    """A callback as a channel processor."""

    def __init__(self, callback: ChannelCallback) -> None:
        self._callback: Callable[..., object] = callback
        self._takes_channel = _takes_channel(callback)

    def process(self, records_input: ChannelRecordsInput) -> None:
        """Hand the records over."""
        if self._takes_channel:
            answer = self._callback(records_input.records, records_input.channel_id)
        else:
            answer = self._callback(records_input.records)
        checks.done("the callback", answer)

    def shutdown(self) -> None:
        """A function has nothing to shut down."""


def _takes_channel(callback: Callable[..., None]) -> bool:
    """Whether there is a second parameter that must be given: one with a default may be there for its default."""
    try:
        parameters = list(inspect.signature(callback).parameters.values())
    except ValueError:  # some built-in functions do not tell
        return False
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return len(positional) > 1 and positional[1].default is inspect.Parameter.empty


class ChannelRecordProcessor(IRecordProcessor):
    """A channel processor as a record processor: stores progress by itself."""

    def __init__(
        self,
        processor: IChannelProcessor,
        checkpoint_interval_millis: int,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        is_shared: bool,
    ) -> None:
        """Raises ``ConfigurationError`` for a processor whose methods defer their work, as a factory may make it."""
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
        """Have the records processed, and store progress if it is time: also of an idle channel, whose log goes on."""
        if process_records_input.records:
            given = ChannelRecordsInput(process_records_input.records, self._channel_id)
            checks.done("process", self._processor.process(given))
        now = self._monotonic()
        if now - self._stored_at >= self._interval_seconds:
            process_records_input.checkpointer.checkpoint()
            self._stored_at = now

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Store progress once more, unless the channel is lost, and tell the processor that its channel ended.

        A processor that is shared by all channels goes on after a failure: it is not told.
        """
        reason = shutdown_input.shutdown_reason
        try:
            if reason is not ShutdownReason.ZOMBIE:
                shutdown_input.checkpointer.checkpoint()
        finally:
            if not (self._is_shared and reason is ShutdownReason.PROCESS_RESTART):
                checks.done("shutdown", self._processor.shutdown())


def stores_by_itself(processor: object) -> bool:
    """Whether it stores its own progress, as record processors do; the worker does it for all others."""
    is_class = isinstance(processor, type) and issubclass(processor, IRecordProcessor)
    return is_class or isinstance(processor, IRecordProcessorFactory)


def _deferring(processor: object) -> str:
    """Why calls of what a user gave would do no work; empty if they do it."""
    if isinstance(processor, IChannelProcessorFactory | IRecordProcessorFactory):
        return checks.deferring(processor.create_processor)
    if isinstance(processor, IChannelProcessor):
        return checks.deferring_method(IChannelProcessor, processor)
    if isinstance(processor, type):
        return checks.deferring_method(IRecordProcessor, processor)
    return checks.deferring(processor)


def record_processor_maker(
    processor: object, checkpoint_interval_millis: int, monotonic: Callable[[], float] = time.monotonic
) -> Callable[[], IRecordProcessor]:
    """How to make a record processor for each channel from whatever the user gave.

    Raises:
        ConfigurationError: it is nothing that can process records.
    """
    why = _deferring(processor)
    if why:
        raise ConfigurationError(f"processor must do its work when it is called, not {checks.shown(processor)}: {why}")
    adapt = partial(ChannelRecordProcessor, checkpoint_interval_millis=checkpoint_interval_millis, monotonic=monotonic)
    if isinstance(processor, IChannelProcessorFactory):
        return lambda: adapt(processor.create_processor(), is_shared=False)
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
        "processor must be a function of records, an IChannelProcessor, an IChannelProcessorFactory, an "
        f"IRecordProcessorFactory or a class of record processors, not {processor!r}"
    )
