"""Writes the records of one shard or channel to the destination; the same for tunnels and for leases."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from attrs import define, field

from streamclient.base.times import utc_text
from streamclient.copying.table_changes import changes_of
from streamclient.copying.table_writer import DestinationWriter, RefusedRowError
from streamclient.errors import StreamClientException
from streamclient.interfaces import (
    InitializationInput,
    IRecordProcessor,
    IRecordProcessorFactory,
    ProcessRecordsInput,
    ShutdownInput,
)
from streamclient.model import ShutdownReason
from streamclient.records import StreamRecord, place_of


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

    def require_wanted(self, records: Sequence[StreamRecord]) -> None:
        """Refuse what ``copy`` would leave out: a replay must not lose it in silence.

        Raises:
            StreamClientException: a record was written after the end time.
        """
        end = self.end_micros
        for record in records:
            if end is not None and record.sequence_info.timestamp_micros > end:
                written = utc_text(record.sequence_info.timestamp_micros)
                raise StreamClientException(
                    f"the record was written at {written}, after the end time of the replication, {utc_text(end)}: "
                    "discard it, or replay it without an end time"
                )

    def copy(self, records: Sequence[StreamRecord]) -> None:
        """Write the wanted ones among some records of one shard, in order; counts them once they are written.

        Full data, whose time is zero, is wanted always, changes up to the end time.
        """
        times = [place_of(records, place).timestamp_micros for place in range(len(records))]
        end = self.end_micros
        wanted = records
        if end is not None and any(micros > end for micros in times):
            wanted = [record for record, micros in zip(records, times, strict=True) if micros <= end]
        try:
            self.writer.write(changes_of(wanted))
        except RefusedRowError as error:
            self.refused = self.refused or error
            raise
        base = times.count(0)
        with self._lock:
            self.counts.base_records += base
            self.counts.stream_records += len(wanted) - base
            self.counts.records_after_end += len(records) - len(wanted)
            self.counts.newest_micros = max(self.counts.newest_micros, max(times, default=0))


class ReplicationProcessor(IRecordProcessor):
    """Writes each batch, then stores the position behind it: what is stored as done is in the destination."""

    def __init__(self, shared: ReplicationProcessors) -> None:
        self._shared = shared
        self._is_replay = False

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Nothing to prepare."""
        self._is_replay = initialization_input.is_replay

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Write, then store. Empty batches are delivered for their position: that of an idle log."""
        if self._is_replay:
            self._shared.require_wanted(process_records_input.records)
        self._shared.copy(process_records_input.records)
        process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Every batch was stored; only the end of a shard is left."""
        if shutdown_input.shutdown_reason is ShutdownReason.TERMINATE:
            shutdown_input.checkpointer.checkpoint()
