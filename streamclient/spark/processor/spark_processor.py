"""The record processor that passes batches to Spark, and its factory."""

from __future__ import annotations

import inspect
import os
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from streamclient.base import checks
from streamclient.base.extras import require_extra
from streamclient.destinations.commit import Destination
from streamclient.errors import ConfigurationError, StreamClientException
from streamclient.interfaces import (
    InitializationInput,
    IRecordProcessor,
    IRecordProcessorFactory,
    ProcessRecordsInput,
    ShutdownInput,
)
from streamclient.model import CheckpointPosition, ShutdownReason, TableDefinition
from streamclient.records import ColumnType
from streamclient.spark.processor.arrow import schema_types
from streamclient.spark.processor.batch import BatchWriter, Output, Sink, Transform
from streamclient.spark.processor.buffer import BufferedPage, ShardBuffer
from streamclient.spark.processor.committer import CLOSED, Committer
from streamclient.spark.processor.outputs import DestinationOutput, SinkOutput, SourceFrames
from streamclient.spark.processor.shard_share import ShardShare
from streamclient.spark.processor.spark_config import SparkConfig
from streamclient.spark.spark_packages import pyarrow
from streamclient.spark.spark_session import SHARED_SESSION, forget_ended, is_session, why_ended
from streamclient.wire.columns import record_batch

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class SparkRecordProcessor(IRecordProcessor):
    """Buffers one shard's records, and checkpoints them once they are stored.

    Made by ``SparkRecordProcessorFactory``. ``process_records`` returns as soon as the records are buffered, and blocks
    only while the buffers of the whole worker are full. Another thread stores the batches. If a batch fails, this
    processor marks itself for a restart and raises the failure from its next call. A new processor starts from the last
    checkpoint, and records come again. Until the position of the failure, the ``process_records`` of the new processor
    returns only when its records are committed.
    """

    def __init__(self, committer: Committer, output: Output) -> None:
        self._committer = committer
        self._output = output
        self._share: ShardShare | None = None

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Join the committer; the first batch starts at the stored checkpoint.

        If an earlier owner's batch is in the destination and only its checkpoint is missing, that checkpoint is stored
        first.

        Raises:
            ConfigurationError: this is a replay of parked records.
            FencedCommit: a later owner has stored this shard in the destination: the lease is lost.
            StreamClientException: the destination ends elsewhere than the checkpoint, or has no commit of a shard that
                was processed.
        """
        given = initialization_input
        if given.is_replay:
            raise ConfigurationError(
                "SparkRecordProcessor takes no replay of parked records: it stores a shard's batches by their "
                "positions, and a parked record is before those that are stored; replay with a processor that "
                "inserts each change by its shard and sequence, or discard the record"
            )
        begin = self._output.begin(given)
        self._share = ShardShare(
            given.shard_info,
            ShardBuffer(begin.position, begin.prepared),
            given.checkpointer,
            begin.position,
            given.shutdown_marker,
            begin.last,
            begin.is_past_loss,
        )
        self._committer.register(self._share)

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Buffer the records; wait until there is room if the buffers are full.

        The processor requests its restart before it raises an error, because no record of this call is to blame. So a
        failure policy must neither repeat the call on this processor, which has ended, nor divide the call, nor park
        its records. Parts of a read would also begin at one position, and replace each other in a sink.

        Raises:
            StreamClientError: a batch of this shard was not committed, and nothing after it will be; or there was no
                room for too long; or the factory was closed.
        """
        try:
            self._buffer(process_records_input)
        except Exception:
            process_records_input.shutdown_marker.mark_for_process_restart()
            raise

    def _buffer(self, process_records_input: ProcessRecordsInput) -> None:
        share = self._started()
        share.raise_error()
        # A read without records moves no checkpoint: the next batch must start at the stored one, so that a sink
        # overwrites everything that a crashed predecessor wrote from there.
        if len(process_records_input.records):
            end = process_records_input.checkpointer.largest_permitted_checkpoint_value
            self._committer.offer(share, BufferedPage(_by_column(process_records_input), end, time.monotonic()))

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Write and checkpoint the buffered records, unless the lease is lost or a batch has failed.

        Raises:
            StreamClientError: the last batches were not committed, and no earlier call reported that.
        """
        if self._share is None:
            return  # initialize has not succeeded
        share = self._share
        try:
            if shutdown_input.shutdown_reason is ShutdownReason.ZOMBIE:
                self._committer.abandon(share)
                return
            self._committer.flush(share)
            if not share.is_error_raised:
                share.raise_error()
            if shutdown_input.shutdown_reason is ShutdownReason.TERMINATE and not share.is_ended:
                self._store_shard_end(share, shutdown_input)
        finally:
            self._committer.leave(share)

    def _store_shard_end(self, share: ShardShare, shutdown_input: ShutdownInput) -> None:
        if share.stored_position == CheckpointPosition.SHARD_END:
            return
        if not self._output.is_two_phase:
            shutdown_input.checkpointer.checkpoint(CheckpointPosition.SHARD_END)
            return
        # The destination gets the end as well: its log alone then shows that children began after their parents' end.
        self._committer.offer(share, BufferedPage(None, CheckpointPosition.SHARD_END, time.monotonic()))
        self._committer.flush(share)
        share.raise_error()

    def _started(self) -> ShardShare:
        if self._share is None:
            raise StreamClientException("initialize must be called before records are processed")
        return self._share


def _by_column(given: ProcessRecordsInput) -> RecordBatch:
    """Return the records of a call as a record batch. If the input has none by column, make it from records."""
    by_column = getattr(given, "arrow", None)
    batch: RecordBatch
    batch = pyarrow().record_batch(by_column() if by_column is not None else record_batch(given.records, None))
    return batch


_session = checks.Check(
    "a SparkSession, a function that makes one, or None",
    lambda value: (
        value is None
        or is_session(value)
        or (callable(value) and not isinstance(value, type) and not checks.deferring(value))
    ),
    because=checks.deferring,
)


@checks.explains_names
class SparkRecordProcessorFactory(IRecordProcessorFactory):
    """Makes the Spark processors of one worker. They share a session, a committing thread and the memory for records.

    Give each worker of a process its own factory. Use it as a context manager, or call ``close`` after the worker has
    stopped. No thread and no session exists before the first processor is made. Without a transform and without a sink
    Spark has nothing to do, and no session is ever started.

    Args:
        destination: the store of the changes, exactly once: a ``Destination``, or the path or address of a Delta table.
            Or a sink, which is called with a DataFrame and its ``BatchContext``, and must have written everything when
            it returns; a repeat must add nothing.
        transform: called with a DataFrame of the changes and its ``BatchContext``; returns the DataFrame to store. Only
            for a destination. Without a transform, a destination gets the changes unchanged
            (``destinations.change_rows``).
        session: a session, or a function that makes one, which is called again if the session was stopped. The default
            is ``local_session()``, shared by all factories of a process that are given no session.
        schema: types of columns, as ``StructType`` or mapping of name to ``ColumnType``. A column without a known type
            takes the type of its first value; a value of another type goes to ``_unfit``.
        table: key and declared columns, so that the first frame has all of them. Recommended.
        config: the limits of batches and of waiting records.
        starts_anew: whether the destination is meant to hold only later records, so that a shard that was already
            processed may have no commit in it. By default that is an error: the destination has lost commits. Remove
            the argument again when each shard has a commit there.

    Raises:
        ConfigurationError: an argument has a wrong type, or a package is missing.
    """

    def __init__(
        self,
        destination: Destination | Sink | str | os.PathLike[str],
        transform: Transform | None = None,
        *,
        session: SparkSession | Callable[[], SparkSession] | None = None,
        schema: StructType | Mapping[str, ColumnType] | None = None,
        table: TableDefinition | None = None,
        config: SparkConfig | None = None,
        starts_anew: bool = False,
    ) -> None:
        checks.optional(_batch_function).require("transform", transform)
        checks.optional(checks.instance(SparkConfig)).require("config", config)
        checks.optional(checks.instance(TableDefinition)).require("table", table)
        _session.require("session", session)
        key, columns = (dict(table.primary_key), dict(table.defined_columns)) if table else ({}, {})
        declared = {**columns, **(schema_types(schema) if schema is not None else {}), **key}
        frames = SourceFrames(self._shared_session, declared, tuple(key))
        self._output = _output_of(destination, transform, frames)
        checks.flag.require("starts_anew", starts_anew)
        if isinstance(self._output, DestinationOutput):
            self._output.starts_anew = starts_anew
        require_extra("spark", "a Spark processor", None if self._output.needs_spark else ["pyarrow"])
        self._given_session = session
        self._session: SparkSession | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        self._committer = Committer(config or SparkConfig(), BatchWriter(self._output).commit)

    def create_processor(self) -> SparkRecordProcessor:
        """Make a processor for one shard.

        The first call checks the destination. If Spark is needed the call also starts it, which takes seconds.

        Raises:
            StreamClientException: the factory was closed.
            ConfigurationError: the destination cannot do what exactly-once needs.
        """
        if self._is_closed:
            raise StreamClientException(CLOSED)
        self._output.open()
        if self._output.needs_spark:
            self._shared_session()
        return SparkRecordProcessor(self._committer, self._output)

    @property
    def buffered_bytes(self) -> int:
        """Estimated memory of the records that wait or are being written."""
        return self._committer.buffered_bytes

    def close(self) -> None:
        """Let the present batch finish, and drop the buffered records (they will be read again). Final.

        The last factory of this process stops the session that factories started for themselves. Other sessions stay: a
        session that was given, that ran before, or that ``local_session`` returned to a user. A given destination stays
        open, too.
        """
        self._committer.close()
        with self._lock:
            if self._session is not None and self._given_session is None:
                SHARED_SESSION.release()
            self._session, self._is_closed = None, True
        self._output.close()

    def __enter__(self) -> SparkRecordProcessorFactory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _shared_session(self) -> SparkSession:
        with self._lock:
            if self._is_closed:
                raise StreamClientException(CLOSED)
            if self._session is not None and why_ended(self._session) is not None:
                self._let_go_of_ended(self._session)
            if self._session is None:
                self._session = self._make_session()
            return self._session

    def _let_go_of_ended(self, session: SparkSession) -> None:
        forget_ended(session)
        if self._given_session is None:
            SHARED_SESSION.release()
        self._session = None

    def _make_session(self) -> SparkSession:
        given = self._given_session
        if given is None:
            return SHARED_SESSION.hold()
        made = given if is_session(given) else checks.done("session", given())
        if not is_session(made):
            raise ConfigurationError(f"session must make a SparkSession, and it made {checks.shown(made)}")
        why = why_ended(made)
        if why is not None:
            raise StreamClientException(
                f"the SparkSession that the factory was given {why}: give it a session that runs, or a function that "
                "makes one, which is asked again whenever its session has ended"
            )
        return made


def _takes_a_batch(value: object) -> bool:
    """Return whether the value can be called with a frame and a context, and has finished when it returns."""
    if not callable(value) or checks.deferring(value):
        return False
    try:
        inspect.signature(value).bind(None, None)
    except ValueError:  # some functions written in C have no signature
        return True
    except TypeError:
        return False
    return True


_batch_function = checks.Check(
    "callable with a DataFrame and a BatchContext, neither async nor a generator",
    _takes_a_batch,
    because=checks.deferring,
)


def _output_of(given: Any, transform: Transform | None, frames: SourceFrames) -> Output:
    if isinstance(given, str | os.PathLike):
        from streamclient.destinations.delta.delta_destination import DeltaDestination  # noqa: PLC0415  # it needs an extra

        return DestinationOutput(frames, DeltaDestination(os.fspath(given)), transform, is_own=True)
    if hasattr(given, "last_commits") and hasattr(given, "commit") and not isinstance(given, type):
        return DestinationOutput(frames, given, transform)
    if not callable(given) or isinstance(given, type):
        raise ConfigurationError(
            "destination must be a Destination, the path of a Delta table, or a function with a DataFrame and a "
            f"BatchContext, not {checks.shown(given)}"
        )
    if transform is not None:
        raise ConfigurationError("a transform goes with a destination; a sink gets the changes as they are")
    _batch_function.require("sink", given)
    return SinkOutput(frames, given)
