"""One processor of one shard: made, initialised, given batches, shut down. Its methods are the calls into user code."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from streamclient.errors import ConfigurationError
from streamclient.interfaces import IRecordProcessor, IShutdownMarker
from streamclient.model import (
    InitializationInput,
    PendingCheckpoint,
    ProcessRecordsInput,
    ShardInfo,
    ShutdownInput,
    ShutdownReason,
)
from streamclient.records import StreamRecord
from streamclient.worker.checkpointer import RecordProcessorCheckpointer

PROCESSOR_METHODS = ("initialize", "process_records", "shutdown")


class ShutdownMarker(IShutdownMarker):
    """Passes the processor's first mark on."""

    def __init__(self, mark: Callable[[ShutdownReason], object]) -> None:
        self._mark = mark
        self._first = threading.Lock()

    def mark_for_process_done(self) -> None:
        """Stop reading this shard here and release its lease."""
        self._mark_once(ShutdownReason.PROCESS_DONE)

    def mark_for_process_restart(self) -> None:
        """Stop this processor; a new one starts from the stored checkpoint."""
        self._mark_once(ShutdownReason.PROCESS_RESTART)

    def _mark_once(self, reason: ShutdownReason) -> None:
        if self._first.acquire(blocking=False):
            self._mark(reason)


class ProcessorSession:
    """A processor with its checkpointer and marker.

    ``initialize``, ``process`` and ``shutdown`` run in the user's executor, never two at a time.
    """

    def __init__(
        self,
        shard_info: ShardInfo,
        initial: str,
        make: Callable[[], IRecordProcessor],
        checkpointer: RecordProcessorCheckpointer,
        marker: ShutdownMarker,
        *,
        pending: PendingCheckpoint | None = None,
    ) -> None:
        self._shard_info = shard_info
        self._initial = initial
        self.pending = pending
        self._make = make
        self._marker = marker
        self.checkpointer = checkpointer
        self.processor: IRecordProcessor | None = None

    def initialize(self) -> None:
        """Make the processor and initialise it."""
        self.processor = checked_processor(self._make())
        self.processor.initialize(
            InitializationInput(self._shard_info, self._initial, self.checkpointer, self._marker, self.pending)
        )

    def process(self, records: Sequence[StreamRecord]) -> None:
        """Hand over one batch."""
        if self.processor is not None:
            self.processor.process_records(ProcessRecordsInput(records, self.checkpointer, self._marker))

    def shutdown(self, reason: ShutdownReason) -> None:
        """Tell it why it ends."""
        if self.processor is not None:
            self.processor.shutdown(ShutdownInput(reason, self.checkpointer))


def checked_processor(made: object) -> IRecordProcessor:
    """What the factory made, if it can be called as a processor."""
    missing = [name for name in PROCESSOR_METHODS if not callable(getattr(made, name, None))]
    if isinstance(made, type) or missing:
        raise ConfigurationError(
            f"the processor factory made {made!r}, which is no IRecordProcessor: it needs an instance with the methods "
            f"{', '.join(PROCESSOR_METHODS)}"
        )
    return made  # type: ignore[return-value]  # the three methods are all that is needed of it
