"""Batches of records for loops and handlers, and the async processor of a shard.

A batch is *settled* once: committed, accepted, failed, or left. A batch that user code has not settled is settled at
the end of the loop's body or of the handler. The batch is then committed. With explicit commits, it is accepted without
a commit.
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
"""The time at which the position of a batch is stored: with ``turn`` at the end of the batch's loop body or handler,
with ``explicit`` when the program calls ``commit()``."""

Key = Callable[[StreamRecord], Hashable]
"""A function that returns the key of a record. Records with the same key stay in order."""


@define(eq=False)
class Settlement:
    """The state of one batch: whether it is open, committed, failed or over.

    Thread-safe. The batch shares this object with the code that gave the batch out.
    """

    commits_by_itself: bool = True
    """Whether the batch is committed when its loop body or handler ends. If so, user code must not use the batch after
    that end."""
    error: Exception | None = None
    """The error with which user code has settled the batch as failed; ``None`` otherwise."""
    is_committed: bool = False
    is_over: bool = False
    """Whether the batch's loop body or handler has ended."""
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    def failed(self, error: Exception) -> None:
        """Settle the batch as failed.

        Raises:
            StreamClientException: the batch is settled already, or its body has ended.
        """
        with self._lock:
            self._require_open("fail")
            if self.is_committed:
                raise StreamClientException("the batch is committed, so it cannot fail any more")
            self.error = error

    def begin_commit(self) -> bool:
        """Return whether a commit must store the position; ``False`` if the batch is committed already.

        Raises:
            StreamClientException: the batch has failed, or its body has ended.
        """
        with self._lock:
            self._require_open("commit")
            return not self.is_committed

    def committed(self) -> None:
        """Settle the batch as committed: its position is stored."""
        with self._lock:
            self.is_committed = True

    def end(self) -> None:
        """Record that the batch's loop body or handler has ended."""
        with self._lock:
            self.is_over = True

    def require_readable(self) -> None:
        """Raise ``StreamClientException`` if the batch must not be used any more.

        This is so once its loop body or handler has ended, unless commits are explicit.
        """
        if self.is_over and self.commits_by_itself:
            raise StreamClientException(
                "the batch is over: its loop body or handler has ended, which settled the batch, so no task may work "
                'on it any more; finish all work on a batch before that end, or use commit="explicit"'
            )

    def _require_open(self, what: str) -> None:
        self.require_readable()
        if self.error is not None:
            raise StreamClientException(f"cannot {what}: the batch was settled as failed ({self.error!r})")


class BatchBase(Sequence[StreamRecord]):
    """Records of one shard, oldest first, as an immutable sequence. Each delivery of the records is a new batch.

    Each record object is made when it is first read. The records of a shard come in order, one batch at a time: the
    next batch of the shard comes when the present batch is settled.
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
        """Make a batch; programs receive batches, and need not make them.

        ``store`` stores a position, and raises the errors of ``checkpointer.checkpoint``. For an ``AsyncBatch``,
        ``store`` is awaited.
        """
        self._records = records
        self._given = given
        self._settlement = settlement
        self._store = store
        self.handed_position: str = position
        """The position that ``commit`` stores, in the form in which the worker gave it. For this package's own code."""
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
        """Return the records by column, with all their fields; see ``ProcessRecordsInput.arrow``."""
        self._settlement.require_readable()
        return ProcessRecordsInput(self._records, self._given.checkpointer, self._given.shutdown_marker).arrow(schema)

    def to_arrow(self) -> Table:
        """Return the records as a ``pyarrow.Table``, with a row for each record.

        The table has a column for each column of the data table into which a record of the batch puts a value. The rows
        are the same as in ``streamclient.destinations.change_rows``. If the batch is a whole page, this method makes no
        record objects.

        Raises:
            CodecError: the records are not of one table.
            ConfigurationError: pyarrow is missing.
        """
        return self._frames.to_arrow(self._records, shard=self.shard.shard_id)

    def to_polars(self) -> Any:
        """Return the rows of ``to_arrow`` as a ``polars.DataFrame``.

        Errors are the same as in ``to_arrow``; a missing polars is a ``ConfigurationError``, too.
        """
        return self._frames.to_polars(self._records, shard=self.shard.shard_id)

    def to_pandas(self) -> Any:
        """Return the rows of ``to_arrow`` as a ``pandas.DataFrame`` with the types of Arrow.

        Errors are the same as in ``to_arrow``.
        """
        return self._frames.to_pandas(self._records, shard=self.shard.shard_id)

    @property
    def _frames(self) -> ModuleType:
        from streamclient.destinations.rows import frames  # noqa: PLC0415  # loaded only if it is used

        self._settlement.require_readable()
        return frames

    # --- the origin of the records -------------------------------------------------------------------------------

    @property
    def shard(self) -> ShardInfo:
        """The shard of the records. Its ``epoch`` is the number of this acquisition of the lease."""
        return self._given.shard_info

    @property
    def table(self) -> str:
        """The name of the data table. It is empty under a ``TunnelWorker`` that was not given the name."""
        return self._given.shard_info.table_name

    @property
    def position(self) -> str:
        """The position that ``commit`` stores. Usually it is the position after the batch.

        If a page is delivered in several batches, for example after a failure, only the last of them has the position
        after the page. The batches before the last one have the position before the page.
        """
        return str(self.handed_position)

    @property
    def attempt(self) -> int:
        """The number of times that a delivery of all these records has failed since the shard's last new processor.

        By default (``ClientConfig.failure_policy``), a new processor follows each failure, also under a loop, so the
        number stays 0. It counts the retries that ``FailurePolicy.retries`` allows.
        """
        return self._attempt

    @property
    def is_replay(self) -> bool:
        """Whether this batch delivers parked records again; see ``InitializationInput.is_replay``."""
        return self._given.is_replay

    @property
    def is_end(self) -> bool:
        """Whether this batch has no records, and stands for the shard's end, which the program must commit.

        Such a batch comes only if commits are explicit.
        """
        return self._is_end

    @property
    def is_lost(self) -> bool:
        """Whether the lease is lost, so that no position can be stored any more.

        Further work on the batch is then useless.
        """
        return self._given.checkpointer.is_closed

    @property
    def lost_after(self) -> str | None:
        """The stored position after which records were lost and the loss was accepted; ``None`` without a loss."""
        return self._lost_after

    # --- the outcome of the batch --------------------------------------------------------------------------------

    def fail(self, error: Exception, /) -> None:
        """Settle the batch as failed. ``ClientConfig.failure_policy`` then decides about the batch and its shard.

        The present body or handler goes on to its end. Usable from any thread.

        Raises:
            StreamClientException: the batch is settled already, or its body has ended.
        """
        self._settlement.failed(error)

    def __repr__(self) -> str:
        if self._is_end:
            return f"<end of shard {self.shard.shard_id}>"
        return f"<{type(self).__name__} of {counted(len(self._records), 'record')} of shard {self.shard.shard_id}>"


class Batch(BatchBase):
    """A batch for a plain loop or a plain function."""

    def commit(self) -> None:
        """Store the position after this batch, and return once it is stored.

        The position covers all earlier batches of the shard, too. A second call does nothing. Usable from any thread.

        Raises:
            ShutdownException: the lease is lost; nothing was stored.
            DependencyException: the status table gave no usable answer. Call again, or go on: the next commit of the
                shard includes this batch.
            StreamClientException: the batch has failed, or its body has ended.
        """
        if self._settlement.begin_commit():
            self._store(self.handed_position)
            self._settlement.committed()


class AsyncBatch(BatchBase):
    """A batch for an ``async for`` loop or an ``async def`` function."""

    async def commit(self) -> None:
        """Store the position after this batch, and return once it is stored; see ``Batch.commit``.

        If this call is cancelled while it waits, the position may or may not be stored.
        """
        if self._settlement.begin_commit():
            await self._store(self.handed_position)
            self._settlement.committed()


class AsyncRecordProcessor(ABC):
    """Processes the records of one shard in an event loop, and keeps state for the shard.

    Calls for one instance never overlap, and all come from one event loop. To store a position, ``process_records``
    must await ``batch.commit()``.
    """

    async def initialize(self, initialization_input: InitializationInput) -> None:  # noqa: B027
        """Prepare to process the shard; awaited once, before the other methods. This default does nothing."""

    @abstractmethod
    async def process_records(self, batch: AsyncBatch) -> None:
        """Process one batch; await ``batch.commit()`` once all records up to the end of the batch are safe."""

    async def shutdown(  # noqa: B027
        self, reason: ShutdownReason, commit: Callable[[], Awaitable[None]]
    ) -> None:
        """Finish the work on the shard; awaited once, after the last batch.

        ``commit`` stores the position after all batches. If a processor does not override this method, the worker
        stores the end of a shard (``TERMINATE``) itself, provided that the processor has committed every batch.
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
"""The kinds of objects that ``Worker`` takes as its processor factory. A factory object, or a class or function without
arguments, makes processors. A function or ``async def`` that takes one batch is a handler. A class is never a
handler."""
