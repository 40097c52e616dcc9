"""Columns of a frame: checked if the user gives them, else found in the table's definition and in its first rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from streamclient.destinations.destination_packages import pyarrow
from streamclient.destinations.rows.arrow_schemas import same_type
from streamclient.destinations.rows.change_rows import ADDED, COMMIT, RESERVED, UNFIT, VERSIONS, added_types
from streamclient.destinations.rows.column_layout import arrow_type, column_type
from streamclient.destinations.rows.column_names import marked, original_name, stored_names
from streamclient.destinations.rows.column_types import type_of
from streamclient.errors import ConfigurationError, DependencyException
from streamclient.records import ColumnType
from streamclient.spark.source.partition_reading import calls_of, opened
from streamclient.spark.source.source_options import Layout, SourceOptions
from streamclient.tablestore.ranges import TableScan
from streamclient.tablestore.stream_operations import TablestoreStreamApi
from streamclient.tablestore.stream_tables import TableDescription
from streamclient.wire.plainbuffer import Row
from streamclient.wire.rows import KeyBound

if TYPE_CHECKING:
    from pyarrow import Field, Schema

SPARK_TYPES = "bigint, double, boolean, string, binary"
"""What the five types of Tablestore are in Spark."""

_OF_ROWS = (VERSIONS, UNFIT)
"""Added columns that rows of a table have too."""


def describe(options: SourceOptions) -> TableDescription:
    """The table's definition.

    Raises:
        ConfigurationError: there is no such table.
    """
    try:
        return TablestoreStreamApi(opened(options.connection)).describe_table(options.table)
    except DependencyException as error:
        if error.code != _NO_TABLE:
            raise
        instance = options.connection.instance
        raise ConfigurationError(f"instance {instance!r} has no table {options.table!r}: {error}") from error


_NO_TABLE = "OTSObjectNotExist"
"""The service's code where the table is not there. Its message does not name the table."""


def inferred(options: SourceOptions) -> Schema:
    """The schema of a source for which nobody gave one: the key, declared columns, and those of the first rows.

    A column has its declared type, else that of its first value. What other rows hold besides stands in ``_unfit``.
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
    """The first rows of the table, as many as are to be looked at."""
    found = TableScan(calls=calls_of(options.connection), table=options.table, key=key)
    return found.rows(limit=options.sample_rows)


def check_once(columns: Iterable[Field], what: str) -> None:
    """Refuse two columns that are one of the table.

    Raises:
        ConfigurationError: there are such.
    """
    met: dict[str, str] = {}
    for one in columns:
        name = original_name(one.name)
        if name in met:
            raise ConfigurationError(
                f"{what} has column {name!r} twice, as {met[name]!r} and {one.name!r}: keep one of them"
            )
        met[name] = one.name


def check_schema(columns: Schema, added: Iterable[str], what: str) -> Schema:
    """The schema, if the source can fill it.

    Raises:
        ConfigurationError: a column is there twice, has a type that Tablestore does not store, or is an added one of
            another type.
    """
    check_once(columns, "the schema")
    known = {name: kind for name, kind in added_types().items() if name in set(added)}
    for one in columns:
        if one.name in known:
            if not same_type(one.type, known[one.name]):
                raise ConfigurationError(
                    f"column {one.name} of {what} is {known[one.name]}, and the schema says {one.type}"
                )
        elif one.name in ADDED:
            raise ConfigurationError(f"{what} has no column {one.name}; it has {', '.join(known)} beside the table's")
        elif one.name in RESERVED:
            raise ConfigurationError(
                f"{one.name} is a column of tables of changes and of mirrors, and {what} has none: the source's own "
                f"column of that name is {marked(one.name)!r} here"
            )
        elif column_type(one.type) is None:
            raise ConfigurationError(
                f"column {one.name!r} cannot be {one.type}: Tablestore stores {SPARK_TYPES}. Declare one of these and "
                "cast it in the query"
            )
    return columns


def check_changes(columns: Schema) -> Schema:
    """For ``readStream``."""
    return check_schema(columns, [name for name in ADDED if name != COMMIT], "a stream")


def check_rows(columns: Schema) -> Schema:
    """For ``read``."""
    return check_schema(columns, _OF_ROWS, "a table")
