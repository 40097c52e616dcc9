"""Writes the records of one shard or channel to the destination; the same for tunnels and for leases."""

from __future__ import annotations

import threading

from attrs import define, field

from streamclient.interfaces import (
    InitializationInput,
    IRecordProcessor,
    IRecordProcessorFactory,
    ProcessRecordsInput,
    ShutdownInput,
)
from streamclient.model import ShutdownReason
from streamclient.records import StreamRecord
from streamclient.replicate.changes import change_of, is_wanted
from streamclient.replicate.writer import DestinationWriter, RefusedRowError


@define
class ReadCounts:
    """What was read so far. Changed under the factory's lock."""

    base_records: int = 0
    stream_records: int = 0
    records_after_end: int = 0
    newest_micros: int = 0
    """Time of the newest change that was read, by the service's clock."""


@define(eq=False)
class ReplicationProcessors(IRecordProcessorFactory):
    """Makes the processors of a replication, which share one writer and one count."""

    writer: DestinationWriter
    end_micros: int | None = None
    counts: ReadCounts = field(factory=ReadCounts)
    refused: RefusedRowError | None = None
    """The first row that the destination refused for good, where such rows end the replication. To its worker it is a
    failure like any other, which would be repeated for ever: whoever runs the worker has to look here."""
    _lock: threading.Lock = field(factory=threading.Lock)

    def create_processor(self) -> IRecordProcessor:
        """Make one more."""
        return ReplicationProcessor(self)

    def copy(self, records: list[StreamRecord]) -> None:
        """Write the wanted ones among some records of one shard, in order; counts them once they are written."""
        wanted = [record for record in records if is_wanted(record, self.end_micros)]
        changes = [change for change in map(change_of, wanted) if change is not None]
        try:
            self.writer.write(changes)
        except RefusedRowError as error:
            self.refused = self.refused or error
            raise
        base = sum(record.sequence_info.timestamp_micros == 0 for record in wanted)
        with self._lock:
            self.counts.base_records += base
            self.counts.stream_records += len(wanted) - base
            self.counts.records_after_end += len(records) - len(wanted)
            newest = max((record.sequence_info.timestamp_micros for record in records), default=0)
            self.counts.newest_micros = max(self.counts.newest_micros, newest)


class ReplicationProcessor(IRecordProcessor):
    """Writes each batch, then stores the position behind it: what is stored as done is in the destination."""

    def __init__(self, shared: ReplicationProcessors) -> None:
        self._shared = shared

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Nothing to prepare."""

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Write, then store. Empty batches are delivered for their position: that of an idle log."""
        self._shared.copy(list(process_records_input.records))
        process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Every batch was stored; only the end of a shard is left."""
        if shutdown_input.shutdown_reason is ShutdownReason.TERMINATE:
            shutdown_input.checkpointer.checkpoint()
