"""The records that a loop or a handler gets in one piece, and the processor of a shard in asyncio.

A batch is *settled* once: committed, accepted, failed, or left. The end of the loop's body or of the handler settles a
batch that user code has not settled: it commits the batch, or accepts it where commits are explicit.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, overload

from attrs import define, field

from streamclient.base.reasons import counted
from streamclient.errors import StreamClientException
from streamclient.interfaces import (
    InitializationInput,
    IRecordProcessor,
    IRecordProcessorFactory,
    ProcessRecordsInput,
)
from streamclient.model import ShardInfo, ShutdownReason
from streamclient.records import ColumnType, StreamRecord

if TYPE_CHECKING:
    from pyarrow import Table

Commit = Literal["turn", "explicit"]
"""The moment at which a batch's position is stored: ``turn`` at the end of the body or handler that got the batch,
``explicit`` only by ``commit()``."""

Key = Callable[[StreamRecord], Hashable]
"""Returns the key within which records stay in order."""


@define(eq=False)
class Settlement:
    """The fate of one batch. Thread-safe; shared by the batch and by the code that gave the batch out."""

    commits_by_itself: bool = True
    """Whether the end of the body commits the batch, so that user code has no use for the batch after it."""
    error: Exception | None = None
    """Why the batch failed, if user code says so."""
    is_committed: bool = False
    is_over: bool = False
    """Whether the body or the handler that got the batch has ended."""
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    def failed(self, error: Exception) -> None:
        """Settle the batch as failed.

        Raises:
            StreamClientException: the batch is settled, or over.
        """
        with self._lock:
            self._require_open("fail")
            if self.is_committed:
                raise StreamClientException("the batch is committed, so it cannot fail any more")
            self.error = error

    def begin_commit(self) -> bool:
        """Return whether the batch is still to be committed.

        Raises:
            StreamClientException: the batch failed, or is over.
        """
        with self._lock:
            self._require_open("commit")
            return not self.is_committed

    def committed(self) -> None:
        """Settle the batch as committed: its position is stored."""
        with self._lock:
            self.is_committed = True

    def end(self) -> None:
        """Record that the body or the handler has ended."""
        with self._lock:
            self.is_over = True

    def require_readable(self) -> None:
        """Raise ``StreamClientException`` if the batch is over and must not be used any more."""
        if self.is_over and self.commits_by_itself:
            raise StreamClientException(
                "the batch is over: it was committed when the body or the handler that got it ended, so no other task "
                'may work on it; finish the work inside, or use commit="explicit"'
            )

    def _require_open(self, what: str) -> None:
        self.require_readable()
        if self.error is not None:
            raise StreamClientException(f"cannot {what}: the batch was settled as failed ({self.error!r})")


class BatchBase(Sequence[StreamRecord]):
    """Records of one shard, oldest first, as an immutable sequence. A new object for each delivery.

    Each record object is made when it is first read. Records of one shard come in order, a batch at a time; the next
    batch of the shard comes when this one is settled.
    """

    def __init__(
        self,
        records: Sequence[StreamRecord],
        given: InitializationInput,
        settlement: Settlement,
        store: Callable[[str], Any],
        *,
        position: str,
        attempt: int = 0,
        is_end: bool = False,
        lost_after: str | None = None,
    ) -> None:
        """Make a batch. Only loops and handlers get batches; programs make none.

        ``store`` stores a position, and raises what ``checkpointer.checkpoint`` raises. For an ``AsyncBatch`` it is
        awaited.
        """
        self._records = records
        self._given = given
        self._settlement = settlement
        self._store = store
        self._position = position
        self._attempt = attempt
        self._is_end = is_end
        self._lost_after = lost_after

    # --- the records ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        self._settlement.require_readable()
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> StreamRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[StreamRecord]: ...
    def __getitem__(self, index: int | slice) -> StreamRecord | Sequence[StreamRecord]:
        self._settlement.require_readable()
        return self._records[index]

    def __iter__(self) -> Iterator[StreamRecord]:
        self._settlement.require_readable()
        return iter(self._records)

    def arrow(self, schema: Mapping[str, ColumnType] | None = None) -> Any:
        """Return the records by column, with all that they carry; see ``ProcessRecordsInput.arrow``."""
        self._settlement.require_readable()
        return ProcessRecordsInput(self._records, self._given.checkpointer, self._given.shutdown_marker).arrow(schema)

    def to_arrow(self) -> Table:
        """Return the records as a ``pyarrow.Table``: a row for each, with a column for each column that a record puts.

        The rows are the same as in ``streamclient.destinations.change_rows``. A whole batch makes no record objects for
        this.

        Raises:
            CodecError: the records are not of one table.
            ConfigurationError: pyarrow is missing.
        """
        return self._frames.to_arrow(self._records, shard=self.shard.shard_id)

    def to_polars(self) -> Any:
        """Return the rows of ``to_arrow`` as a ``polars.DataFrame``.

        Errors as in ``to_arrow``, also if polars is missing.
        """
        return self._frames.to_polars(self._records, shard=self.shard.shard_id)

    def to_pandas(self) -> Any:
        """Return the rows of ``to_arrow`` as a ``pandas.DataFrame`` with the types of Arrow.

        Errors as in ``to_arrow``.
        """
        return self._frames.to_pandas(self._records, shard=self.shard.shard_id)

    @property
    def _frames(self) -> ModuleType:
        from streamclient.destinations.rows import frames  # noqa: PLC0415  # pyarrow is for those who ask for it

        self._settlement.require_readable()
        return frames

    # --- where they are from -------------------------------------------------------------------------------------

    @property
    def shard(self) -> ShardInfo:
        """The shard. Its ``epoch`` is the number of this acquisition of the lease."""
        return self._given.shard_info

    @property
    def table(self) -> str:
        """The name of the data table. It is empty under a ``TunnelWorker`` that was not given the name."""
        return self._given.shard_info.table_name

    @property
    def position(self) -> str:
        """The position after the batch, which ``commit`` stores.

        For a piece of a page, it is the position before that page.
        """
        return self._position

    @property
    def attempt(self) -> int:
        """The number of earlier deliveries of all these records that failed in this process."""
        return self._attempt

    @property
    def is_replay(self) -> bool:
        """Whether parked records are delivered again; see ``InitializationInput.is_replay``."""
        return self._given.is_replay

    @property
    def is_end(self) -> bool:
        """Whether this batch, without records, stands for the shard's end and is to be committed.

        There is such a batch only if commits are explicit.
        """
        return self._is_end

    @property
    def is_lost(self) -> bool:
        """Whether the lease is lost, so that nothing can be stored any more.

        Further work on the batch is then in vain.
        """
        return self._given.checkpointer.is_closed

    @property
    def lost_after(self) -> str | None:
        """The stored position after which records were lost and the loss was accepted; ``None`` without a loss."""
        return self._lost_after

    # --- what becomes of them ------------------------------------------------------------------------------------

    def fail(self, error: Exception, /) -> None:
        """Settle the batch as failed: ``ClientConfig.failure_policy`` decides what follows, for this shard alone.

        The present body or handler goes on to its end. Usable from any thread.

        Raises:
            StreamClientException: the batch is settled otherwise, or over.
        """
        self._settlement.failed(error)

    def __repr__(self) -> str:
        if self._is_end:
            return f"<end of shard {self.shard.shard_id}>"
        return f"<{type(self).__name__} of {counted(len(self._records), 'record')} of shard {self.shard.shard_id}>"


class Batch(BatchBase):
    """A batch in a plain loop or function."""

    def commit(self) -> None:
        """Store the position after this batch, and so after all earlier ones of its shard; return once it is stored.

        A second call does nothing. Usable from any thread.

        Raises:
            ShutdownException: the lease is lost; nothing was stored.
            DependencyException: the status table gave no usable answer; call again, or go on: the next commit stores
                this batch as well.
            StreamClientException: the batch has failed or is over.
        """
        if self._settlement.begin_commit():
            self._store(self._position)
            self._settlement.committed()


class AsyncBatch(BatchBase):
    """A batch in an ``async for`` loop or an ``async def`` function."""

    async def commit(self) -> None:
        """Store the position after this batch. The call returns once the position is stored. As ``Batch.commit``.

        Cancellation while it waits leaves open whether the position is stored.
        """
        if self._settlement.begin_commit():
            await self._store(self._position)
            self._settlement.committed()


class AsyncRecordProcessor(ABC):
    """Processes the records of one shard in an event loop, and keeps state for the shard.

    Calls for one instance never overlap, and all come from one event loop. ``process_records`` stores nothing by
    itself: await ``batch.commit()``.
    """

    async def initialize(self, initialization_input: InitializationInput) -> None:  # noqa: B027
        """Prepare to read the shard; awaited once, before anything else. By default it does nothing."""

    @abstractmethod
    async def process_records(self, batch: AsyncBatch) -> None:
        """Process one batch; await ``batch.commit()`` once all records up to here are safe."""

    async def shutdown(  # noqa: B027
        self, reason: ShutdownReason, commit: Callable[[], Awaitable[None]]
    ) -> None:
        """Finish; awaited once, after the last batch. ``commit`` stores the position after all batches.

        Where a processor does not override this method, the worker stores the end of a shard (``TERMINATE``) for it if
        the processor has committed every batch that it was given.
        """


BatchHandler = Callable[[Batch], None]
AsyncBatchHandler = Callable[[AsyncBatch], Awaitable[None]]

RecordProcessorFactory = (
    IRecordProcessorFactory
    | Callable[[], IRecordProcessor]
    | Callable[[], AsyncRecordProcessor]
    | BatchHandler
    | AsyncBatchHandler
)
"""The processor argument of ``Worker``: a factory, which is a class or function without arguments that makes
processors; or a handler, which is a function or an ``async def`` that takes one batch. A class is never a handler."""
