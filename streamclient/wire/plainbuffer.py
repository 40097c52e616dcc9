"""PlainBuffer, the row format inside Tablestore messages.

Grammar, tags and checksums: Tablestore Java SDK 5.17 (``PlainBufferCodedInputStream``), checked against the Go and
Python SDKs. Decoding verifies structure, lengths and both checksums; ``docs/decisions/plainbuffer-strictness.md``
states the limits of these checks.

This module checks only the *form*. Other rules, such as "a deletion has no value", are checked by the operations, which
have their own error texts. For any bytes, all functions raise ``CodecError`` and nothing else.

The Python SDK writes the number of characters, not of bytes, as the length of a column name. So a non-ASCII name from
that SDK is reported as corrupt; a guess could yield a wrong row.
"""

from __future__ import annotations

from collections.abc import Iterable

from streamclient.errors import CodecError
from streamclient.records import ColumnOperation, ColumnValue, RecordType, StreamRecord
from streamclient.wire._reader import READ_ERRORS, as_codec_error, fail, read_row, read_value
from streamclient.wire._tags import HEADER
from streamclient.wire._writer import value_bytes, write_row, write_row_value
from streamclient.wire.rows import Cell, CellOperation, KeyBound, Row

__all__ = [
    "HEADER",
    "Cell",
    "CellOperation",
    "KeyBound",
    "Row",
    "RowWrite",
    "decode_row",
    "decode_rows",
    "decode_value",
    "encode_row",
    "encode_rows",
    "encode_value",
    "write_of",
]

RowWrite = tuple[RecordType, bytes, bytes]
"""The write that repeats the effect of a record. It consists of a type, a key and a row.

Different keys of one table have different bytes. The row has the form for PutRow, UpdateRow or DeleteRow; it is empty
if an update changes nothing."""

OPERATIONS = {
    ColumnOperation.PUT: CellOperation.PUT,
    ColumnOperation.DELETE_ONE_VERSION: CellOperation.DELETE_ONE_VERSION,
    ColumnOperation.DELETE_ALL_VERSION: CellOperation.DELETE_ALL_VERSIONS,
}
"""For each operation of a record's column, the operation of the cell on the wire."""

_OPERATIONS = {int(operation): operation for operation in CellOperation}


def encode_row(row: Row) -> bytes:
    """Encode one row with its header, as in PutRow and in stream records."""
    parts = [HEADER]
    write_row_value(parts, row)
    return b"".join(parts)


def encode_rows(rows: Iterable[Row]) -> bytes:
    """Encode rows one after the other, after one header, as in GetRange.

    Without rows, return empty bytes, which every SDK accepts.
    """
    parts = [HEADER]
    for row in rows:
        write_row_value(parts, row)
    return b"".join(parts) if len(parts) > 1 else b""


def write_of(record: StreamRecord) -> RowWrite:
    """Return a record as a write, with the versions of its cells, in their order.

    Raises:
        CodecError: the key or a cell holds a value that cannot be encoded.
    """
    key = [HEADER]
    write_row(key, record.primary_key, (), False, None)
    kind, cells = record.record_type, record.columns
    if kind is RecordType.UPDATE and not cells:
        row = b""
    else:
        deletes = kind is RecordType.DELETE
        parts = [HEADER]
        encoded = ((each.name, each.value, int(OPERATIONS[each.operation]), each.timestamp_millis) for each in cells)
        write_row(parts, record.primary_key, encoded, deletes, None)
        row = b"".join(parts)
    return kind, b"".join(key)[_KEY_BEGIN:-_ROW_END], row


_KEY_BEGIN = len(HEADER) + 1
"""The offset of a row's key, after the header and a tag."""
_ROW_END = 2
"""The length of a row's end: a tag and the checksum."""


def encode_value(value: ColumnValue | KeyBound | bytearray) -> bytes:
    """Encode a value without its tag and outer length, as in filters and partition ranges."""
    return value_bytes(value)


def decode_row(data: bytes) -> Row:
    """Decode a frame that holds exactly one row with its header."""
    rows = decode_rows(data)
    if len(rows) != 1:
        raise CodecError(f"a frame of {len(data)} bytes holds {len(rows)} rows, expected exactly 1")
    return rows[0]


def decode_rows(data: bytes) -> list[Row]:
    """Decode all rows of a frame. An empty frame has no rows, nor has a frame that is only a header."""
    data = bytes(data)
    if not data:
        return []
    if data[:4] != HEADER:
        fail(0, f"header {data[:4].hex(' ')}", HEADER.hex(" "))
    rows: list[Row] = []
    offset = len(HEADER)
    while offset < len(data):
        begin = offset
        try:
            key, cells, deleted, sequence, offset, _ = read_row(data, begin)
        except READ_ERRORS as error:
            raise as_codec_error(error, data, f"row {len(rows)}, which begins at byte {begin}") from error
        rows.append(
            Row(
                key,
                tuple([Cell(name, value, _OPERATIONS[number], stamp) for name, value, number, stamp in cells]),
                deleted,
                sequence,
            )
        )
    return rows


def decode_value(data: bytes) -> ColumnValue | KeyBound:
    """Decode a value without its tag and outer length. No byte may follow the value."""
    data = bytes(data)
    try:
        value, end = read_value(data, 0)
    except READ_ERRORS as error:
        raise as_codec_error(error, data, "a value") from error
    if end != len(data):
        fail(end, f"{len(data) - end} more bytes", "the end of the value")
    return value
