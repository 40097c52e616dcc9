"""The record processors of a mirror. They pass the changes of their shards to the mirror's writer."""

from __future__ import annotations

from attrs import define

from streamclient.copying.mirror_shards import MirroredShard
from streamclient.copying.mirror_writer import MirrorWriter
from streamclient.errors import ConfigurationError, StreamClientException
from streamclient.interfaces import (
    InitializationInput,
    IRecordProcessor,
    IRecordProcessorFactory,
    ProcessRecordsInput,
    ShutdownInput,
)
from streamclient.model import CheckpointPosition, ShutdownReason


class MirrorProcessor(IRecordProcessor):
    """Passes the changes of one shard to the writer. ``process_records`` returns before the changes are merged."""

    def __init__(self, writer: MirrorWriter) -> None:
        self._writer = writer
        self._shard: MirroredShard | None = None

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Register the shard with the writer. The writer also completes a batch that an earlier owner prepared.

        Raises:
            ConfigurationError: the worker replays parked records.
        """
        if initialization_input.is_replay:
            raise ConfigurationError(
                "MirrorProcessor takes no replay of parked records: a mirror merges a shard's changes by their "
                "positions, and a parked record is before changes that are merged; copy the table into the mirror again"
            )
        initialization_input.checkpointer.store_only_requests()  # each batch starts where the last one ended
        self._shard = self._writer.begin(initialization_input)

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Pass the changes to the writer, which merges them later.

        An error of the writer is never due to a record of this call, so the worker must not park a record. Therefore
        the processor asks the worker for a restart before it raises the error.
        """
        records = process_records_input.records
        if not records:
            return
        try:
            end = process_records_input.checkpointer.largest_permitted_checkpoint_value
            self._writer.offer(self._started(), records, end)
        except Exception:
            process_records_input.shutdown_marker.mark_for_process_restart()
            raise

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Merge the waiting changes, unless the lease is lost. Store the end of the shard if it was reached."""
        if self._shard is None:
            return  # `initialize` has failed
        shard, reason = self._shard, shutdown_input.shutdown_reason
        try:
            if reason is not ShutdownReason.ZOMBIE and shard.error is None:
                self._writer.flush(shard, is_end=reason is ShutdownReason.TERMINATE)
            if reason is ShutdownReason.TERMINATE and shard.error is None:
                shutdown_input.checkpointer.checkpoint(CheckpointPosition.SHARD_END)
        finally:
            self._writer.leave(shard, is_lost=reason is ShutdownReason.ZOMBIE)

    def _started(self) -> MirroredShard:
        if self._shard is None:
            raise StreamClientException("initialize must be called before records are processed")
        return self._shard


@define
class MirrorProcessors(IRecordProcessorFactory):
    """Makes the processors of a mirror in one process. They share one writer."""

    writer: MirrorWriter

    def create_processor(self) -> MirrorProcessor:
        """Return a processor that passes the changes of one shard to the shared writer."""
        return MirrorProcessor(self.writer)
