"""The rows of put requests to the local server, and the bytes that the server stores for them.

The stored bytes of a put are a row, or a stream record that contains the row.

The compiled code for puts is optional. Without this code, ``read_put`` always returns ``None``, and the caller decodes
the row in Python, with the same result. ``tests/wire/test_wire_puts.py`` compares the results. ``read_put`` also
returns ``None`` for a faulty or unusual row.
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
bytes of an attribute value, the number of attribute columns, and the first timestamp that is too large."""

_AROUND_RECORD = 29 + 2
"""The number of bytes that follow the cells in a stream record. They are the extension with sequence information, and
the row's checksum with its tag."""

Columns = Mapping[str, tuple[tuple[int, ColumnValue], ...]]
"""The versions of each column, by the name of the column: pairs of timestamp and value, the newest pair first. Each
column has at least one version."""

Parts = tuple[tuple[KeyValue, ...], Columns]
"""The parts of a stored row: the values of its key columns, and the versions of each attribute column."""


def key_column_form(name: str, value_type: int) -> bytes:
    """Return the name and type of one key column, in the form that ``Put.has_form`` compares with a key."""
    raw = name.encode()
    return bytes([value_type]) + len(raw).to_bytes(2, "little") + raw


def _nothing(frame: bytes, limits: PutLimits) -> Put | None:
    return None


def _rows_in_python(forms: list[bytes]) -> bytes:
    return HEADER + b"".join([row_of(form) for form in forms])


def row_of(form: bytes) -> bytes:
    """Return the PlainBuffer row, without a header, in ``form``, which is a stored row or a stored stream record."""
    if form[0] == tags.TAG_ROW_KEY:
        return form
    # Skip the first field of the record's message, which is the action type, and the tag of the second field.
    begin = _after_varint(form, 1) + 3
    return form[_after_varint(form, begin) + len(HEADER) : -_AROUND_RECORD] + form[-2:]


def _after_varint(data: bytes, offset: int) -> int:
    while data[offset] & 0x80:
        offset += 1
    return offset + 1


def _parts_in_python(form: bytes) -> Parts:
    return parts_of(decode_row(HEADER + row_of(form)))


def all_cells(columns: Columns) -> tuple[Cell, ...]:
    """Return all versions as cells in the order that responses have: columns by name, the newest version first."""
    return tuple(
        Cell(name, value, timestamp_millis=timestamp) for name in sorted(columns) for timestamp, value in columns[name]
    )


def _row_in_python(names: tuple[str, ...], key: tuple[KeyValue, ...], columns: Columns) -> bytes:
    return encode_row(Row(tuple(zip(names, key, strict=True)), all_cells(columns)))[len(HEADER) :]


def parts_of(row: Row) -> Parts:
    """Return the parts of a decoded row: the values of its key columns, and the versions of each attribute column."""
    versions: dict[str, list[tuple[int, ColumnValue]]] = {}
    for cell in row.cells:
        version = (cast(int, cell.timestamp_millis), cast(ColumnValue, cell.value))
        versions.setdefault(cell.name, []).append(version)
    key = cast("tuple[KeyValue, ...]", tuple(value for _, value in row.primary_key))
    return key, {name: tuple(listed) for name, listed in versions.items()}


read_put = _nothing if NATIVE is None else NATIVE.read_put
"""A function that checks the put in a request: ``read_put(frame, limits)`` returns a ``Put``. It returns ``None`` if
the caller must decode the put in Python."""

rows_of = _rows_in_python if NATIVE is None else NATIVE.rows_of
"""A function that takes the stored bytes of several rows. It returns the encoded rows one after the other, after one
header."""

read_parts = _parts_in_python if NATIVE is None else NATIVE.read_parts
"""A function that returns the parts of a row from the row's stored bytes, which must be valid."""

row_of_parts = _row_in_python if NATIVE is None else NATIVE.row_of_parts
"""A function that returns an encoded row, without a header, from the names of its key columns and its parts."""
