"""The encoding of PlainBuffer rows, from values to bytes, with the checksums of cells and rows."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import lru_cache

from streamclient.errors import CodecError
from streamclient.records import NATIVE, SequenceInfo
from streamclient.wire import _tags as tags
from streamclient.wire.crc8 import TABLE, crc8
from streamclient.wire.rows import KeyBound, Row

_u32 = struct.Struct("<I").pack
_integer = struct.Struct("<Bq").pack
_double = struct.Struct("<Bd").pack
_sized = struct.Struct("<BI").pack
_extension = struct.Struct("<BIBIBIBqBI").pack

CHECKSUM_BYTES = 2
"""The length, in bytes, of a row's end, which is a tag and the row's checksum."""

_ROW_KEY = bytes([tags.TAG_ROW_KEY])
_ROW_DATA = bytes([tags.TAG_ROW_DATA])
_DELETE_MARKER = bytes([tags.TAG_DELETE_MARKER])


def _text(value: str) -> bytes:
    raw = value.encode("utf-8")
    return _sized(tags.TYPE_STRING, len(raw)) + raw


def _blob(value: bytes | bytearray | memoryview) -> bytes:
    return _sized(tags.TYPE_BLOB, len(value)) + bytes(value)


# bool comes before int, because a bool is also an instance of int, but a different type on the wire.
_WRITERS: dict[type, Callable[..., bytes]] = {
    bool: lambda value: bytes((tags.TYPE_BOOLEAN, value)),
    int: lambda value: _integer(tags.TYPE_INTEGER, value),
    str: _text,
    float: lambda value: _double(tags.TYPE_DOUBLE, value),
    bytes: _blob,
    bytearray: _blob,
    KeyBound: lambda value: bytes((value.value,)),
}


def value_bytes(value: object) -> bytes:
    """Return the type byte and the encoded content of a value. In a cell, a tag and the length precede these bytes."""
    writer = _WRITERS.get(type(value))
    if writer is None:  # ``value`` may be an instance of a subclass, such as an IntEnum
        writer = next((write for kind, write in _WRITERS.items() if isinstance(value, kind)), None)
    if writer is None:
        raise CodecError(f"cannot encode {value!r}: expected int, float, bool, str, bytes, bytearray or a KeyBound")
    try:
        return writer(value)
    except (struct.error, UnicodeEncodeError) as error:
        raise CodecError(f"cannot encode {value!r}: integers have 64 bits and text must be UTF-8 ({error})") from error


def _encode_name(name: str) -> tuple[bytes, int]:
    try:
        raw = name.encode("utf-8")
    except (UnicodeEncodeError, AttributeError) as error:
        raise CodecError(f"cannot encode column name {name!r}: expected text that UTF-8 can express") from error
    return bytes([tags.TAG_CELL, tags.TAG_CELL_NAME]) + _u32(len(raw)) + raw, crc8(raw)


_cached_name = lru_cache(maxsize=tags.CACHED_NAMES)(_encode_name)


def _write_cell(parts: list[bytes], name: str, value: object, operation: int, timestamp: int | None) -> int:
    """Append one encoded cell to ``parts``; return the cell's checksum.

    In the checksum, the timestamp comes before the operation. On the wire, the operation comes first.
    """
    short = type(name) is str and len(name) <= tags.CACHED_NAME_BYTES
    head, crc = _cached_name(name) if short else _encode_name(name)
    parts.append(head)
    if value is not None:
        payload = value_bytes(value)
        parts.append(_sized(tags.TAG_CELL_VALUE, len(payload)) + payload)
        crc = crc8(payload, crc)
    elif not operation:
        raise CodecError(f"cannot encode cell {name!r}: a cell that puts needs a value")
    if operation:
        parts.append(bytes((tags.TAG_CELL_OPERATION, operation)))
    if timestamp is not None:
        stamp = _stamp(name, timestamp)
        parts.append(stamp)
        crc = crc8(stamp[1:], crc)
    if operation:
        crc = TABLE[crc ^ operation]
    parts.append(bytes((tags.TAG_CELL_CHECKSUM, crc)))
    return crc


def _stamp(name: str, timestamp: int) -> bytes:
    try:
        return _integer(tags.TAG_CELL_TIMESTAMP, timestamp)
    except struct.error as error:
        raise CodecError(
            f"cannot encode timestamp {timestamp!r} of cell {name!r}: expected a 64-bit integer"
        ) from error


def _check_key(name: str, value: object) -> None:
    if isinstance(value, (bool, float)) or value is None:
        raise CodecError(f"cannot encode key column {name!r} = {value!r}: expected int, str, bytes or a KeyBound")


CellParts = tuple[str, object, int, "int | None"]
"""A cell to encode: its name, its value, the number of its operation (0 is a put), and its timestamp."""


def write_row(
    parts: list[bytes],
    primary_key: Iterable[tuple[str, object]],
    cells: Iterable[CellParts],
    delete_marker: bool,
    sequence: SequenceInfo | None,
) -> None:
    """Append one encoded row to ``parts``, without a header.

    The compiled codec encodes most rows. If this codec declines a row, code in Python encodes it or raises an error.

    Raises:
        CodecError: a name, a value or a number cannot be encoded.
    """
    key, cells = tuple(primary_key), tuple(cells)
    row = None if NATIVE is None else NATIVE.row_of_cells(key, cells, delete_marker)
    if row is None:
        _write_in_python(parts, key, cells, delete_marker, sequence)
    elif sequence is None:
        parts.append(row)
    else:
        parts += (row[:-CHECKSUM_BYTES], _sequence_bytes(sequence), row[-CHECKSUM_BYTES:])


def _write_in_python(
    parts: list[bytes],
    key: tuple[tuple[str, object], ...],
    cells: tuple[CellParts, ...],
    delete_marker: bool,
    sequence: SequenceInfo | None,
) -> None:
    row_crc = 0
    parts.append(_ROW_KEY)
    for name, value in key:
        _check_key(name, value)
        row_crc = TABLE[row_crc ^ _write_cell(parts, name, value, 0, None)]
    without_cells = len(parts)
    for name, value, operation, timestamp in cells:
        if len(parts) == without_cells:
            parts.append(_ROW_DATA)
        row_crc = TABLE[row_crc ^ _write_cell(parts, name, value, operation, timestamp)]
    if delete_marker:
        parts.append(_DELETE_MARKER)
    if sequence is not None:
        parts.append(_sequence_bytes(sequence))
    parts.append(bytes((tags.TAG_ROW_CHECKSUM, TABLE[row_crc ^ bool(delete_marker)])))


def write_row_value(parts: list[bytes], row: Row) -> None:
    """Append the encoded ``row`` to ``parts``, without a header."""
    cells = ((cell.name, cell.value, int(cell.operation), cell.timestamp_millis) for cell in row.cells)
    write_row(parts, row.primary_key, cells, row.delete_marker, row.sequence)


def _sequence_bytes(sequence: SequenceInfo) -> bytes:
    try:
        return _extension(
            tags.TAG_EXTENSION,
            tags.EXTENSION_BYTES,
            tags.TAG_SEQUENCE,
            tags.SEQUENCE_BYTES,
            tags.TAG_SEQUENCE_EPOCH,
            sequence.epoch,
            tags.TAG_SEQUENCE_TIMESTAMP,
            sequence.timestamp_micros,
            tags.TAG_SEQUENCE_ROW_INDEX,
            sequence.row_index,
        )
    except struct.error as error:
        raise CodecError(
            f"cannot encode sequence {sequence}: epoch and row index have 32 bits, the timestamp 64"
        ) from error
