"""Writes the records of one shard or channel to the destination; the same for tunnels and for leases."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define

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


@define(eq=False)
class ReplicationProcessors(IRecordProcessorFactory):
    """Makes the processors of a replication, which share one writer."""

    writer: DestinationWriter
    end_micros: int | None = None
    refused: RefusedRowError | None = None
    """The first row that the destination refused for good, where such rows end the replication. To its worker it is a
    failure like any other, which would be repeated for ever: whoever runs the worker has to look here."""

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
        """Write the wanted ones among some records of one shard, in order.

        Full data, whose time is zero, is wanted always, changes up to the end time.
        """
        end, wanted = self.end_micros, records
        if end is not None:
            times = [place_of(records, place).timestamp_micros for place in range(len(records))]
            if any(micros > end for micros in times):
                wanted = [record for record, micros in zip(records, times, strict=True) if micros <= end]
        try:
            self.writer.write(changes_of(wanted))
        except RefusedRowError as error:
            self.refused = self.refused or error
            raise


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
