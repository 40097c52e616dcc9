"""Changes of several shards as one Arrow table, and conversion between Arrow tables and Spark's DataFrames.

The conversion passes whole columns through Arrow. This is about four times as fast as passing tuples of rows. The
module ``destinations.rows.change_rows`` describes the columns of a table of changes.
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
"""The smallest number of rows in each partition of a frame with several partitions. Smaller partitions would cost more
time than they save: about 15 % of a small write."""

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
    """Return the changes of all ``parts`` as rows of one Arrow table.

    The columns of the source table come first, and then the columns that ``change_rows`` adds. A column in ``columns``
    keeps its name and type. A new column has the type in ``declared``, or otherwise the type of its first value.
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


def key_first(rows: Table, key: Sequence[str]) -> Table:
    """Return ``rows`` with the key columns first, in the order of ``key``.

    Rows without changes need it: their columns are in alphabetical order.
    """
    order = {name: place for place, name in enumerate(key)}

    def place_of(column: str) -> int:
        return len(order) if column in RESERVED else order.get(original_name(column), len(order))

    return rows.select(sorted(rows.column_names, key=place_of))


def grown(columns: Schema | None, more: Schema) -> Schema:
    """Return the schema ``columns``, extended by those columns of ``more`` that it lacks."""
    pa = pyarrow()
    known = [] if columns is None else list(columns)
    names = {column.name for column in known}
    return pa.schema([*known, *(column for column in more if column.name not in names)])


def frame_columns(schema: Schema, key: Sequence[str]) -> tuple[FrameColumn, ...]:
    """Return the columns of ``schema`` that the source table has. The key columns come first, in key order."""
    columns = [
        FrameColumn(column.name, kind, is_key=original_name(column.name) in key)
        for column in schema
        if column.name not in RESERVED and (kind := column_type(column.type)) is not None
    ]
    order = {name: index for index, name in enumerate(key)}
    return tuple(sorted(columns, key=lambda column: order.get(original_name(column.name), len(key))))


def to_frame(session: SparkSession, table: Table) -> DataFrame:
    """Make a Spark DataFrame of an Arrow table, with as many partitions as suit the number of rows.

    The function changes two settings of ``session``, so ``session`` must be a private copy of the user's session. The
    first setting is the size up to which Spark puts rows into the query plan; one byte keeps all rows out of it. The
    second setting is the number of rows in an Arrow batch, because Spark makes one partition of each batch. With Spark
    Connect, the function changes no setting.
    """
    if is_connect(session):
        return session.createDataFrame(table)
    partitions = max(1, min(session.sparkContext.defaultParallelism, table.num_rows // _PARTITION_ROWS))
    session.conf.set("spark.sql.execution.arrow.localRelationThreshold", "1b")
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(max(1, -(-table.num_rows // partitions))))
    # ``SparkSession.createDataFrame`` would also make ``session`` the active session of the process.
    frame: DataFrame = super(spark_sql().SparkSession, session).createDataFrame(table)
    return frame


def map_in_arrow(
    frame: DataFrame, work: Callable[[Iterator[RecordBatch]], Iterator[RecordBatch]], schema: StructType
) -> DataFrame:
    """Return the result of ``frame.mapInArrow(work, schema)``, even if pandas is not installed.

    Spark's own method requires pandas, but does not use it. An installed pandas costs time, because pyarrow imports it
    in each process that makes an array.
    """
    if is_connect(frame.sparkSession):
        return frame.mapInArrow(work, schema)
    sql, kind = spark_sql(), pyspark("util").PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    function = pyspark("sql.udf").UserDefinedFunction(work, returnType=schema, evalType=kind)
    columns = function(*(frame[quoted(name)] for name in frame.columns))
    mapped: DataFrame = sql.DataFrame(frame._jdf.mapInArrow(columns._jc, False, None), frame.sparkSession)
    return mapped


def quoted(name: str) -> str:
    """Return ``name`` as a quoted identifier for Spark SQL."""
    return f"`{name.replace('`', '``')}`"


def to_table(frame: object) -> Table:
    """Return ``frame``, the result of a user's transform, as an Arrow table with types that destinations accept.

    Raises:
        ConfigurationError: ``frame`` is not a DataFrame, or has no columns.
    """
    if not hasattr(frame, "toArrow"):
        raise ConfigurationError(f"transform must return the DataFrame to store, not {checks.shown(frame)}")
    pa = pyarrow()
    table = frame.toArrow()
    if not table.column_names:
        raise ConfigurationError("transform must return a DataFrame with columns: rows without them cannot be stored")
    return table.cast(pa.schema([pa.field(column.name, _plain(column.type)) for column in table.schema]))


def _plain(kind: DataType) -> DataType:
    """Return the type in which destinations accept values of ``kind``.

    A timestamp with a time zone becomes microseconds in UTC. Arrow's ``large_`` types become the types without
    ``large_``. The parts of a nested type are converted likewise. All other types stay unchanged.
    """
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
    """Return the type of each column in a user's schema, by the name of the column.

    ``schema`` is a mapping of name to ``ColumnType``, or a ``StructType`` of pyspark.

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
            "name one of these types, and cast the column in the transform or the sink"
        )
    return kind
