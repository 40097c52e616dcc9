"""Changes as one Arrow table, and conversion between Arrow tables and DataFrames.

Rows never become tuples on the way: columns reach Spark through Arrow about four times as fast. The layout, and the
treatment of a value whose type is not its column's, are the same for every destination: see ``rows.change_rows`` and
``rows.column_types``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from streamclient.base import checks
from streamclient.destinations.commit import Commit
from streamclient.destinations.rows.change_rows import ADDED, RESERVED, change_rows
from streamclient.destinations.rows.column_layout import ChangeColumns, column_type
from streamclient.destinations.rows.column_names import original_name
from streamclient.errors import ConfigurationError
from streamclient.records import ColumnType
from streamclient.spark.processor.context import FrameColumn
from streamclient.spark.spark_packages import pyarrow, pyspark, spark_sql
from streamclient.spark.spark_session import is_connect

if TYPE_CHECKING:
    from pyarrow import DataType, RecordBatch, Schema, Table
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_PARTITION_ROWS = 10_000
"""The fewest rows of a partition. With fewer rows a second partition costs more than it saves (about 15 % of a small
write)."""

_SPARK_NAMES = {
    "bigint": ColumnType.INTEGER,
    "double": ColumnType.DOUBLE,
    "boolean": ColumnType.BOOLEAN,
    "string": ColumnType.STRING,
    "binary": ColumnType.BINARY,
}


def build_rows(
    parts: Sequence[tuple[Commit, ChangeColumns]], columns: Schema | None, declared: Mapping[str, ColumnType]
) -> Table:
    """Return one table of all shards' changes: the columns of the source, then the added ones.

    ``columns`` keep their types and spellings, as in ``change_rows``. A new column takes the type of its first value,
    in the order of the parts.
    """
    pa = pyarrow()
    tables = []
    for commit, changes in parts:
        rows = change_rows(changes, shard=commit.shard, number=commit.number, columns=columns, declared=declared)
        tables.append(rows)
        columns = grown(columns, rows.schema)
    table = pa.concat_tables(tables, promote_options="default")
    own = [name for name in table.column_names if name not in RESERVED]
    return table.select([*own, *ADDED])


def grown(columns: Schema | None, more: Schema) -> Schema:
    """Return ``columns``, followed by the columns that only ``more`` has."""
    pa = pyarrow()
    known = [] if columns is None else list(columns)
    names = {column.name for column in known}
    return pa.schema([*known, *(column for column in more if column.name not in names)])


def frame_columns(schema: Schema, key: Sequence[str]) -> tuple[FrameColumn, ...]:
    """Return the columns of a table that come from the source: keys first and in key order."""
    columns = [
        FrameColumn(column.name, kind, is_key=original_name(column.name) in key)
        for column in schema
        if column.name not in RESERVED and (kind := column_type(column.type)) is not None
    ]
    order = {name: index for index, name in enumerate(key)}
    return tuple(sorted(columns, key=lambda column: order.get(original_name(column.name), len(key))))


def to_frame(session: SparkSession, table: Table) -> DataFrame:
    """Make a DataFrame over an Arrow table, with a number of partitions that suits the rows.

    Two settings decide the route to Spark: a threshold of one byte keeps the rows out of the query plan, and the rows
    per Arrow batch give the number of partitions. They are set in ``session``, a copy (``jobs``) to which the frame is
    bound. The user's own session is left alone and stays active for all other code. Spark Connect chooses the route by
    itself.
    """
    if is_connect(session):
        return session.createDataFrame(table)
    partitions = max(1, min(session.sparkContext.defaultParallelism, table.num_rows // _PARTITION_ROWS))
    session.conf.set("spark.sql.execution.arrow.localRelationThreshold", "1b")
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(max(1, -(-table.num_rows // partitions))))
    # SparkSession's own method would make this copy the active session of the whole process, and then do the same.
    frame: DataFrame = super(spark_sql().SparkSession, session).createDataFrame(table)
    return frame


def map_in_arrow(
    frame: DataFrame, work: Callable[[Iterator[RecordBatch]], Iterator[RecordBatch]], schema: StructType
) -> DataFrame:
    """Do the work of ``frame.mapInArrow`` without pandas, which that method requires and does not use.

    Once pandas is installed, pyarrow imports pandas in each process that makes an array.
    """
    if is_connect(frame.sparkSession):
        return frame.mapInArrow(work, schema)
    sql, kind = spark_sql(), pyspark("util").PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    function = pyspark("sql.udf").UserDefinedFunction(work, returnType=schema, evalType=kind)
    columns = function(*(frame[quoted(name)] for name in frame.columns))
    mapped: DataFrame = sql.DataFrame(frame._jdf.mapInArrow(columns._jc, False, None), frame.sparkSession)
    return mapped


def quoted(name: str) -> str:
    """Quote a name of any letters for Spark."""
    return f"`{name.replace('`', '``')}`"


def to_table(frame: object) -> Table:
    """Return the rows of a transform's result, in types that destinations take.

    Raises:
        ConfigurationError: the result is not a DataFrame, or has no columns.
    """
    if not hasattr(frame, "toArrow"):
        raise ConfigurationError(f"transform must return the DataFrame to store, not {checks.shown(frame)}")
    pa = pyarrow()
    table = frame.toArrow()
    if not table.column_names:
        raise ConfigurationError("transform must return a DataFrame with columns: rows without them cannot be stored")
    return table.cast(pa.schema([pa.field(column.name, _plain(column.type)) for column in table.schema]))


def _plain(kind: DataType) -> DataType:
    """Return the type that tables keep for the same values. Spark's type may name a time zone, or use large offsets."""
    pa = pyarrow()
    types = pa.types
    if types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp("us", tz="UTC")
    if types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind):
        return pa.binary()
    if types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([pa.field(part.name, _plain(part.type)) for part in kind])
    return kind


def schema_types(schema: Any) -> dict[str, ColumnType]:
    """Return the columns of a user's schema: a mapping of name to ``ColumnType``, or a ``pyspark`` ``StructType``.

    Raises:
        ConfigurationError: a type is not one of the five that Tablestore stores.
    """
    if isinstance(schema, Mapping):
        return {str(name): _given_type(str(name), given) for name, given in schema.items()}
    fields = getattr(schema, "fields", None)
    if fields is None:
        raise ConfigurationError(f"schema must be a StructType or a mapping of name to ColumnType, not {schema!r}")
    return {column.name: _spark_type(column.name, column.dataType.simpleString()) for column in fields}


def _given_type(name: str, given: Any) -> ColumnType:
    if not isinstance(given, ColumnType):
        raise ConfigurationError(f"schema column {name!r} must have a ColumnType, not {given!r}")
    return given


def _spark_type(name: str, given: str) -> ColumnType:
    kind = _SPARK_NAMES.get(given)
    if kind is None:
        known = ", ".join(_SPARK_NAMES)
        raise ConfigurationError(
            f"schema column {name!r} has type {given}; Tablestore stores {known}: "
            "name one of these, and cast in the transform or the sink"
        )
    return kind
