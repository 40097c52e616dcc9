"""The record processor that hands batches to Spark, and its factory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from streamclient import checks
from streamclient.errors import ConfigurationError, StreamClientException
from streamclient.interfaces import IRecordProcessor, IRecordProcessorFactory
from streamclient.model import (
    CheckpointPosition,
    ColumnType,
    InitializationInput,
    ProcessRecordsInput,
    ShutdownInput,
    ShutdownReason,
    TableDefinition,
)
from streamclient.spark.batch import BatchWriter, RejectSink, Reporter, Sink
from streamclient.spark.buffer import Page, ShardBuffer, estimate_bytes
from streamclient.spark.columns import GrowingSchema
from streamclient.spark.committer import CLOSED, Committer
from streamclient.spark.config import SparkConfig, UnfitValue
from streamclient.spark.extra import require_spark
from streamclient.spark.session import SHARED_SESSION
from streamclient.spark.tenancy import Tenancy
from streamclient.spark.types import schema_types

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class SparkRecordProcessor(IRecordProcessor):
    """Buffers one shard's records, and checkpoints them once the sink has written them.

    Made by ``SparkRecordProcessorFactory``. ``process_records`` returns as soon as the records are buffered, and blocks
    only while the buffers of the whole worker are full. The sink runs in another thread; if it fails, this processor
    marks itself for a restart and raises that failure from its next call, a new one starts from the last checkpoint,
    and records come again. Up to the place of the failure the new one's ``process_records`` returns only when its
    records are committed.
    """

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._tenancy: Tenancy | None = None

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Join the committer; the first batch starts at the stored checkpoint."""
        given, start = initialization_input, initialization_input.initial_checkpoint
        self._tenancy = Tenancy(given.shard_info, ShardBuffer(start), given.checkpointer, start, given.shutdown_marker)
        self._committer.register(self._tenancy)

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Buffer the records; wait for room if there is none.

        Whatever it raises is marked as a restart first: no record of this call is to blame, so a failure policy must
        neither deliver the call again to this processor, which is over, nor cut it, nor park its records. Pieces of a
        read would also begin at one position, and replace each other in a lake.

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
        tenancy = self._started()
        tenancy.raise_error()
        records = tuple(process_records_input.records)
        # A read without records moves no checkpoint: the next batch must start at the stored one, so that it
        # overwrites whatever a crashed predecessor wrote from there.
        if records:
            end = process_records_input.checkpointer.largest_permitted_checkpoint_value
            self._committer.offer(tenancy, Page(records, end, estimate_bytes(records), time.monotonic()))

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Write and checkpoint what is buffered, unless the lease is lost or a batch has failed.

        Raises:
            StreamClientError: the last batches were not committed, and no earlier call said so.
        """
        tenancy = self._started()
        try:
            if shutdown_input.shutdown_reason is ShutdownReason.ZOMBIE:
                self._committer.abandon(tenancy)
                return
            self._committer.flush(tenancy)
            if not tenancy.is_error_raised:
                tenancy.raise_error()
            if shutdown_input.shutdown_reason is ShutdownReason.TERMINATE and not tenancy.is_ended:
                self._store_shard_end(tenancy, shutdown_input)
        finally:
            self._committer.leave(tenancy)

    def _store_shard_end(self, tenancy: Tenancy, shutdown_input: ShutdownInput) -> None:
        if tenancy.stored_position != CheckpointPosition.SHARD_END:
            shutdown_input.checkpointer.checkpoint(CheckpointPosition.SHARD_END)

    def _started(self) -> Tenancy:
        if self._tenancy is None:
            raise StreamClientException("initialize must be called before records are processed")
        return self._tenancy


_session = checks.Check(
    "a SparkSession, a function that makes one, or None",
    lambda value: value is None or callable(value) or hasattr(value, "createDataFrame"),
)


@checks.explains_names
class SparkRecordProcessorFactory(IRecordProcessorFactory):
    """Makes the Spark processors of one worker; they share a session, a committing thread and the room for records.

    Give each worker of a process its own factory. Use it as a context manager, or call ``close`` after the worker has
    stopped. No thread and no session exists before the first processor is made.

    Args:
        sink: called with a DataFrame and its ``BatchContext``; must have written everything when it returns.
        session: a session, or a function that makes one (called once); by default ``local_session()``, which
            all factories of a process that bring none share.
        schema: the columns, as ``StructType`` or mapping of name to ``ColumnType``; a column outside it is then unfit.
            Without it, the table definition and the data decide, and new columns appear as they come.
        table: key and declared columns, so that the first frame has them all; cheap to give and good to have.
        config: limits, and what happens to values that do not fit.
        reject_sink: takes diverted records; needed with ``UnfitValue.DIVERT``, and only then.
        reporter: hears of each value that did not fit, in addition to the log.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        session: SparkSession | Callable[[], SparkSession] | None = None,
        schema: StructType | Mapping[str, ColumnType] | None = None,
        table: TableDefinition | None = None,
        config: SparkConfig | None = None,
        reject_sink: RejectSink | None = None,
        reporter: Reporter | None = None,
    ) -> None:
        require_spark()
        checks.optional(checks.instance(SparkConfig)).require("config", config)
        checks.optional(checks.instance(TableDefinition)).require("table", table)
        checks.optional(checks.function("with an UnfitReport")).require("reporter", reporter)
        checks.optional(checks.function("with a DataFrame and a BatchContext")).require("reject_sink", reject_sink)
        _session.require("session", session)
        self._config = config if config is not None else SparkConfig()
        _check(sink, self._config, reject_sink)
        self._table = table
        self._schema_types = None if schema is None else schema_types(schema)
        self._given_session = session
        self._session: SparkSession | None = None
        self._is_closed = False
        self._schema: GrowingSchema | None = None
        self._lock = threading.Lock()
        writer = BatchWriter(self._shared_session, self._shared_schema, sink, reject_sink, reporter)
        self._committer = Committer(self._config, writer.commit, cancel=writer.cancel)

    def create_processor(self) -> SparkRecordProcessor:
        """Make a processor for one shard. The first one starts Spark, which takes seconds, if it does not run yet.

        Raises:
            StreamClientException: the factory was closed.
        """
        self._shared_session()
        return SparkRecordProcessor(self._committer)

    @property
    def buffered_bytes(self) -> int:
        """Estimated memory of the records that wait or are being written."""
        return self._committer.buffered_bytes

    def close(self) -> None:
        """Let the batch on its way finish, and drop what is buffered (it will be read again). Final.

        The session that the factories of this process started for themselves is stopped with the last of them. A
        session that was given, or that ran before, stays.
        """
        self._committer.close()
        with self._lock:
            if self._session is not None and self._given_session is None:
                SHARED_SESSION.release()
            self._session, self._is_closed = None, True

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
            if self._session is None:
                self._session = self._make_session()
            return self._session

    def _make_session(self) -> SparkSession:
        given = self._given_session
        if given is None:
            return SHARED_SESSION.hold()
        return given() if _is_function(given) else given

    def _shared_schema(self) -> GrowingSchema:
        """Made at the first batch, as only a session knows how it compares names."""
        if self._schema is None:
            case_sensitive = self._shared_session().conf.get("spark.sql.caseSensitive", "false") == "true"
            self._schema = GrowingSchema.make(
                self._config.unfit_value,
                self._config.prefix,
                is_case_sensitive=case_sensitive,
                schema=self._schema_types,
                table=self._table,
            )
        return self._schema


def _is_function(given: object) -> bool:
    return callable(given) and not hasattr(given, "createDataFrame")


def _check(sink: Sink, config: SparkConfig, reject_sink: RejectSink | None) -> None:
    checks.function("with a DataFrame and a BatchContext").require("sink", sink)
    diverts = config.unfit_value is UnfitValue.DIVERT
    if diverts and reject_sink is None:
        raise ConfigurationError("UnfitValue.DIVERT needs a reject_sink, or diverted records would be lost")
    if not diverts and reject_sink is not None:
        raise ConfigurationError(f"a reject_sink is only used with UnfitValue.DIVERT, not with {config.unfit_value}")
