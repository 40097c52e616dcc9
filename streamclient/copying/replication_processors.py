"""Writes the records of one shard or channel to the destination, in the same way for tunnels and for leases."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import define

from streamclient.base.times import utc_text
from streamclient.copying.table_writer import DestinationWriter, RefusedRowError, changes_of
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


@define(eq=False)
class ReplicationProcessors(IRecordProcessorFactory):
    """Makes the processors of a replication, which share one writer."""

    writer: DestinationWriter
    end_micros: int | None = None
    refused: RefusedRowError | None = None
    """The error of the first row that the destination refused for good, if such rows end the replication. The worker
    treats this error like any other and repeats the row for ever, so the replication has to check this field."""

    def create_processor(self) -> IRecordProcessor:
        """Make a processor."""
        return ReplicationProcessor(self)

    def require_wanted(self, records: Sequence[StreamRecord]) -> None:
        """Refuse a replay of records that ``copy`` would leave out, because they would be lost silently.

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

    def copy(self, records: Sequence[StreamRecord], is_lost: Callable[[], bool]) -> None:
        """Write the wanted records of one shard, in order.

        Wanted are rows, whose time is zero, and changes up to the end time. Raises what ``DestinationWriter.write``
        raises.
        """
        end, wanted = self.end_micros, records
        if end is not None:
            times = [place_of(records, index).timestamp_micros for index in range(len(records))]
            if any(micros > end for micros in times):
                wanted = [record for record, micros in zip(records, times, strict=True) if micros <= end]
        try:
            self.writer.write(changes_of(wanted), is_lost)
        except RefusedRowError as error:
            self.refused = self.refused or error
            raise


class ReplicationProcessor(IRecordProcessor):
    """Writes each batch, then stores the position after it. So the destination has everything before that position."""

    def __init__(self, shared: ReplicationProcessors) -> None:
        self._shared = shared
        self._is_replay = False

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Remember whether parked records are replayed."""
        self._is_replay = initialization_input.is_replay

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Write the batch, then store its end.

        Empty batches are delivered, too, so that the position of an idle log moves on.
        """
        checkpointer = process_records_input.checkpointer
        if self._is_replay:
            self._shared.require_wanted(process_records_input.records)
        self._shared.copy(process_records_input.records, lambda: checkpointer.is_closed)
        checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Store the end of a shard; every batch before it was stored."""
        if shutdown_input.shutdown_reason is ShutdownReason.TERMINATE:
            shutdown_input.checkpointer.checkpoint()
