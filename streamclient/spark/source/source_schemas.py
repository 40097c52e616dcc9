"""The schema of the frames that the data source makes: given by the user and checked, or inferred from the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from streamclient.destinations.rows.arrow_schemas import same_type
from streamclient.destinations.rows.change_rows import ADDED, COMMIT, RESERVED, UNFIT, VERSIONS, added_types
from streamclient.destinations.rows.column_layout import arrow_type, column_type
from streamclient.destinations.rows.column_names import marked, original_name, stored_names
from streamclient.destinations.rows.column_types import type_of
from streamclient.errors import ConfigurationError, DependencyException
from streamclient.records import ColumnType
from streamclient.spark.source.partition_reading import calls_of, opened
from streamclient.spark.source.source_options import Layout, SourceOptions
from streamclient.spark.spark_packages import pyarrow
from streamclient.tablestore.ranges import TableScan
from streamclient.tablestore.stream_operations import TablestoreStreamApi
from streamclient.tablestore.stream_tables import TableDescription
from streamclient.wire.plainbuffer import Row
from streamclient.wire.rows import KeyBound

if TYPE_CHECKING:
    from pyarrow import Field, Schema

SPARK_TYPES = "bigint, double, boolean, string, binary"
"""Spark's names of the five types that Tablestore stores, for messages."""

_OF_ROWS = (VERSIONS, UNFIT)
"""The columns that a frame of rows may have beside the table's columns."""


def describe(options: SourceOptions) -> TableDescription:
    """Return the service's description of the table that ``options`` names.

    Raises:
        ConfigurationError: the table does not exist.
    """
    try:
        return TablestoreStreamApi(opened(options.connection)).describe_table(options.table)
    except DependencyException as error:
        if error.code != _NO_TABLE:
            raise
        instance = options.connection.instance
        raise ConfigurationError(f"instance {instance!r} has no table {options.table!r}: {error}") from error


_NO_TABLE = "OTSObjectNotExist"
"""The service's error code for a table that does not exist. The service's message does not name the table."""


def inferred(options: SourceOptions) -> Schema:
    """Return a schema with the table's key, its declared columns, and the columns of its first rows.

    A column has its declared type, or the type of its first value. A value of another type goes to ``_unfit``.
    """
    definition = describe(options).definition
    types: dict[str, ColumnType] = {**dict(definition.primary_key), **definition.defined_columns}
    if options.sample_rows:
        for row in sampled(options, [name for name, _ in definition.primary_key]):
            for cell in row.cells:
                if cell.value is not None and not isinstance(cell.value, KeyBound):
                    types.setdefault(cell.name, type_of(cell.value))
    pa = pyarrow()
    keys = [name for name, _ in definition.primary_key]
    names = stored_names(types, [], RESERVED)
    own = [pa.field(names[name], arrow_type(types[name])) for name in [*keys, *sorted(types.keys() - set(keys))]]
    is_changes = options.inferred_layout is Layout.CHANGES
    added = [name for name in ADDED if name != COMMIT] if is_changes else [UNFIT]
    return pa.schema(own + [pa.field(name, added_types()[name]) for name in added])


def sampled(options: SourceOptions, key: list[str]) -> Iterator[Row]:
    """Yield the first rows of the table, at most ``options.sample_rows``."""
    scan = TableScan(calls=calls_of(options.connection), table=options.table, key=key)
    return scan.rows(limit=options.sample_rows)


def check_once(columns: Iterable[Field], owner: str) -> None:
    """Refuse ``columns`` if the names of two of them stand for the same column of the table.

    Raises:
        ConfigurationError: two of ``columns`` are the same column. The message names the frame or schema by ``owner``.
    """
    names: dict[str, str] = {}
    for column in columns:
        name = original_name(column.name)
        if name in names:
            raise ConfigurationError(
                f"{owner} has column {name!r} twice, as {names[name]!r} and {column.name!r}: keep one of them"
            )
        names[name] = column.name


def check_schema(columns: Schema, added: Iterable[str], source: str) -> Schema:
    """Return the schema ``columns`` if the data source can fill all of its columns.

    ``added`` names the columns that this package can add to the table's columns.

    Raises:
        ConfigurationError: a column occurs twice, has a type that Tablestore does not store, or has a name that this
            package gives to a column of another type.
    """
    check_once(columns, "the schema")
    known = {name: kind for name, kind in added_types().items() if name in set(added)}
    for column in columns:
        if column.name in known:
            if not same_type(column.type, known[column.name]):
                raise ConfigurationError(
                    f"column {column.name} of {source} is {known[column.name]}, and the schema says {column.type}"
                )
        elif column.name in ADDED:
            raise ConfigurationError(
                f"{source} has no column {column.name}; beside the table's columns it has {', '.join(known)}"
            )
        elif column.name in RESERVED:
            raise ConfigurationError(
                f"{source} cannot fill {column.name}, a column of tables of changes and of mirrors: the source's own "
                f"column of that name is {marked(column.name)!r} in frames"
            )
        elif column_type(column.type) is None:
            raise ConfigurationError(
                f"column {column.name!r} cannot be {column.type}: Tablestore stores {SPARK_TYPES}. Declare one of "
                "these and cast it in the query"
            )
    return columns


def check_changes(columns: Schema) -> Schema:
    """Return the schema ``columns`` if ``readStream`` can fill it; otherwise raise a ``ConfigurationError``."""
    return check_schema(columns, [name for name in ADDED if name != COMMIT], "a stream")


def check_rows(columns: Schema) -> Schema:
    """Return the schema ``columns`` if ``read`` can fill it; otherwise raise a ``ConfigurationError``."""
    return check_schema(columns, _OF_ROWS, "a table")
