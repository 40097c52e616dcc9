"""The record processors of a replication. They write the records of shards or channels to the destination table.

Processors may write a record twice: the copy may already contain the record's change, or a batch was written and its
checkpoint was not stored. The destination still ends with the source's rows, by these laws:

1. *Puts and other deletions.* If records without deletions of single versions are written again, in order, the row is
   the same afterwards. A column keeps the greatest versions that were put, and a second put of a version does not
   change which versions are the greatest. If a record emptied the row or the column, no earlier record matters. Until
   all records are written again, the row may be newer than the processor's position.
2. *Deletions of single versions.* Law 1 does not hold for them. If a put and the deletion of its version are written
   again, the put may push out an older version that the source still has. A destination that keeps more versions than
   the source may even show a version that the source has lost. So no such deletion is written. In its place, the
   processor reads the whole row from the source table, and writes it. The row contains all records of the batch,
   because they were read from the stream before. Later records follow by law 1, even if the row contains them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import define, field

from streamclient.base.times import utc_text
from streamclient.copying.replication_end import ChannelEnds, is_storable
from streamclient.copying.source_table import SourceTable
from streamclient.copying.table_writer import DestinationWriter, RefusedRowError, RowChange, changes_of
from streamclient.destinations.folding.row_changes import TableRule
from streamclient.errors import StreamClientException
from streamclient.interfaces import (
    InitializationInput,
    IRecordProcessor,
    IRecordProcessorFactory,
    ProcessRecordsInput,
    ShutdownInput,
)
from streamclient.model import ShutdownReason
from streamclient.records import RecordType, StreamRecord


@define(eq=False)
class ReplicationProcessors(IRecordProcessorFactory):
    """Makes the processors of a replication, which share one writer to the destination."""

    writer: DestinationWriter
    source: SourceTable
    """The table from which a row is read if one of its versions was deleted."""
    end_micros: int | None = None
    """The end time of the replication. The source delivers no record that was written after it."""
    ends: ChannelEnds = field(init=False, factory=ChannelEnds)
    """The channels of a tunnel that are copied up to the end time. The processors and the source share this object."""
    refused: RefusedRowError | None = None
    """The error of the first row that the destination has refused for good. The worker would repeat this row for ever,
    so the replication checks this field, and ends. ``None`` without such a row, or if refused rows go to a file."""
    _rule: TableRule | None = field(init=False, default=None)
    """The rule of the source table, which the first read of a row needs."""

    def create_processor(self) -> IRecordProcessor:
        """Return a processor that writes the records of one shard or channel."""
        return ReplicationProcessor(self)

    def require_wanted(self, records: Sequence[StreamRecord]) -> None:
        """Refuse to replay parked records if one of them was written after the end time.

        No source delivers such a record, and none must come into the destination by a replay.

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
        """Write the records of one shard in order.

        If a record deletes a single version of a column, its row is written as the source table has it now, so the row
        may have changes after the end time. The method raises the errors that ``DestinationWriter.write`` and
        ``SourceTable.read_again`` raise.
        """
        try:
            self.writer.write(self._repeatable(changes_of(records)), is_lost)
        except RefusedRowError as error:
            self.refused = self.refused or error
            raise

    def _repeatable(self, changes: list[RowChange]) -> list[RowChange]:
        """Return ``changes`` with whole rows in place of all changes of rows that lose single versions (law 2)."""
        keys = {change.identity: change.key for change in changes if change.deletes_one_version}
        if not keys:
            return changes
        rule = self._rule = self._rule or self.source.rule()
        rows: list[StreamRecord] = []
        for key in keys.values():
            values = dict(key)
            found, _ = self.source.read_again(rule, [[values[name] for name in rule.key]])
            rows += found or [StreamRecord(RecordType.DELETE, key)]
        return [change for change in changes if change.identity not in keys] + changes_of(rows)


class ReplicationProcessor(IRecordProcessor):
    """Writes each batch to the destination, and then stores its checkpoint."""

    def __init__(self, shared: ReplicationProcessors) -> None:
        self._shared = shared
        self._is_replay = False
        self._shard_id = ""

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Remember the shard or channel, and whether the worker replays parked records."""
        self._is_replay = initialization_input.is_replay
        self._shard_id = initialization_input.shard_info.shard_id

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Write the records of the batch, and then store the batch's end as a checkpoint.

        The worker also delivers empty batches, so that the checkpoint of an idle shard advances. If the batch ends
        inside a page of a tunnel, nothing is stored, because the service knows no such position.
        """
        checkpointer = process_records_input.checkpointer
        if self._is_replay:
            self._shared.require_wanted(process_records_input.records)
        self._shared.copy(process_records_input.records, lambda: checkpointer.is_closed)
        position = checkpointer.largest_permitted_checkpoint_value
        if is_storable(position):
            checkpointer.checkpoint()
        self._shared.ends.written(self._shard_id, position)

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Store the end of the shard as a checkpoint if the worker has reached it. All batches are already written."""
        if shutdown_input.shutdown_reason is ShutdownReason.TERMINATE:
            shutdown_input.checkpointer.checkpoint()
