"""What Spark calls: a data source and its readers and writers, which hand on to the other modules of this room.

Spark pickles these objects from process to process: driver, planner, executors. So they hold options and schemas, and
open connections where they are used. Only this module is made of pyspark's classes, and importing it needs pyspark.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import pyspark
from attrs import define, field, frozen
from pyspark.sql import datasource as spark

from streamclient.errors import ConfigurationError
from streamclient.spark.source.source_options import Layout, SourceOptions, Use

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError as error:  # they came with 4.2, and a cluster brings its own
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
"""Records per batch where the option sets none: that by shard holds then, and ``Trigger.Once`` has neither."""


class TablestoreDataSource(spark.DataSource):  # type: ignore[misc]
    """A table of Tablestore, its change stream for ``readStream``, its rows for ``read`` and ``write``.

    Register it once in a session: ``spark.dataSource.register(TablestoreDataSource)``. Needs Spark 4.2 or later.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        """Connects to nobody.

        Raises:
            ConfigurationError: an option is unknown, missing, or contradicts another one.
        """
        super().__init__(options)
        self._options = SourceOptions.read(options)
        self._inferred: Layout | None = None

    @classmethod
    def name(cls) -> str:
        """What ``format`` takes."""
        return "tablestore"

    def service(self) -> StreamService | TunnelService:
        """Where planner and executors read the stream, or the tunnel."""
        from streamclient.spark.source.partition_reading import StreamService  # noqa: PLC0415  # the SDK comes with it
        from streamclient.spark.source.tunnel_planner import TunnelService  # noqa: PLC0415

        if self._options.tunnel_id is not None:
            return TunnelService(self._options.connection, self._options.table, self._options.tunnel_id)
        return StreamService(self._options.connection)

    def schema(self) -> StructType:
        """Called by Spark if the user gives no schema."""
        from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

        from streamclient.spark.source.source_schemas import inferred  # noqa: PLC0415

        self._inferred = self._options.inferred_layout
        return from_arrow_schema(inferred(self._options))

    def _arrow(self, schema: StructType) -> Any:
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

        return to_arrow_schema(schema, timezone="UTC")

    def streamReader(self, schema: StructType) -> ChangeStreamReader:  # noqa: N802
        """For ``readStream``.

        Raises:
            ConfigurationError: an option is not for a stream, or the schema is not.
        """
        from streamclient.spark.source.source_schemas import check_changes  # noqa: PLC0415

        options = self._options.check_use(Use.STREAM)
        self._refuse_layout(Layout.ROWS, "changes")
        return ChangeStreamReader(options, self.service(), check_changes(self._arrow(schema)))

    def reader(self, schema: StructType) -> TableReader:
        """For ``read``.

        Raises:
            ConfigurationError: an option is not for rows, or the schema is not.
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
        """For ``write``; the mode is ``append``.

        Raises:
            ConfigurationError: the mode is another one, or the frame cannot be written to the table.
        """
        if overwrite:
            raise ConfigurationError(
                'mode("overwrite") would have to delete the table\'s other rows, which no request can: use '
                'mode("append"), which replaces rows of the same key'
            )
        return TableWriter(self._row_writer(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> TableStreamWriter:  # noqa: N802
        """For ``writeStream``; output modes are ``append`` and ``update``.

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
    """In a Python process of an executor, once: what is there by now is no garbage, so no collection walks through it.

    Spark has each such process collect after each task. Nearly all that is walked through then are imported modules,
    which takes as much processor time as reading 100,000 rows, and delays what else is to be done.
    """
    if pyspark.TaskContext.get() is not None:
        gc.freeze()


# --- streams ----------------------------------------------------------------------------------------------------------


@frozen
class RangePartition(spark.InputPartition):  # type: ignore[misc]
    """A range of a shard, for one task."""

    value: ShardSlice


class ChangeStreamReader(spark.DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Plans batches in Spark's planner, and reads their ranges on executors."""

    def __init__(self, options: SourceOptions, service: StreamService | TunnelService, columns: Any) -> None:
        self._options = options
        self._service = service
        self._columns = columns
        self._planner: StreamPlanner | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Executors need no planner, and threads do not travel."""
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
        """A mark. Spark asks for it again after a crash in the first batch, so it must not say more than that."""
        from streamclient.spark.source.offsets import StreamOffset  # noqa: PLC0415

        return StreamOffset().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What ``maxOffsetsPerTrigger`` says."""
        return ReadMaxRows(self._options.max_per_trigger or NO_LIMIT)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch."""
        from streamclient.spark.source.offsets import StreamOffset  # noqa: PLC0415

        before = StreamOffset.from_json(start)
        is_whole = isinstance(limit, ReadAllAvailable)
        most = None if is_whole or limit.max_rows >= NO_LIMIT else limit.max_rows
        end = self._plan().latest(before, most, None if is_whole else self._options.max_per_shard)
        return start if end is before else end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The lag, which Spark shows as ``latestOffset`` of the source in the progress of the query."""
        return self._plan().lag()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The query ends with what is there now."""
        self._plan().stop_at_present()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[RangePartition]:
        """The ranges of a batch; calls nobody."""
        from streamclient.spark.source.offsets import StreamOffset  # noqa: PLC0415

        found = self._plan().ranges(StreamOffset.from_json(start), StreamOffset.from_json(end))
        return [RangePartition(one) for one in found]

    def read(self, partition: RangePartition) -> Iterator[RecordBatch]:
        """The rows of a range, on an executor."""
        from streamclient.spark.source.partition_reading import RangeReader, StreamPages  # noqa: PLC0415
        from streamclient.spark.source.tunnel_planner import PlannedPages, TunnelService  # noqa: PLC0415

        _freeze_imports()
        service = self._service
        if isinstance(service, TunnelService):
            return RangeReader(PlannedPages(service), self._columns).read(partition.value)
        pages = StreamPages(service, self._options.fails_on_data_loss)
        return RangeReader(pages, self._columns).read(partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark keeps the offsets; a tunnel is told where it is."""
        from streamclient.spark.source.offsets import StreamOffset  # noqa: PLC0415

        self._plan().committed(StreamOffset.from_json(end))

    def stop(self) -> None:
        """End the planner's threads."""
        if self._planner is not None:
            self._planner.close()


# --- rows -------------------------------------------------------------------------------------------------------------


@frozen
class KeyPartition(spark.InputPartition):  # type: ignore[misc]
    """A range of keys, for one task."""

    value: KeyRange
    key: tuple[str, ...]


@define(eq=False)
class TableReader(spark.DataSourceReader):  # type: ignore[misc]
    """Reads the rows of a table in ranges of keys."""

    plan: TablePlan

    def partitions(self) -> Sequence[KeyPartition]:
        """Ranges of keys."""
        from streamclient.spark.source.source_schemas import describe  # noqa: PLC0415

        key = tuple(name for name, _ in describe(self.plan.options).definition.primary_key)
        return [KeyPartition(one, key) for one in self.plan.ranges()]

    def read(self, partition: spark.InputPartition) -> Iterator[RecordBatch]:
        """The rows of a range, on an executor."""
        from streamclient.spark.source.table_reading import TableRows  # noqa: PLC0415

        if not isinstance(partition, KeyPartition):
            return iter(())  # what Spark makes of no range at all: filters that contradict each other
        _freeze_imports()
        return TableRows(self.plan.options, self.plan.columns, partition.key).read(partition.value)


class FilteringTableReader(TableReader):
    """The same, for one query with one filter.

    Spark keeps one reader for a frame and whatever is made of it, and each filter that it hands over takes the place of
    the one before. So a frame says itself that it wants this one. Spark refuses it where it hands over no filters.
    """

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802
        """Narrow what is read by those that are safe. All are given back, so Spark applies each of them itself."""
        self.plan = self.plan.with_conditions(one for one in map(_condition, filters) if one is not None)
        return list(filters)


def _condition(given: Any) -> PushedComparison | None:
    """A filter as a condition; ``None`` for one that is never handed on."""
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


# --- writing ----------------------------------------------------------------------------------------------------------


@frozen
class RowsWritten(spark.WriterCommitMessage):  # type: ignore[misc]
    """How many rows a task has written."""

    rows: int


@define(eq=False)
class TableWriter(spark.DataSourceArrowWriter):  # type: ignore[misc]
    """Writes a frame. Rows are in the table as soon as a task has sent them; there is nothing to commit or to undo."""

    rows: Any = field()

    def write(self, iterator: Iterator[RecordBatch]) -> RowsWritten:
        """Write a task's rows, on an executor."""
        _freeze_imports()
        return RowsWritten(self.rows.write(iterator))


@define(eq=False)
class TableStreamWriter(spark.DataSourceStreamArrowWriter):  # type: ignore[misc]
    """The same for each batch of a query."""

    rows: Any = field()

    def write(self, iterator: Iterator[RecordBatch]) -> RowsWritten:
        """Write a task's rows, on an executor."""
        _freeze_imports()
        return RowsWritten(self.rows.write(iterator))

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """Nothing to do: the rows are there."""

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """Nothing to do: the batch is written again."""
