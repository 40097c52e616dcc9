"""The records of a page as an Arrow record batch. The compiled codec makes the same batches as the Python code here.

The record batch has these columns, where ``T`` is the type of an attribute column:

* ``record_type``: PUT, UPDATE or DELETE;
* ``sequence_info``: struct of ``epoch``, ``timestamp_micros``, ``row_index``;
* ``primary_key``: struct of the key columns, in key order;
* ``columns``: struct with one struct for each attribute column: ``operation``, ``value: T``, ``timestamp_millis``. If
  the record does not have the column, this struct is null. If the record deletes the column, only the value is null;
* ``other_cells``: list of the cells that ``columns`` cannot show, each with its name, its operation, its timestamp, and
  its value in the field for its type;
* ``original_columns``: list of the cells that the row had before the change, in the form of ``other_cells``; null if
  the stream does not deliver them.

No cell is lost, and no value is converted. If a record has several cells of one column, ``columns`` shows the put with
the latest timestamp. If several puts have this timestamp, ``columns`` shows the first of them. If the record has no put
of the column, ``columns`` shows the first cell. All other cells of the column are in ``other_cells``. If a value does
not have the type of its column, its cell is in ``other_cells``, too, and the column shows null with the operation PUT.

Without a schema, a column has the type of its first value in the page, and columns are in order of appearance. With a
schema, ``columns`` has the columns of the schema, and cells of other columns are in ``other_cells``. If the name of a
column has a NUL, its cells are always in ``other_cells``, because Arrow's interface cannot represent such a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from importlib import import_module
from itertools import accumulate
from typing import Any

from streamclient.errors import CodecError, ConfigurationError, install_extra
from streamclient.records import (
    ColumnOperation,
    ColumnType,
    ColumnValue,
    PrimaryKey,
    RecordColumn,
    RecordType,
    SequenceInfo,
    StreamRecord,
)

_TYPES: Mapping[type, ColumnType] = {
    int: ColumnType.INTEGER,
    float: ColumnType.DOUBLE,
    bool: ColumnType.BOOLEAN,
    str: ColumnType.STRING,
    bytes: ColumnType.BINARY,
}


def checked_schema(schema: Mapping[str, ColumnType]) -> dict[str, ColumnType]:
    """Return a copy of ``schema`` if Arrow can represent its columns.

    Raises:
        ConfigurationError: a name contains a NUL, or a type is not a ``ColumnType``.
    """
    for name, kind in schema.items():
        if "\0" in name or not isinstance(kind, ColumnType):
            raise ConfigurationError(f"expected names without NUL and a ColumnType for each, got {name!r}: {kind!r}")
    return dict(schema)


def records_by_column(records: Sequence[StreamRecord], schema: Mapping[str, ColumnType] | None) -> Any:
    """Return ``records`` by column, as an object with ``__arrow_c_array__``, which every Arrow library accepts.

    If ``records`` is a page or a slice of a page, the compiled codec makes the columns without record objects.

    Raises:
        CodecError: the records do not belong to one table.
        ConfigurationError: the schema is invalid for Arrow, or pyarrow is needed and missing.
    """
    of_page: Callable[[Mapping[str, ColumnType] | None], Any] | None = getattr(records, "arrow", None)
    return record_batch(records, schema) if of_page is None else of_page(schema)


def record_batch(records: Sequence[StreamRecord], schema: Mapping[str, ColumnType] | None) -> Any:
    """Return ``records`` by column, as a ``pyarrow.RecordBatch`` in the layout that this module describes.

    Raises:
        CodecError: two records have different key columns, so they do not belong to one table.
        ConfigurationError: the schema is invalid for Arrow, or pyarrow is not installed.
    """
    pa = _pyarrow()
    types = _found(records) if schema is None else checked_schema(schema)
    columns: dict[str, list[RecordColumn | None]] = {name: [] for name in types}
    others: list[list[RecordColumn]] = []
    for record in records:
        shown = _shown(record.columns)
        others.append([cell for cell in record.columns if _is_beside(cell, shown, types)])
        for name, cells in columns.items():
            cells.append(shown.get(name))
    attributes = {name: _column(cells, types[name]) for name, cells in columns.items()}
    arrays = {
        "record_type": _words([record.record_type for record in records], RecordType),
        "sequence_info": _sequences([record.sequence_info for record in records]),
        "primary_key": _struct(_keys(records), len(records)),
        "columns": _struct(attributes, len(records)),
        "other_cells": _lists(others),
        "original_columns": _lists([record.original_columns for record in records]),
    }
    return pa.RecordBatch.from_arrays([*arrays.values()], [*arrays])


def value_batch(records: Sequence[StreamRecord], schema: Mapping[str, ColumnType]) -> Any | None:
    """Return only the values of the columns in ``schema``, as a ``pyarrow.RecordBatch``.

    Return ``None`` if the batch would lack values. ``DecodedPage.values`` describes these cases.

    Raises:
        ConfigurationError: the schema is invalid for Arrow, or pyarrow is not installed.
    """
    pa = _pyarrow()
    types = checked_schema(schema)
    columns: dict[str, list[ColumnValue | None]] = {name: [] for name in types}
    for record in records:
        puts = [(cell.name, cell.value) for cell in record.columns if cell.operation is ColumnOperation.PUT]
        wanted = [(name, value) for name, value in (*record.primary_key, *puts) if name in types]
        values = dict(wanted)
        if len(values) < len(wanted) or any(_TYPES[type(value)] is not types[name] for name, value in wanted):
            return None
        for name, column in columns.items():
            column.append(values.get(name))
    try:
        _keys(records)
    except CodecError:
        return None
    arrays = {
        "record_type": _words([record.record_type for record in records], RecordType),
        "sequence_info": _sequences([record.sequence_info for record in records]),
        "columns": _struct(
            {name: pa.array(values, _arrow_type(types[name])) for name, values in columns.items()}, len(records)
        ),
    }
    return pa.RecordBatch.from_arrays([*arrays.values()], [*arrays])


def _found(records: Iterable[StreamRecord]) -> dict[str, ColumnType | None]:
    """Return the attribute columns of ``records`` in order of appearance, each with the type of its first value."""
    types: dict[str, ColumnType | None] = {}
    for record in records:
        for cell in record.columns:
            if types.get(cell.name) is None and "\0" not in cell.name:
                types[cell.name] = _TYPES.get(type(cell.value))
    return types


def _shown(cells: Sequence[RecordColumn]) -> dict[str, RecordColumn]:
    shown: dict[str, RecordColumn] = {}
    for cell in cells:
        known = shown.setdefault(cell.name, cell)
        if cell.operation is ColumnOperation.PUT and (
            known.operation is not ColumnOperation.PUT or (cell.timestamp_millis or 0) > (known.timestamp_millis or 0)
        ):
            shown[cell.name] = cell
    return shown


def _fits(value: ColumnValue | None, kind: ColumnType | None) -> bool:
    return value is None or _TYPES[type(value)] is kind


def _is_beside(cell: RecordColumn, shown: Mapping[str, RecordColumn], types: Mapping[str, ColumnType | None]) -> bool:
    return cell.name not in types or shown[cell.name] is not cell or not _fits(cell.value, types[cell.name])


def _keys(records: Sequence[StreamRecord]) -> dict[str, Any]:
    pa = _pyarrow()
    if not records:
        return {}
    first = _key_form(records[0].primary_key)
    for number, record in enumerate(records):
        if _key_form(record.primary_key) != first:
            raise CodecError(
                f"record {number} of a page has the key {record.primary_key!r}, expected the columns and types of the "
                f"first, {records[0].primary_key!r}: columns hold records of one table"
            )
    for name, _ in first:
        if "\0" in name or sum(name == other for other, _ in first) > 1:
            raise CodecError(f"key column {name!r} of {records[0].primary_key!r} occurs twice or contains a NUL")
    columns = zip(*(record.primary_key for record in records), strict=True)
    return {
        name: pa.array([value for _, value in column], _arrow_type(kind))
        for (name, kind), column in zip(first, columns, strict=True)
    }


def _key_form(key: PrimaryKey) -> tuple[tuple[str, ColumnType], ...]:
    return tuple((name, _TYPES[type(value)]) for name, value in key)


# --- building Arrow arrays --------------------------------------------------------------------------------------------


def _pyarrow() -> Any:
    try:
        return import_module("pyarrow")
    except ImportError as error:
        raise ConfigurationError(f"pyarrow cannot be imported ({error}): {install_extra('delta')}") from error


def _arrow_type(kind: ColumnType | None) -> Any:
    pa = _pyarrow()
    return {
        None: pa.null(),
        ColumnType.INTEGER: pa.int64(),
        ColumnType.DOUBLE: pa.float64(),
        ColumnType.BOOLEAN: pa.bool_(),
        ColumnType.STRING: pa.string(),
        ColumnType.BINARY: pa.binary(),
    }[kind]


def _array(cells: Iterable[RecordColumn | None], kind: ColumnType | None) -> Any:
    """Return the values of ``cells`` as an array of the type ``kind``; null for a cell without a value of this type."""
    values = [cell.value if cell is not None and _TYPES.get(type(cell.value)) is kind else None for cell in cells]
    return _pyarrow().array(values, _arrow_type(kind))


def _words(members: Sequence[Enum | None], kind: type[Enum]) -> Any:
    """Return ``members`` as a dictionary array. Its dictionary has the values of all members of the enumeration."""
    pa = _pyarrow()
    places = {member: place for place, member in enumerate(kind)}
    indices = pa.array([None if member is None else places[member] for member in members], pa.int8())
    return pa.DictionaryArray.from_arrays(indices, pa.array([member.value for member in kind], pa.string()))


def _column(cells: Sequence[RecordColumn | None], kind: ColumnType | None) -> Any:
    pa = _pyarrow()
    return pa.StructArray.from_arrays(
        [_operations(cells), _array(cells, kind), _stamps(cells)],
        ["operation", "value", "timestamp_millis"],
        mask=pa.array([cell is None for cell in cells], pa.bool_()),
    )


def _operations(cells: Sequence[RecordColumn | None]) -> Any:
    return _words([None if cell is None else cell.operation for cell in cells], ColumnOperation)


def _stamps(cells: Sequence[RecordColumn | None]) -> Any:
    return _pyarrow().array([None if cell is None else cell.timestamp_millis for cell in cells], _pyarrow().int64())


def _lists(lists: Sequence[Sequence[RecordColumn] | None]) -> Any:
    pa = _pyarrow()
    cells = [cell for some in lists for cell in some or ()]
    ends = [0, *accumulate(len(some or ()) for some in lists)]
    begins = [None if some is None else begin for some, begin in zip(lists, ends, strict=False)]
    children = {"name": pa.array([cell.name for cell in cells], pa.string())}
    children |= {"operation": _operations(cells), "timestamp_millis": _stamps(cells)}
    children |= {kind.name.lower(): _array(cells, kind) for kind in ColumnType}
    return pa.ListArray.from_arrays(pa.array([*begins, ends[-1]], pa.int32()), _struct(children, len(cells)))


def _sequences(places: Sequence[SequenceInfo]) -> Any:
    pa = _pyarrow()
    fields = ("epoch", "timestamp_micros", "row_index")
    return _struct({name: pa.array([getattr(place, name) for place in places], pa.int64()) for name in fields}, 0)


def _struct(children: Mapping[str, Any], length: int) -> Any:
    pa = _pyarrow()
    if not children:  # without children, from_arrays cannot know the length
        return pa.array([{}] * length, pa.struct([]))
    return pa.StructArray.from_arrays([*children.values()], [*children])
