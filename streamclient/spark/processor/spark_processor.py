"""The record processor that stores batches in a destination, or passes them to a sink, and its factory."""

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
    """Buffers one shard's records, and checkpoints them once they are stored; made by ``SparkRecordProcessorFactory``.

    ``process_records`` returns as soon as the records are buffered, and blocks only while the buffers of the whole
    worker are full. Another thread stores the batches. If a batch fails, this processor requests its own restart,
    and its next call raises the error. A new processor then starts at the last checkpoint and gets the records again.
    Until the records of the failed batch are committed, each ``process_records`` of the new processor returns only when
    its records are committed.
    """

    def __init__(self, committer: Committer, output: Output) -> None:
        self._committer = committer
        self._output = output
        self._share: ShardShare | None = None

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Register the shard with the committer. The shard's first batch starts at the stored checkpoint.

        If an earlier owner stored a batch in the destination but not the batch's checkpoint, store that checkpoint
        first.

        Raises:
            ConfigurationError: the worker replays parked records.
            FencedCommit: a later owner of the shard has committed to the destination, so the lease is lost.
            StreamClientException: the shard's last commit in the destination does not end at the checkpoint, or an
                expected commit is missing.
        """
        given = initialization_input
        if given.is_replay:
            raise ConfigurationError(
                "SparkRecordProcessor takes no replay of parked records: it stores a shard's batches by their "
                "positions, and a parked record is before the stored position; replay with a processor that "
                "inserts each change by its shard and sequence, or discard the record"
            )
        given.checkpointer.store_only_requests()  # the next batch starts where the last one ended
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
        """Buffer the records. If the buffers are full, wait until there is room.

        If an earlier batch has failed, the records of this call are not the cause. So the processor requests its
        own restart before it raises the error. The worker then does not apply the failure policy, which would repeat or
        divide the call, or park the records of the call.

        Raises:
            StreamClientError: a batch of this shard was not committed, so this processor commits no later batch. Or the
                buffers stayed full for ``SparkConfig.max_wait_millis``. Or the factory was closed.
        """
        try:
            self._buffer(process_records_input)
        except Exception:
            process_records_input.shutdown_marker.mark_for_process_restart()
            raise

    def _buffer(self, process_records_input: ProcessRecordsInput) -> None:
        share = self._started()
        share.raise_error()
        # A read without records does not move the checkpoint. The next batch must start at the stored checkpoint, so
        # that a sink overwrites the output of an earlier owner that crashed after this checkpoint.
        if len(process_records_input.records):
            end = process_records_input.checkpointer.largest_permitted_checkpoint_value
            self._committer.offer(share, BufferedPage(_by_column(process_records_input), end, time.monotonic()))

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Write and checkpoint the buffered records if the lease is held and no batch has failed.

        Raises:
            StreamClientError: records were not committed, and no earlier call has raised the error.
        """
        if self._share is None:
            return  # `initialize` has failed, so there is nothing to write
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
        # Commit the end of the shard, too. So the destination's log alone can prove that the child shards began after
        # the end of this parent.
        self._committer.offer(share, BufferedPage(None, CheckpointPosition.SHARD_END, time.monotonic()))
        self._committer.flush(share)
        share.raise_error()

    def _started(self) -> ShardShare:
        if self._share is None:
            raise StreamClientException("initialize must be called before records are processed")
        return self._share


def _by_column(given: ProcessRecordsInput) -> RecordBatch:
    """Return the records of a call as an Arrow batch. Convert them from record objects if ``given`` has no columns."""
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
    """Makes the Spark processors of one worker, which share a Spark session, a committing thread and a memory limit.

    Give each worker of a process its own factory. Use the factory as a context manager, or call ``close`` after the
    worker has stopped. The first processor starts the committing thread and the Spark session. A destination without a
    transform needs no session.

    Args:
        destination: a ``Destination``, or the path or address of a Delta table: the changes are stored there exactly
            once. Or a sink: a function that is called with a DataFrame and its ``BatchContext``, and returns when all
            rows are written. If a sink gets the same records again, it must not store them twice.
        transform: for a destination, a function that is called with a DataFrame of the changes and its
            ``BatchContext``, and returns the DataFrame to store. Without a transform, the destination stores the
            changes unchanged (``destinations.change_rows``).
        session: a Spark session, or a function that makes one and is called again if that session has stopped. By
            default, all factories of the process without this argument share one session like that of
            ``local_session()``.
        schema: types of columns, as a ``StructType`` or a mapping of name to ``ColumnType``. Any other column takes the
            type of its first value. Values of another type than their column go to ``_unfit``.
        table: the definition of the source table. With it, the first frame already has all key and declared columns.
            Recommended.
        config: the limits for batches and waiting records.
        starts_anew: whether the destination may lack commits for records that workers have already processed. Set it if
            the destination shall hold later records only. By default a missing commit is an error, because the
            destination may have lost it. Remove this argument once each shard has a commit in the destination.

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
        """Return a processor for one shard.

        The first call checks the destination. It also starts Spark if Spark is needed, which takes seconds.

        Raises:
            StreamClientException: the factory was closed.
            ConfigurationError: the destination cannot store each row exactly once; see ``Destination.probe``.
        """
        if self._is_closed:
            raise StreamClientException(CLOSED)
        self._output.open()
        if self._output.needs_spark:
            self._shared_session()
        return SparkRecordProcessor(self._committer, self._output)

    @property
    def buffered_bytes(self) -> int:
        """The memory of all records that wait or are being written, in bytes."""
        return self._committer.buffered_bytes

    def close(self) -> None:
        """Wait until the current batch is committed, and drop all other buffered records.

        A later worker reads the dropped records from the last checkpoint. This factory cannot be used afterwards. If
        factories have started the shared session, the last of them to close stops it. A session that the user started
        or passed stays open. A destination that was passed as an object stays open, too.
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
                f"the SparkSession given to the factory {why}: give the factory a session that runs, or a function "
                "that makes one, which is called again whenever its session has ended"
            )
        return made


def _takes_a_batch(value: object) -> bool:
    """Return whether ``value`` is a function of a frame and a context, neither async nor a generator."""
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
        raise ConfigurationError("a transform needs a destination: with a sink, transform the changes in the sink")
    _batch_function.require("sink", given)
    return SinkOutput(frames, given)
