"""The rows in PostgreSQL: names and types of columns, the conversion of values, and values that no column can hold."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from attrs import frozen

from streamclient.destinations.destination_packages import compute, pyarrow
from streamclient.destinations.rows.change_rows import ADDED, UNFIT, added_types, moved_beside
from streamclient.destinations.rows.column_names import marked, original_name
from streamclient.errors import CodecError, ConfigurationError, UnfitValueError

if TYPE_CHECKING:
    from pyarrow import Array, DataType, Field, Schema, Table

NAME_BYTES_MAX = 63
"""The largest length of a column's name, in bytes. PostgreSQL truncates longer names, so two different names could
become equal."""

SYSTEM_COLUMNS = frozenset({"ctid", "tableoid", "xmin", "xmax", "cmin", "cmax"})
"""The columns that PostgreSQL adds to every table. A column of rows with such a name is renamed by ``sql_name``."""

COLUMNS_MAX = 400
"""The largest number of columns of the source table that become columns of the destination's table. The map ``_unfit``
keeps the values of further columns, with their types."""

_PAGE_BYTES = 8_160
"""The largest size, in bytes, of a row with its header. A row must fit in one page of 8 KiB."""

_HEADER_BYTES = 23
"""The size, in bytes, of a row's header without the bitmap of null columns."""

_KEPT_BYTES = 24
"""The largest size, in bytes, of a text or bytes value in the row's page. PostgreSQL can move a larger value out of the
page and keep a pointer."""

_NUMBER_BYTES = 15
"""The largest size, in bytes, of a number or a time in the row's page: 8 bytes, after up to 7 bytes of padding."""

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
"""The SQL type for columns of each Arrow type, by the Arrow type's name. Columns of other Arrow types are refused,
except the columns in ``ADDED``."""

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
"""The SQL name of each type, by the type's name in PostgreSQL's catalogue. This package uses no other types."""

_WIDER = {
    "smallint": ("int4", "int8", "numeric"),
    "integer": ("int8", "numeric"),
    "bigint": ("numeric",),
    "real": ("float8",),
    "text": ("varchar",),
}
"""For each SQL type, the wider types that hold all of its values unchanged. The wider types have their names from
PostgreSQL's catalogue."""

_DIGITS = 19
"""The number of decimal digits of the largest 64-bit integer, which a wider ``numeric`` column must hold."""


DIGEST = "_key_digest"
"""The name of the column with the digest of a row's key; see ``postgres_digests``."""

FORMER_DIGEST = "_key_former"
"""The name to which the column ``_key`` of earlier versions is renamed while its digests are renewed."""

_TAKEN = SYSTEM_COLUMNS | {DIGEST, FORMER_DIGEST}
"""The names in the table that no column of rows may have. ``column_name`` adds a suffix to such a name."""


def quoted(name: str) -> str:
    """Return ``name`` as a quoted identifier for SQL."""
    return '"' + name.replace('"', '""') + '"'


def column_name(name: str) -> str:
    """Return the name in PostgreSQL of the rows' column ``name``. A name in ``_TAKEN`` gets a suffix."""
    return marked(name) if name in _TAKEN else name


def sql_name(name: str) -> str:
    """Return ``column_name`` of the rows' column ``name``, quoted for SQL."""
    return quoted(column_name(name))


def arrow_name(column: str) -> str:
    """Return the rows' name of the column ``column`` in PostgreSQL; the reverse of ``column_name``."""
    name = original_name(column)
    return name if name in _TAKEN else column


def sql_type(kind: DataType) -> str:
    """Return the SQL type of a column for the Arrow type ``kind``; raise ``ConfigurationError`` if no type fits."""
    found = _SQL_TYPES.get(str(kind))
    if found is None:
        if kind in added_types().values():
            return "json"
        raise ConfigurationError(f"PostgreSQL has no column for the type {kind}: use one of {', '.join(_SQL_TYPES)}")
    return found


def arrow_type(name: str, sql: str) -> DataType:
    """Return the Arrow type of the rows' column ``name``, which has the SQL type ``sql`` in PostgreSQL.

    Raise ``ConfigurationError`` if this package never makes a column of such a type.
    """
    if sql == "json" and name in ADDED:
        return added_types()[name]
    arrow = next((arrow for arrow, own in _SQL_TYPES.items() if own == sql), None)
    if arrow is None:
        raise ConfigurationError(f"column {name!r} is {sql}, which rows of this package never have: use another table")
    pa = pyarrow()
    stamp = pa.timestamp("us", tz="UTC")  # the only Arrow type in _SQL_TYPES without an alias
    return stamp if arrow == str(stamp) else pa.type_for_alias(arrow)


def is_own_type(name: str, sql: str) -> bool:
    """Return whether this package makes columns with the name ``name`` and the SQL type ``sql``."""
    return name in ADDED if sql == "json" else sql in _SQL_TYPES.values()


def takes(sql: str, type_name: str, modifier: int) -> bool:
    """Return whether a column that a user has widened from ``sql`` to ``type_name`` still holds all values of ``sql``.

    ``type_name`` is the name of the type in PostgreSQL's catalogue, and ``modifier`` its precision and scale.
    """
    if type_name not in _WIDER.get(sql, ()):
        return False
    if modifier == -1:
        return True
    precision, scale = divmod(modifier - 4, 1 << 16)
    return type_name == "numeric" and scale == 0 and precision >= _DIGITS


@frozen
class TableColumns:
    """The columns of a destination's table: those of this package, and those that other programs added."""

    schema: Schema
    """The columns of this package, by the names that they have in rows."""
    others: frozenset[str] = frozenset()
    """The names of the columns that other programs added."""
    width: int = 0
    """The number of columns that the table has ever had, including dropped columns."""


def python_values(column: Any, field: Field) -> list[Any]:
    """Convert the values of an Arrow column to Python values that psycopg can copy.

    Raises:
        UnfitValueError: a date or a time is outside the years 1 to 9999.
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
    # Most lists and maps are empty. To save time, the JSON encoder is not called for these.
    return [None if value is None else json.dumps(value) if value else "[]" for value in values]


def table_of(lines: Sequence[Sequence[Any]], columns: Schema) -> Table:
    """Convert ``lines``, rows that psycopg has selected, to an Arrow table with ``columns``.

    Raises:
        CodecError: a value cannot come from a commit of this package, so another program has altered it.
    """
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
    # JSON has a map as a list of pairs, and each pair is a list.
    if value is not None and pyarrow().types.is_map(kind):
        return [tuple(pair) for pair in value]
    return value


def check_key_names(columns: Sequence[str]) -> None:
    """Refuse key columns whose names PostgreSQL would truncate, because rows could not be found by such a key.

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
    """Move values that PostgreSQL cannot hold in a column into the map ``_unfit``, and return the changed rows."""
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
    """Move texts and bytes into the map ``_unfit``, beginning with the last column, until each row fits in a page."""
    fresh = [name for name in rows.column_names if name not in columns.schema.names]
    # Two columns are always counted, although the rows may lack them: the digest of the key, and the map ``_unfit``.
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
    return moved_beside(rows, moved)
