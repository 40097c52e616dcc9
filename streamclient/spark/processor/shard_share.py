"""One processor's share of the committer: its buffer, and the state of its batches."""

from __future__ import annotations

from attrs import define

from streamclient.destinations.commit import Commit
from streamclient.errors import StreamClientError
from streamclient.interfaces import IRecordProcessorCheckpointer, IShutdownMarker
from streamclient.model import ShardInfo
from streamclient.spark.processor.buffer import ShardBatch, ShardBuffer

MOST_SHARDS = 10_000
"""The largest number of shards without a processor that are remembered. A worker never holds as many shards."""


@define(eq=False)
class ShardShare:
    """The state of one shard while one processor has it. Guarded by the committer's lock, except where noted."""

    shard_info: ShardInfo
    buffer: ShardBuffer
    checkpointer: IRecordProcessorCheckpointer
    """Thread-safe by its contract; used by the committing thread."""
    stored_position: str
    """The last position that was checkpointed here, or the initial position."""
    marker: IShutdownMarker
    """Thread-safe by its contract; used by the committing thread when a batch failed and no further call may come to
    report it."""
    last: Commit | None = None
    """The shard's last commit. After the processor is registered, only the committing thread uses this field."""
    is_past_loss: bool = False
    """Whether records before the next batch are lost, and the loss is accepted. Used by the same threads as
    ``last``."""
    in_flight: ShardBatch | None = None
    """The batch that is being committed. There is at most one, so that a shard's batches stay in order."""
    is_flushing: bool = False
    """Whether all waiting records are due, because the processor shuts down."""
    is_lost: bool = False
    """Whether the lease is lost: no record of the shard is published or checkpointed any more."""
    error: StreamClientError | None = None
    """The reason why no further batch is committed. The processor must end, and a new one starts from the last
    checkpoint."""
    is_error_raised: bool = False
    """Whether the processor has raised the error to the worker."""

    @property
    def is_in_vain(self) -> bool:
        """Whether the shard's batch can no longer be published or checkpointed.

        This is known before the processor is informed.
        """
        return self.is_lost or self.checkpointer.is_closed

    @property
    def is_ended(self) -> bool:
        """Whether no further batch may be committed."""
        return self.is_lost or self.error is not None

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing to wait for. An incomplete part of a prepared batch is not committed."""
        if self.in_flight is not None:
            return False
        return self.is_ended or not self.buffer.pages or self.buffer.is_incomplete

    def raise_error(self) -> None:
        """Raise the shard's error, if there is one, and remember that the worker knows it."""
        if self.error is not None:
            self.is_error_raised = True
            raise self.error
