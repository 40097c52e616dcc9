"""The state of a shard that its processor shares with the committer: the buffer, the current batch and the outcome."""

from __future__ import annotations

from attrs import define

from streamclient.destinations.commit import Commit
from streamclient.errors import StreamClientError
from streamclient.interfaces import IRecordProcessorCheckpointer, IShutdownMarker
from streamclient.model import ShardInfo
from streamclient.spark.processor.buffer import ShardBatch, ShardBuffer

MOST_SHARDS = 10_000
"""The largest number of shards whose last commit or failure is remembered after their processors have ended. A worker
always holds fewer shards."""


@define(eq=False)
class ShardShare:
    """The state of one shard while a processor has it. A thread that uses a field must hold the committer's lock.

    A field that is used without the lock says so.
    """

    shard_info: ShardInfo
    buffer: ShardBuffer
    checkpointer: IRecordProcessorCheckpointer
    """The processor's checkpointer. The committing thread uses it without the lock; it is thread-safe by contract."""
    stored_position: str
    """The last position that this processor has checkpointed; at first the position at which it started."""
    marker: IShutdownMarker
    """The means to request a restart of the processor. After a failed batch, the committing thread uses it without the
    lock, because the processor may get no further call that could raise the error."""
    last: Commit | None = None
    """The shard's last commit. Once the processor is registered, only the committing thread uses this field."""
    is_past_loss: bool = False
    """Whether records at the start of the next batch are lost, and the loss is accepted. Once the processor is
    registered, only the committing thread uses this field."""
    in_flight: ShardBatch | None = None
    """The batch that is being committed. A shard has at most one, so that its batches stay in order."""
    is_flushing: bool = False
    """Whether a call waits for the commit of all buffered records. These records are then due immediately."""
    is_lost: bool = False
    """Whether the lease is known to be lost, so that no record is published or checkpointed any more."""
    error: StreamClientError | None = None
    """The error after which this processor commits no further batch. A new processor must start from the last
    checkpoint."""
    is_error_raised: bool = False
    """Whether the processor has raised ``error`` to the worker."""

    @property
    def is_in_vain(self) -> bool:
        """Whether the lease is lost, so that the shard's batch can no longer be published or checkpointed.

        The checkpointer knows of the loss before the worker informs the processor.
        """
        return self.is_lost or self.checkpointer.is_closed

    @property
    def is_ended(self) -> bool:
        """Whether no further batch may be committed, because the lease is lost or a batch has failed."""
        return self.is_lost or self.error is not None

    @property
    def is_settled(self) -> bool:
        """Whether no batch of the shard is being committed or can be committed now.

        A prepared batch whose pages have not all arrived cannot be committed now.
        """
        if self.in_flight is not None:
            return False
        return self.is_ended or not self.buffer.pages or self.buffer.is_incomplete

    def raise_error(self) -> None:
        """Raise ``error`` if it is not ``None``, and set ``is_error_raised``, because the worker gets the error."""
        if self.error is not None:
            self.is_error_raised = True
            raise self.error
