"""The record processors of a replication. They write the records of shards or channels to the destination table."""

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
    """Makes the processors of a replication, which share one writer to the destination."""

    writer: DestinationWriter
    end_micros: int | None = None
    refused: RefusedRowError | None = None
    """The error of the first row that the destination has refused for good. The worker would repeat this row for ever,
    so the replication checks this field, and ends. ``None`` without such a row, or if refused rows go to a file."""

    def create_processor(self) -> IRecordProcessor:
        """Return a processor that writes the records of one shard or channel."""
        return ReplicationProcessor(self)

    def require_wanted(self, records: Sequence[StreamRecord]) -> None:
        """Refuse to replay parked records if one of them was written after the end time.

        ``copy`` skips such records without an error, so they would count as replayed although they were not written.

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
        """Write the records of one shard in order, without changes after the end time.

        Records of the table's copied rows have the time 0, and are always written. The method raises the errors that
        ``DestinationWriter.write`` raises.
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
    """Writes each batch to the destination, and then stores its checkpoint."""

    def __init__(self, shared: ReplicationProcessors) -> None:
        self._shared = shared
        self._is_replay = False

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Remember whether the worker replays parked records."""
        self._is_replay = initialization_input.is_replay

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Write the records of the batch, and then store the batch's end as a checkpoint.

        The worker also delivers empty batches, so that the checkpoint of an idle shard advances.
        """
        checkpointer = process_records_input.checkpointer
        if self._is_replay:
            self._shared.require_wanted(process_records_input.records)
        self._shared.copy(process_records_input.records, lambda: checkpointer.is_closed)
        checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Store the end of the shard as a checkpoint if the worker has reached it. All batches are already written."""
        if shutdown_input.shutdown_reason is ShutdownReason.TERMINATE:
            shutdown_input.checkpointer.checkpoint()
