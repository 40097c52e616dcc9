"""Rows as PostgreSQL holds them: columns' names and types, values on their way in and out, what has no column there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from streamclient.destinations.changes import ADDED, UNFIT, added_types
from streamclient.destinations.extra import pyarrow
from streamclient.destinations.names import marked, original_name
from streamclient.destinations.types import text_of, type_of
from streamclient.errors import CodecError, ConfigurationError, UnfitValueError

if TYPE_CHECKING:
    from pyarrow import Array, DataType, Field, Schema, Table

NAME_BYTES_MAX = 63
"""PostgreSQL cuts longer names off, so that two columns could become one."""

SYSTEM_COLUMNS = frozenset({"ctid", "tableoid", "xmin", "xmax", "cmin", "cmax"})
"""Every table has these, so none may have another column of such a name: ``sql_name`` gives it another one."""

COLUMNS_MAX = 400
"""Columns of the source that become columns here. A row must fit in a page of 8 KiB, where the largest value that is
not moved out of it takes 18 bytes; the values of further columns stand in ``_unfit``, with their types."""

_SQL_TYPES = {
    "int64": "bigint",
    "int32": "integer",
    "int16": "smallint",
    "double": "double precision",
    "float": "real",
    "bool": "boolean",
    "string": "text",
    "binary": "bytea",
    "date32[day]": "date",
    "timestamp[us, tz=UTC]": "timestamptz",
}
"""By the name of the Arrow type; others are refused, apart from those of the added columns."""

_SPELLINGS = {"timestamp with time zone": "timestamptz"}


def quoted(name: str) -> str:
    """A name as it stands in a statement."""
    return '"' + name.replace('"', '""') + '"'


def sql_name(name: str) -> str:
    """The name, quoted, of the column that holds the rows' column of this name."""
    return quoted(marked(name) if name in SYSTEM_COLUMNS else name)


def arrow_name(column: str) -> str:
    """The name that the rows have for a column."""
    name = original_name(column)
    return name if name in SYSTEM_COLUMNS else column


def sql_type(kind: DataType) -> str:
    """The type of the column that holds such values; ``ConfigurationError`` if there is none."""
    found = _SQL_TYPES.get(str(kind))
    if found is None:
        if kind in added_types().values():
            return "json"
        raise ConfigurationError(f"a column of type {kind} has no counterpart here: use one of {', '.join(_SQL_TYPES)}")
    return found


def arrow_type(name: str, sql: str) -> DataType:
    """The type of the rows' values of a column; ``ConfigurationError`` if it is none of ours."""
    wanted = _SPELLINGS.get(sql, sql)
    if wanted == "json" and name in ADDED:
        return added_types()[name]
    arrow = next((arrow for arrow, own in _SQL_TYPES.items() if own == wanted), None)
    if arrow is None:
        raise ConfigurationError(f"column {name!r} is {sql}, which no rows of ours have: write to a table of their own")
    pa = pyarrow()
    stamp = pa.timestamp("us", tz="UTC")  # the one type of these that has no alias
    return stamp if arrow == str(stamp) else pa.type_for_alias(arrow)


def python_values(column: Any, field: Field) -> list[Any]:
    """A column as psycopg copies it.

    Raises:
        UnfitValueError: a date or a time lies outside the years that Python knows.
    """
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError) as error:
        raise UnfitValueError(
            f"column {field.name!r} of type {field.type} holds a value outside the years 1 to 9999, which cannot be "
            f"stored here: make it null, or a text ({error})"
        ) from error
    if sql_type(field.type) != "json":
        return values
    # Most lists and maps are empty, and need no encoder.
    return [None if value is None else json.dumps(value) if value else "[]" for value in values]


def table_of(lines: Sequence[Sequence[Any]], columns: Schema) -> Table:
    """Rows that were selected, with these columns; ``CodecError`` if a value is none that a commit stores."""
    pa = pyarrow()
    if not lines:
        return columns.empty_table()
    arrays = [_array(values, one) for one, values in zip(columns, zip(*lines, strict=True), strict=True)]
    return pa.table(arrays, schema=columns)


def _array(values: Sequence[Any], field: Field) -> Array:
    try:
        return pyarrow().array([_arrow_value(value, field.type) for value in values], field.type)
    except (TypeError, ValueError) as error:
        raise CodecError(
            f"column {field.name!r} holds something that no row of ours had, so it was altered: {error}"
        ) from error


def _arrow_value(value: Any, kind: DataType) -> Any:
    # JSON has lists where maps are made of pairs.
    if value is not None and pyarrow().types.is_map(kind):
        return [tuple(pair) for pair in value]
    return value


def check_key_names(columns: Sequence[str]) -> None:
    """Refuse a key that no columns here can hold, as rows could not be found by it.

    Raises:
        ConfigurationError: a name is too long.
    """
    for name in columns:
        if len(name.encode()) > NAME_BYTES_MAX:
            raise ConfigurationError(
                f"the name of the key column {name!r} has more than the {NAME_BYTES_MAX} bytes that PostgreSQL keeps, "
                "so rows cannot be found by it here: use a destination in Delta Lake"
            )


def key_digests(rows: Table, key: Sequence[str]) -> list[bytes]:
    """For each row the digest of its key; none without a key."""
    values = [rows.column(name).to_pylist() for name in key]
    return [sha256(repr(one).encode()).digest() for one in zip(*values, strict=True)] if key else []


def without_unfit(rows: Table, columns: Schema) -> Table:
    """The rows, with what PostgreSQL cannot hold in a column moved to the map of unfit values."""
    pa = pyarrow()
    own = [name for name in columns.names if name not in ADDED]
    room = COLUMNS_MAX - len(own)
    moved: dict[str, list[Any]] = {}
    for one in rows.schema:
        if one.name in ADDED or (one.name in columns.names and one.type != pa.string()):
            continue
        if one.name not in columns.names:
            room -= 1
        is_no_name = len(one.name.encode()) > NAME_BYTES_MAX
        is_moved = is_no_name or (room < 0 and one.name not in columns.names)
        values = python_values(rows.column(one.name), one) if is_moved or one.type == pa.string() else []
        if is_moved:
            moved[one.name] = values
            rows = rows.drop_columns([one.name])
        elif any(isinstance(value, str) and "\0" in value for value in values):
            moved[one.name] = [value if "\0" in (value or "") else None for value in values]
            kept = [None if "\0" in (value or "") else value for value in values]
            rows = rows.set_column(rows.column_names.index(one.name), one.name, pa.array(kept, one.type))
    return _with_moved(rows, moved) if moved else rows


def _with_moved(rows: Table, moved: Mapping[str, Sequence[Any]]) -> Table:
    if UNFIT not in rows.column_names:
        raise UnfitValueError(
            f"PostgreSQL cannot hold the values of {', '.join(map(repr, moved))} in columns (NUL in a text, a name "
            f"above {NAME_BYTES_MAX} bytes, or more than {COLUMNS_MAX} columns), and the rows have no map {UNFIT!r} "
            "for them"
        )
    unfit = [dict(pairs or ()) for pairs in rows.column(UNFIT).to_pylist()]
    for stored, values in moved.items():
        for pairs, value in zip(unfit, values, strict=True):
            if value is not None and original_name(stored) not in pairs:
                pairs[original_name(stored)] = {"type": type_of(value).value, "value": text_of(value)}
    kind = rows.schema.field(UNFIT).type
    array = pyarrow().array([list(pairs.items()) for pairs in unfit], kind)
    return rows.set_column(rows.column_names.index(UNFIT), UNFIT, array)
