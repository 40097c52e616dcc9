"""Rows made from puts, and their stored bytes: a row alone, or the stream record that holds the row.

The compiled part is optional. Without it ``read_put`` reads nothing, and its caller continues in Python to the same
result; ``tests/wire/test_wire_puts.py`` compares both ways. The caller also continues in Python if ``read_put``
declines a row, because the row is faulty or only unusual.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from streamclient.records import NATIVE, ColumnValue, KeyValue
from streamclient.wire import _tags as tags
from streamclient.wire.plainbuffer import HEADER, Cell, Row, decode_row, encode_row

__all__ = [
    "Put",
    "PutLimits",
    "all_cells",
    "key_column_form",
    "parts_of",
    "read_parts",
    "read_put",
    "row_of",
    "row_of_parts",
    "rows_of",
]

if TYPE_CHECKING:
    from streamclient.wire._native import Put
else:
    Put = Any

PutLimits = tuple[int, int, int, int, int, int]
"""The limits of a put, in this order: the number of key columns, the bytes of a key value, the bytes of a name, the
bytes of another value, the number of other columns, and the exclusive upper bound of timestamps."""

_AROUND_RECORD = 29 + 2
"""The number of bytes after a record's cells: the extension with its sequence, and the row's checksum, which covers
only the cells."""

Columns = Mapping[str, tuple[tuple[int, ColumnValue], ...]]
"""The versions by column name, newest first. No column has an empty tuple."""

Parts = tuple[tuple[KeyValue, ...], Columns]
"""The values of the key, and the versions by column, newest first."""


def key_column_form(name: str, value_type: int) -> bytes:
    """Return one column in the form that ``Put.has_form`` compares with a key."""
    raw = name.encode()
    return bytes([value_type]) + len(raw).to_bytes(2, "little") + raw


def _nothing(frame: bytes, limits: PutLimits) -> Put | None:
    return None


def _rows_in_python(forms: list[bytes]) -> bytes:
    return HEADER + b"".join([row_of(form) for form in forms])


def row_of(form: bytes) -> bytes:
    """Return the PlainBuffer row, without a header, in these stored bytes."""
    if form[0] == tags.TAG_ROW_KEY:
        return form
    begin = _after_varint(form, 1) + 3  # the entry's fields: the action, and the record with its length
    return form[_after_varint(form, begin) + len(HEADER) : -_AROUND_RECORD] + form[-2:]


def _after_varint(data: bytes, offset: int) -> int:
    while data[offset] & 0x80:
        offset += 1
    return offset + 1


def _parts_in_python(form: bytes) -> Parts:
    return parts_of(decode_row(HEADER + row_of(form)))


def all_cells(columns: Columns) -> tuple[Cell, ...]:
    """Return the cells in the order of answers: columns by name, and versions of a column newest first."""
    return tuple(
        Cell(name, value, timestamp_millis=timestamp) for name in sorted(columns) for timestamp, value in columns[name]
    )


def _row_in_python(names: tuple[str, ...], key: tuple[KeyValue, ...], columns: Columns) -> bytes:
    return encode_row(Row(tuple(zip(names, key, strict=True)), all_cells(columns)))[len(HEADER) :]


def parts_of(row: Row) -> Parts:
    """Return the parts of a stored row."""
    versions: dict[str, list[tuple[int, ColumnValue]]] = {}
    for cell in row.cells:
        version = (cast(int, cell.timestamp_millis), cast(ColumnValue, cell.value))
        versions.setdefault(cell.name, []).append(version)
    key = cast("tuple[KeyValue, ...]", tuple(value for _, value in row.primary_key))
    return key, {name: tuple(listed) for name, listed in versions.items()}


read_put = _nothing if NATIVE is None else NATIVE.read_put
"""Reads the put in a request's frame: ``read_put(frame, limits)``. Returns ``None`` if the put must be read cell by
cell."""

rows_of = _rows_in_python if NATIVE is None else NATIVE.rows_of
"""Returns the rows of these stored bytes, one after the other, after one header."""

read_parts = _parts_in_python if NATIVE is None else NATIVE.read_parts
"""Returns the parts of a stored row from its stored bytes, which must be valid."""

row_of_parts = _row_in_python if NATIVE is None else NATIVE.row_of_parts
"""Returns a stored row, without a header, from its values and the names of its key, which must be valid."""
