"""Rows as PostgreSQL holds them: column names and types, conversion of values, and values that no column can hold."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from attrs import frozen

from streamclient.destinations.destination_packages import compute, pyarrow
from streamclient.destinations.rows.change_rows import ADDED, UNFIT, added_types
from streamclient.destinations.rows.column_names import marked, original_name
from streamclient.destinations.rows.column_types import text_of, type_of
from streamclient.errors import CodecError, ConfigurationError, UnfitValueError

if TYPE_CHECKING:
    from pyarrow import Array, DataType, Field, Schema, Table

NAME_BYTES_MAX = 63
"""The largest length of a name in bytes. PostgreSQL truncates longer names, so two columns could become one."""

SYSTEM_COLUMNS = frozenset({"ctid", "tableoid", "xmin", "xmax", "cmin", "cmax"})
"""Columns that every table has. No other column may have such a name, so ``sql_name`` renames a column of the rows that
has."""

COLUMNS_MAX = 400
"""The number of source columns that become columns of the table. Values of further columns are kept in ``_unfit``, with
their types, and so are texts and bytes that do not fit in the row's page (``_PAGE_BYTES``)."""

_PAGE_BYTES = 8_160
"""The number of bytes that a row may take in a page of 8 KiB, its header included."""

_HEADER_BYTES = 23
"""The number of bytes of a row's header, without the bits for the columns."""

_KEPT_BYTES = 24
"""The size from which on PostgreSQL moves a value out of the page. Such a value leaves fewer bytes in the page."""

_NUMBER_BYTES = 15
"""The number of bytes of a number or a time: 8, and 7 of padding if it follows a text."""

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
"""SQL types by the name of the Arrow type. Other types are refused, except those of the added columns."""

CATALOGUE_TYPES = {
    "int8": "bigint",
    "int4": "integer",
    "int2": "smallint",
    "float8": "double precision",
    "float4": "real",
    "bool": "boolean",
    "text": "text",
    "bytea": "bytea",
    "date": "date",
    "timestamptz": "timestamptz",
    "json": "json",
}
"""The SQL types of this package by their names in PostgreSQL's catalogue."""

_WIDER = {
    "smallint": ("int4", "int8", "numeric"),
    "integer": ("int8", "numeric"),
    "bigint": ("numeric",),
    "real": ("float8",),
    "text": ("varchar",),
}
"""For some SQL types of this package: the wider types that take all of their values and return them unchanged."""

_DIGITS = 19
"""The number of digits of the longest whole number."""


DIGEST = "_key_digest"
"""The column with the digest of a row's key; see ``postgres_digests``."""

FORMER_DIGEST = "_key_former"
"""The name that the column ``_key`` of earlier versions gets while digests are renewed."""

_TAKEN = SYSTEM_COLUMNS | {DIGEST, FORMER_DIGEST}
"""Names that columns of the rows cannot have in the table."""


def quoted(name: str) -> str:
    """Return a name quoted for a statement."""
    return '"' + name.replace('"', '""') + '"'


def column_name(name: str) -> str:
    """Return the name of the table column for the rows' column ``name``."""
    return marked(name) if name in _TAKEN else name


def sql_name(name: str) -> str:
    """Return the name of the table column for the rows' column ``name``, quoted for a statement."""
    return quoted(column_name(name))


def arrow_name(column: str) -> str:
    """Return the name of the rows' column for a column of the table."""
    name = original_name(column)
    return name if name in _TAKEN else column


def sql_type(kind: DataType) -> str:
    """Return the SQL type for values of ``kind``. Raise ``ConfigurationError`` if PostgreSQL has no such type."""
    found = _SQL_TYPES.get(str(kind))
    if found is None:
        if kind in added_types().values():
            return "json"
        raise ConfigurationError(f"PostgreSQL has no column for the type {kind}: use one of {', '.join(_SQL_TYPES)}")
    return found


def arrow_type(name: str, sql: str) -> DataType:
    """Return the type of the rows' values for a column of the table.

    Raise ``ConfigurationError`` if rows never have such a type.
    """
    if sql == "json" and name in ADDED:
        return added_types()[name]
    arrow = next((arrow for arrow, own in _SQL_TYPES.items() if own == sql), None)
    if arrow is None:
        raise ConfigurationError(f"column {name!r} is {sql}, which rows of this package never have: use another table")
    pa = pyarrow()
    stamp = pa.timestamp("us", tz="UTC")  # the only one of these types that has no alias
    return stamp if arrow == str(stamp) else pa.type_for_alias(arrow)


def is_own_type(name: str, sql: str) -> bool:
    """Return whether rows have values of type ``sql`` in a column of this name."""
    return name in ADDED if sql == "json" else sql in _SQL_TYPES.values()


def takes(sql: str, type_name: str, modifier: int) -> bool:
    """Return whether a column of catalogue type ``type_name`` takes all values of the SQL type ``sql``."""
    if type_name not in _WIDER.get(sql, ()):
        return False
    if modifier == -1:
        return True
    precision, scale = divmod(modifier - 4, 1 << 16)
    return type_name == "numeric" and scale == 0 and precision >= _DIGITS


@frozen
class TableColumns:
    """The columns of a table that this package wrote."""

    schema: Schema
    """This package's columns, by the names that rows have for them."""
    others: frozenset[str] = frozenset()
    """The names of columns of other programs."""
    width: int = 0
    """The number of columns that the table has ever had."""


def python_values(column: Any, field: Field) -> list[Any]:
    """Return a column's values in the form that psycopg copies.

    Raises:
        UnfitValueError: a date or a time is outside the years that Python knows.
    """
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError) as error:
        raise UnfitValueError(
            f"column {field.name!r} of type {field.type} holds a value outside the years 1 to 9999, which PostgreSQL "
            f"cannot store here: make it null, or a text ({error})"
        ) from error
    if sql_type(field.type) != "json":
        return values
    # Most lists and maps are empty, and need no encoder.
    return [None if value is None else json.dumps(value) if value else "[]" for value in values]


def table_of(lines: Sequence[Sequence[Any]], columns: Schema) -> Table:
    """Return selected rows with these columns; raise ``CodecError`` for a value that no commit stores."""
    pa = pyarrow()
    if not lines:
        return columns.empty_table()
    arrays = [_array(values, field) for field, values in zip(columns, zip(*lines, strict=True), strict=True)]
    return pa.table(arrays, schema=columns)


def _array(values: Sequence[Any], field: Field) -> Array:
    try:
        return pyarrow().array([_arrow_value(value, field.type) for value in values], field.type)
    except (TypeError, ValueError) as error:
        raise CodecError(
            f"column {field.name!r} holds a value that no commit stores, so it was altered: {error}"
        ) from error


def _arrow_value(value: Any, kind: DataType) -> Any:
    if isinstance(value, Decimal):
        if value != value.to_integral_value():
            raise ValueError(f"{value} in a column of whole numbers")
        return int(value)
    # JSON has a list where a map has pairs.
    if value is not None and pyarrow().types.is_map(kind):
        return [tuple(pair) for pair in value]
    return value


def check_key_names(columns: Sequence[str]) -> None:
    """Refuse a key that no column can hold: rows could not be found by it.

    Raises:
        ConfigurationError: a name is too long.
    """
    for name in columns:
        if len(name.encode()) > NAME_BYTES_MAX:
            raise ConfigurationError(
                f"the name of the key column {name!r} has more than the {NAME_BYTES_MAX} bytes that PostgreSQL keeps, "
                "so rows cannot be found by this key: use a destination in Delta Lake"
            )


def without_unfit(rows: Table, columns: TableColumns) -> Table:
    """Return the rows, with values that PostgreSQL cannot hold in a column moved to the map of unfit values."""
    pa = pyarrow()
    known = set(columns.schema.names)
    own = [name for name in known if name not in ADDED]
    room = COLUMNS_MAX - len(own)
    moved: dict[str, list[Any]] = {}
    for field in rows.schema:
        if field.name in ADDED or (field.name in known and field.type != pa.string()):
            continue
        if field.name not in known:
            room -= 1
        is_no_name = len(field.name.encode()) > NAME_BYTES_MAX or column_name(field.name) in columns.others
        is_moved = field.name not in known and (is_no_name or room < 0)
        values = python_values(rows.column(field.name), field) if is_moved or field.type == pa.string() else []
        if is_moved:
            moved[field.name] = values
            rows = rows.drop_columns([field.name])
        elif any(isinstance(value, str) and "\0" in value for value in values):
            moved[field.name] = [value if "\0" in (value or "") else None for value in values]
            kept = [None if "\0" in (value or "") else value for value in values]
            rows = rows.set_column(rows.column_names.index(field.name), field.name, pa.array(kept, field.type))
    if moved:
        rows = _with_moved(rows, moved, f"{WHY_UNFIT}, or the name of a column of another program")
    return _within_page(rows, columns)


def _within_page(rows: Table, columns: TableColumns) -> Table:
    """Move texts and bytes to the map, beginning with the last column, until the rest of the row fits in a page."""
    fresh = [name for name in rows.column_names if name not in columns.schema.names]
    # The digest of a key is not yet a column of the rows, and the map of unfit values may be empty.
    header = _HEADER_BYTES + -(-(columns.width + len(fresh) + 1) // 8) + 8
    room = _PAGE_BYTES - header - _KEPT_BYTES * (2 + len(columns.others))
    if _KEPT_BYTES * rows.num_columns <= room:
        return rows
    pa, pc = pyarrow(), compute()
    sizes: dict[str, list[int]] = {}
    movable = [
        field.name for field in rows.schema if field.name not in ADDED and field.type in {pa.string(), pa.binary()}
    ]
    for field in rows.schema:
        column = rows.column(field.name)
        if field.name == UNFIT:
            continue
        if field.name in movable:
            size = pc.min_element_wise(pc.add(pc.binary_length(column), 1), _KEPT_BYTES, skip_nulls=False)
        else:
            most = _KEPT_BYTES if sql_type(field.type) == "json" else _NUMBER_BYTES
            size = pc.if_else(column.is_valid(), most, 0)
        sizes[field.name] = pc.fill_null(size, 0).to_pylist()
    moved: dict[str, list[Any]] = {}
    for place, each in enumerate(zip(*sizes.values(), strict=True)):
        over = sum(each) - room
        for name in reversed(movable):
            if over <= 0:
                break
            if sizes[name][place]:
                values = moved.setdefault(name, [None] * rows.num_rows)
                values[place] = rows.column(name)[place].as_py()
                over -= sizes[name][place]
    for name, values in moved.items():
        kind = rows.schema.field(name).type
        kept = pc.if_else(pa.array([value is None for value in values]), rows.column(name), pa.scalar(None, kind))
        rows = rows.set_column(rows.column_names.index(name), name, kept)
    return _with_moved(rows, moved, "all values of a row must fit in a page of 8 KiB") if moved else rows


WHY_UNFIT = f"NUL in a text, a name above {NAME_BYTES_MAX} bytes, more than {COLUMNS_MAX} columns"


def _with_moved(rows: Table, moved: Mapping[str, Sequence[Any]], why: str) -> Table:
    if UNFIT not in rows.column_names:
        raise UnfitValueError(
            f"PostgreSQL cannot hold the values of {', '.join(map(repr, moved))} in columns ({why}), and the rows have "
            f"no map {UNFIT!r} for them"
        )
    unfit = [dict(pairs or ()) for pairs in rows.column(UNFIT).to_pylist()]
    for stored, values in moved.items():
        for pairs, value in zip(unfit, values, strict=True):
            if value is not None and original_name(stored) not in pairs:
                pairs[original_name(stored)] = {"type": type_of(value).value, "value": text_of(value)}
    kind = rows.schema.field(UNFIT).type
    array = pyarrow().array([list(pairs.items()) for pairs in unfit], kind)
    return rows.set_column(rows.column_names.index(UNFIT), UNFIT, array)
