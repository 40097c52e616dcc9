"""The classes that Spark calls: the data source, its readers and its writers. They call the other modules here.

Spark pickles objects of these classes and sends them from the driver to the planner process and to executors. So the
objects hold options and schemas, and open connections only in the process that uses them. Only this module defines
subclasses of pyspark's classes, so only its import needs pyspark.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import pyspark
from attrs import define, field, frozen
from pyspark.sql import datasource as spark

from streamclient.base.extras import require_extra
from streamclient.errors import ConfigurationError
from streamclient.spark.source.source_options import Layout, SourceOptions, Use

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError as error:  # pyspark before 4.2 lacks these classes, and a cluster may have an older pyspark
    raise ConfigurationError(
        f"the data source needs pyspark 4.2 or later, and this is {pyspark.__version__}: run it on a newer Spark"
    ) from error

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

    from streamclient.spark.source.offsets import ShardSlice
    from streamclient.spark.source.partition_reading import StreamService
    from streamclient.spark.source.planner import StreamPlanner
    from streamclient.spark.source.table_reading import KeyRange, PushedComparison, TablePlan
    from streamclient.spark.source.tunnel_planner import TunnelService

NO_LIMIT = 2**62
"""The number that stands for no limit on the records of a batch. The limit of each shard still applies, except with
``Trigger.Once``."""


class TablestoreDataSource(spark.DataSource):  # type: ignore[misc]
    """A Tablestore table as a data source: its change stream by ``readStream``, its rows by ``read`` and ``write``.

    If this package is installed, Spark finds the class through the module ``pyspark_tablestore``. Otherwise, call
    ``spark.dataSource.register(TablestoreDataSource)`` once in each session. The class needs Spark 4.2 or later.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        """Check the options of a query, without a call of the service.

        Raises:
            ConfigurationError: an option is unknown, missing, or contradicts another option, or pyarrow is not
                installed.
        """
        require_extra("spark", "the data source")
        super().__init__(options)
        self._options = SourceOptions.read(options)
        self._inferred: Layout | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name by which ``format`` selects this source."""
        return "tablestore"

    def service(self) -> StreamService | TunnelService:
        """Return the object by which the planner and the executors read.

        It reads the tunnel if the options name a tunnel, otherwise the table's stream.
        """
        from streamclient.spark.source.partition_reading import StreamService  # noqa: PLC0415  # the SDK comes with it
        from streamclient.spark.source.tunnel_planner import TunnelService  # noqa: PLC0415

        if self._options.tunnel_id is not None:
            return TunnelService(self._options.connection, self._options.table, self._options.tunnel_id)
        return StreamService(self._options.connection)

    def schema(self) -> StructType:
        """Return the schema that is inferred from the table, for a query in which the user gives no schema."""
        from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

        from streamclient.spark.source.source_schemas import inferred  # noqa: PLC0415

        self._inferred = self._options.inferred_layout
        return from_arrow_schema(inferred(self._options))

    def _arrow(self, schema: StructType) -> Any:
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

        return to_arrow_schema(schema, timezone="UTC")

    def streamReader(self, schema: StructType) -> ChangeStreamReader:  # noqa: N802
        """Return the reader that serves ``readStream`` with the table's changes.

        Raises:
            ConfigurationError: an option or the schema is not valid for ``readStream``.
        """
        from streamclient.spark.source.source_schemas import check_changes  # noqa: PLC0415

        options = self._options.check_use(Use.STREAM)
        self._refuse_layout(Layout.ROWS, "changes")
        return ChangeStreamReader(options, self.service(), check_changes(self._arrow(schema)))

    def reader(self, schema: StructType) -> TableReader:
        """Return the reader that serves ``read`` with the table's rows.

        Raises:
            ConfigurationError: an option or the schema is not valid for ``read``.
        """
        from streamclient.spark.source.source_schemas import check_rows  # noqa: PLC0415
        from streamclient.spark.source.table_reading import TablePlan  # noqa: PLC0415

        options = self._options.check_use(Use.ROWS)
        self._refuse_layout(Layout.CHANGES, "rows")
        plan = TablePlan(options, check_rows(self._arrow(schema)))
        return FilteringTableReader(plan) if options.pushes_filters else TableReader(plan)

    def _refuse_layout(self, other: Layout, needed: str) -> None:
        if self._inferred is other:
            use = Use.STREAM if other is Layout.ROWS else Use.ROWS
            raise ConfigurationError(
                f"{use.value} without a schema needs the option layout={needed}: Spark does not tell a source whether "
                "changes or rows are wanted when it asks for the columns. Or give the columns by .schema(...)"
            )

    def writer(self, schema: StructType, overwrite: bool) -> TableWriter:
        """Return the writer for ``write`` in mode ``append``.

        Raises:
            ConfigurationError: the mode is not ``append``, or the frame cannot be written to the table.
        """
        if overwrite:
            raise ConfigurationError(
                'mode("overwrite") would have to delete the table\'s other rows, which no request can: use '
                'mode("append"), which replaces rows of the same key'
            )
        return TableWriter(self._row_writer(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> TableStreamWriter:  # noqa: N802
        """Return the writer for ``writeStream`` in the output modes ``append`` and ``update``.

        Raises:
            ConfigurationError: the mode is ``complete``, or the frame cannot be written to the table.
        """
        if overwrite:
            raise ConfigurationError(
                'outputMode("complete") would have to delete rows that are no longer in the result: use "update"'
            )
        return TableStreamWriter(self._row_writer(schema))

    def _row_writer(self, schema: StructType) -> Any:
        from streamclient.spark.source.table_writing import RowWriter  # noqa: PLC0415

        return RowWriter.checked(self._options.check_use(Use.WRITE), self._arrow(schema))


@cache
def _freeze_imports() -> None:
    """Exclude all present objects from garbage collection, once in each Python process of an executor.

    Spark makes such a process collect garbage after each task. The collector visits mainly objects of imported modules.
    This takes as much processor time as reading 100,000 rows.
    """
    if pyspark.TaskContext.get() is not None:
        gc.freeze()


# --- readStream: the changes of a table -------------------------------------------------------------------------------


@frozen
class RangePartition(spark.InputPartition):  # type: ignore[misc]
    """The range of a shard's records that one task of Spark reads."""

    value: ShardSlice


class ChangeStreamReader(spark.DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Plans batches of changes in the Python process beside Spark's driver, and reads their ranges on executors."""

    def __init__(self, options: SourceOptions, service: StreamService | TunnelService, columns: Any) -> None:
        self._options = options
        self._service = service
        self._columns = columns
        self._planner: StreamPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle. It lacks the planner, whose threads cannot be pickled."""
        return {**vars(self), "_planner": None}

    def _plan(self) -> StreamPlanner:
        if self._planner is None:
            from streamclient.spark.source.planner import StreamPlanner  # noqa: PLC0415
            from streamclient.spark.source.tunnel_planner import TunnelPlanner, TunnelService  # noqa: PLC0415

            service = self._service
            if isinstance(service, TunnelService):
                self._planner = TunnelPlanner.of(self._options, service)
            else:
                self._planner = StreamPlanner(self._options, service.streams(), service.summary)
        return self._planner

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return an empty offset, which means the beginning of the query.

        After a crash in the first batch, Spark calls this method again and must get an equal offset.
        """
        from streamclient.spark.source.offsets import StreamOffset  # noqa: PLC0415

        return StreamOffset().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of records in a batch, which the option ``maxOffsetsPerTrigger`` sets."""
        return ReadMaxRows(self._options.max_per_trigger or NO_LIMIT)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the offset at which the next batch ends; ``start`` if there is nothing to read."""
        from streamclient.spark.source.offsets import StreamOffset  # noqa: PLC0415

        before = StreamOffset.from_json(start)
        is_whole = isinstance(limit, ReadAllAvailable)
        most = None if is_whole or limit.max_rows >= NO_LIMIT else limit.max_rows
        end = self._plan().latest(before, most, None if is_whole else self._options.max_per_shard)
        return start if end is before else end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the lag of the query. Spark shows the lag as ``latestOffset`` of this source in a query's progress."""
        return self._plan().lag()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Let the query end once it has read the records that exist now."""
        self._plan().stop_at_present()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[RangePartition]:
        """Return the ranges of records in the batch from ``start`` to ``end``, without a call of the service."""
        from streamclient.spark.source.offsets import StreamOffset  # noqa: PLC0415

        slices = self._plan().ranges(StreamOffset.from_json(start), StreamOffset.from_json(end))
        return [RangePartition(part) for part in slices]

    def read(self, partition: RangePartition) -> Iterator[RecordBatch]:
        """Read the changes of a range of records, on an executor."""
        from streamclient.spark.source.partition_reading import RangeReader, StreamPages  # noqa: PLC0415
        from streamclient.spark.source.tunnel_planner import PlannedPages, TunnelService  # noqa: PLC0415

        _freeze_imports()
        service = self._service
        if isinstance(service, TunnelService):
            return RangeReader(PlannedPages(service), self._columns).read(partition.value)
        pages = StreamPages(service, self._options.fails_on_data_loss)
        return RangeReader(pages, self._columns).read(partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """Store checkpoints at the offset ``end`` in the tunnel. Do nothing for a stream.

        Spark calls this method when it has stored ``end`` in the query's checkpoint.
        """
        from streamclient.spark.source.offsets import StreamOffset  # noqa: PLC0415

        self._plan().committed(StreamOffset.from_json(end))

    def stop(self) -> None:
        """Stop the threads that the planner of the query uses for reading."""
        if self._planner is not None:
            self._planner.close()


# --- read: the rows of a table ----------------------------------------------------------------------------------------


@frozen
class KeyPartition(spark.InputPartition):  # type: ignore[misc]
    """The range of primary keys whose rows one task of Spark reads."""

    value: KeyRange
    key: tuple[str, ...]


@define(eq=False)
class TableReader(spark.DataSourceReader):  # type: ignore[misc]
    """Plans the key ranges of a table in the Python process beside Spark's driver; reads their rows on executors."""

    plan: TablePlan

    def partitions(self) -> Sequence[KeyPartition]:
        """Return the key ranges that the query reads, one for each task."""
        from streamclient.spark.source.source_schemas import describe  # noqa: PLC0415

        key = tuple(name for name, _ in describe(self.plan.options).definition.primary_key)
        return [KeyPartition(part, key) for part in self.plan.ranges()]

    def read(self, partition: spark.InputPartition) -> Iterator[RecordBatch]:
        """Read the rows of a key range, on an executor."""
        from streamclient.spark.source.table_reading import TableRows  # noqa: PLC0415

        if not isinstance(partition, KeyPartition):
            return iter(())  # if filters exclude every range, Spark passes a partition of its own
        _freeze_imports()
        return TableRows(self.plan.options, self.plan.columns, partition.key).read(partition.value)


class FilteringTableReader(TableReader):
    """A ``TableReader`` that sends the filters of a query to the service.

    Spark uses one reader for a frame and all frames derived from it. If two queries use these frames, the filters of
    the second query replace those of the first, and rows may be missing. So a frame has this reader only if the user
    sets the option ``pushFilters``, and then it must serve only one query with one filter. Spark refuses this reader if
    Spark's setting ``spark.sql.python.filterPushdown.enabled`` is not true.
    """

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802
        """Let the service apply those filters that are safe; return all filters, so that Spark applies them, too."""
        self.plan: TablePlan = self.plan.with_conditions(safe for safe in map(_condition, filters) if safe is not None)
        return list(filters)


def _condition(given: Any) -> PushedComparison | None:
    """Return a filter of Spark as a condition for the service; ``None`` if this filter is never sent to the service."""
    from streamclient.destinations.rows.column_names import original_name  # noqa: PLC0415
    from streamclient.spark.source.table_reading import PushedComparison  # noqa: PLC0415
    from streamclient.wire.schema import ComparatorType  # noqa: PLC0415

    comparators = {
        spark.EqualTo: ComparatorType.EQUAL,
        spark.In: ComparatorType.EQUAL,
        spark.GreaterThan: ComparatorType.GREATER_THAN,
        spark.GreaterThanOrEqual: ComparatorType.GREATER_EQUAL,
        spark.LessThan: ComparatorType.LESS_THAN,
        spark.LessThanOrEqual: ComparatorType.LESS_EQUAL,
    }
    comparator = comparators.get(type(given))
    if comparator is None or len(given.attribute) != 1:
        return None
    values = tuple(given.value) if isinstance(given, spark.In) else (given.value,)
    return PushedComparison(original_name(given.attribute[0]), comparator, values)


# --- write and writeStream: the rows of a frame -----------------------------------------------------------------------


@frozen
class RowsWritten(spark.WriterCommitMessage):  # type: ignore[misc]
    """A task's message to Spark, with the number of rows that the task has written."""

    rows: int


@define(eq=False)
class TableWriter(spark.DataSourceArrowWriter):  # type: ignore[misc]
    """Writes the rows of a frame to a Tablestore table.

    The table has a row as soon as a task has sent the row, so there is nothing to commit or to undo.
    """

    rows: Any = field()

    def write(self, iterator: Iterator[RecordBatch]) -> RowsWritten:
        """Write the rows of one Spark task, on an executor."""
        _freeze_imports()
        return RowsWritten(self.rows.write(iterator))


@define(eq=False)
class TableStreamWriter(spark.DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Writes each batch of a streaming query to a Tablestore table, as ``TableWriter`` writes a frame."""

    rows: Any = field()

    def write(self, iterator: Iterator[RecordBatch]) -> RowsWritten:
        """Write the rows of one Spark task, on an executor."""
        _freeze_imports()
        return RowsWritten(self.rows.write(iterator))

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """Do nothing, because the rows of the batch are already in the table."""

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """Do nothing, because Spark repeats the batch, and writing a row a second time changes nothing."""
