"""Checks that rows have the types of a table, before the rows are written.

The libraries that write tables silently cast values of another type: 2.5 becomes 2 in an integer column, 2**53+1
becomes 2**53 in a double column, and 5 becomes "5" in a text column. So these checks refuse rows whose types differ
from the table's. The program must then ask the destination for its columns, and make the rows again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from streamclient.destinations.destination_packages import pyarrow
from streamclient.errors import ConfigurationError, UnfitValueError

if TYPE_CHECKING:
    from pyarrow import DataType, Field, RecordBatch, Schema, Table


def check_fit(rows: Table, table: Schema, where: str) -> Table:
    """Check that each column of ``rows`` has the type that ``table`` has for it.

    Return the rows without columns of the null type. Messages name the table as ``where``.

    Raises:
        UnfitValueError: a column has a different type in the table, or its name differs only in case from a column of
            the table.
        ConfigurationError: a column has a type that the libraries would change in any table.
    """
    pa = pyarrow()
    rows = rows.drop_columns([field.name for field in rows.schema if pa.types.is_null(field.type)])
    check_table_types(rows.schema)
    by_lower = {name.lower(): name for name in table.names}
    for field in rows.schema:
        present = by_lower.get(field.name.lower())
        if present is None:
            continue
        if present != field.name:
            raise UnfitValueError(
                f"the column {field.name!r} differs only in case from {present!r}, which {where} has: "
                "streamclient.destinations.rows.column_names gives it another name"
            )
        if not same_type(field.type, table.field(present).type):
            raise UnfitValueError(
                f"the column {field.name!r} is {field.type}, and {table.field(present).type} in {where}: nothing is "
                "cast, as values would change silently; put values that do not fit into the map of unfit values"
            )
    return rows


def check_not_null(rows: RecordBatch | Table, place: Callable[[int], str]) -> None:
    """Refuse rows with a null in a column that is declared NOT NULL. Programs that read Arrow do not check this.

    Raises:
        UnfitValueError: such a column has a null. The message names the row by ``place``, a function from the row's
            index to its name.
    """
    for field, values in zip(rows.schema, rows.columns, strict=True):
        if not field.nullable and values.null_count:
            number = values.is_null().index(True).as_py()
            raise UnfitValueError(
                f"column {field.name!r} is declared NOT NULL and {place(number)} has no value for it: any row may lack "
                "it, so declare it without NOT NULL"
            )


def check_table_types(schema: Schema) -> Schema:
    """Check the names and types of ``schema``, the schema of rows; return the schema of a new table for these rows.

    In the result, every column may have nulls. Columns of the null type are left out.

    Raises:
        ConfigurationError: two columns, or two fields of a struct, have names that are equal or differ only in case. Or
            a struct has no fields. Or a library that writes tables would change a type. Or a nested type contains the
            null type; the table could then never hold a value there.
    """
    pa = pyarrow()
    seen: dict[str, str] = {}
    for field in schema:
        other = seen.setdefault(field.name.lower(), field.name)
        if (other is not field.name and other != field.name) or schema.names.count(field.name) > 1:
            raise ConfigurationError(f"columns {other!r} and {field.name!r} differ only in case, or not at all")
        _refuse_structs(field.name, field.type)
        for leaf in _leaves(field.type):
            if pa.types.is_null(leaf) and leaf != field.type:
                raise ConfigurationError(
                    f"column {field.name!r} has type {field.type}, which contains the null type: a table with this "
                    "type would never accept a value there; use another type, in Spark by a cast"
                )
            if not _is_kept(leaf):
                raise ConfigurationError(
                    f"column {field.name!r} has type {field.type}, and tables do not keep {leaf} as it is: use int64, "
                    "float64, bool, string, binary, date32, decimal128 whose scale is not below 0, or timestamp[us, "
                    "tz=UTC]"
                )
    return pa.schema([pa.field(field.name, field.type) for field in schema if not pa.types.is_null(field.type)])


def _refuse_structs(column: str, kind: DataType) -> None:
    for names in _field_names(kind):
        if not names:
            raise ConfigurationError(
                f"column {column!r} has type {kind}, and no file holds a struct without fields: leave it out"
            )
        twice = [name for name in names if [other.lower() for other in names].count(name.lower()) > 1]
        if twice:
            raise ConfigurationError(
                f"column {column!r} has type {kind}, and tables do not distinguish its fields "
                f"{', '.join(map(repr, twice))}: give them names that differ in more than case"
            )


def _field_names(kind: DataType) -> Iterator[list[str]]:
    """Yield the field names of each struct in the type ``kind``, also of structs within other types."""
    pa = pyarrow()
    if pa.types.is_struct(kind):
        yield [field.name for field in kind]
    if pa.types.is_nested(kind):
        for place in range(kind.num_fields):
            yield from _field_names(kind.field(place).type)


def same_type(left: DataType, right: DataType) -> bool:
    """Return whether two types are equal, regardless of field names and null flags within lists and maps."""
    return _plain(left) == _plain(right)


def _plain(kind: DataType) -> object:
    pa = pyarrow()
    if pa.types.is_map(kind):
        return ("map", _plain(kind.key_type), _plain(kind.item_type))
    if pa.types.is_list(kind):
        return ("list", _plain(kind.value_type))
    if pa.types.is_struct(kind):
        return ("struct", tuple((field.name, _plain(field.type)) for field in kind))
    return kind


def _leaves(kind: DataType) -> Iterator[DataType]:
    pa = pyarrow()
    if pa.types.is_map(kind):
        yield from _leaves(kind.key_type)
        yield from _leaves(kind.item_type)
    elif pa.types.is_list(kind):
        yield from _leaves(kind.value_type)
    elif pa.types.is_struct(kind):
        fields: list[Field] = list(kind)
        for field in fields:
            yield from _leaves(field.type)
    else:
        yield kind


def _is_kept(kind: DataType) -> bool:
    pa = pyarrow()
    if pa.types.is_timestamp(kind):
        return bool(kind == pa.timestamp("us", tz="UTC"))
    return bool(
        kind in {pa.null(), pa.bool_(), pa.string(), pa.binary(), pa.date32()}
        or pa.types.is_signed_integer(kind)
        or kind in {pa.float32(), pa.float64()}
        or (pa.types.is_decimal128(kind) and kind.scale >= 0)
    )
