"""PlainBuffer, the row format inside Tablestore messages.

The grammar, the tags and the checksums come from the Tablestore Java SDK 5.17 (``PlainBufferCodedInputStream``). They
were checked against the Go and Python SDKs. Decoding verifies the structure, the lengths, and the checksums of cells
and rows. ``docs/decisions/plainbuffer-strictness.md`` states the limits of these checks.

This module checks only the *form* of rows. The code of each operation checks other rules, such as "a deletion has no
value". The decoding functions raise no error except ``CodecError``, whatever the bytes are.

The Python SDK writes the length of a column name in characters, not in bytes. So the decoding functions report a
non-ASCII name from that SDK as corrupt. If they guessed the length, they might return a wrong row.
"""

from __future__ import annotations

from collections.abc import Iterable

from streamclient.errors import CodecError
from streamclient.records import ColumnOperation, ColumnValue, RecordType, StreamRecord
from streamclient.wire._reader import READ_ERRORS, as_codec_error, fail, read_row, read_value
from streamclient.wire._tags import HEADER, TAG_CELL_OPERATION
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
    "may_delete_one_version",
    "write_of",
]

RowWrite = tuple[RecordType, bytes, bytes]
"""A write that repeats the change of a record in another table. It has three elements: the record's type, its encoded
key, and its encoded row.

Two different keys of one table are never encoded as the same bytes. The row is encoded for PutRow, UpdateRow or
DeleteRow. The row is empty if an update changes nothing."""

OPERATIONS = {
    ColumnOperation.PUT: CellOperation.PUT,
    ColumnOperation.DELETE_ONE_VERSION: CellOperation.DELETE_ONE_VERSION,
    ColumnOperation.DELETE_ALL_VERSION: CellOperation.DELETE_ALL_VERSIONS,
}
"""The operations of cells on the wire. The keys are the operations that records have for their columns."""

_OPERATIONS = {int(operation): operation for operation in CellOperation}


def encode_row(row: Row) -> bytes:
    """Return ``row``, encoded with a header, as PutRow and stream records contain it."""
    parts = [HEADER]
    write_row_value(parts, row)
    return b"".join(parts)


def encode_rows(rows: Iterable[Row]) -> bytes:
    """Return the encoded ``rows`` one after the other, after one header, as responses to GetRange contain them.

    If ``rows`` is empty, return empty bytes, which every SDK accepts.
    """
    parts = [HEADER]
    for row in rows:
        write_row_value(parts, row)
    return b"".join(parts) if len(parts) > 1 else b""


def write_of(record: StreamRecord) -> RowWrite:
    """Return the write that repeats the change of ``record`` in another table.

    The cells of the record keep their order and their timestamps.

    Raises:
        CodecError: a value of the key or of a cell cannot be encoded.
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
"""The offset of the key in a row with a header. A tag is between the header and the key."""
_ROW_END = 2
"""The length, in bytes, of a row's end, which is a tag and the row's checksum."""


def may_delete_one_version(row: bytes) -> bool:
    """Return whether the encoded ``row`` may delete a single version of a column.

    ``False`` is certain. ``True`` is not, because a value may have the same bytes as such a deletion. The function
    does not decode the row, so it is fast.
    """
    return _DELETES_ONE_VERSION in row


_DELETES_ONE_VERSION = bytes((TAG_CELL_OPERATION, CellOperation.DELETE_ONE_VERSION))


def encode_value(value: ColumnValue | KeyBound | bytearray) -> bytes:
    """Return an encoded value, as filters and partition ranges contain it.

    The result lacks the tag and the length, which come before a value only in a cell.
    """
    return value_bytes(value)


def decode_row(data: bytes) -> Row:
    """Return the row in ``data``, which must consist of a header and exactly one row."""
    rows = decode_rows(data)
    if len(rows) != 1:
        raise CodecError(f"a frame of {len(data)} bytes holds {len(rows)} rows, expected exactly 1")
    return rows[0]


def decode_rows(data: bytes) -> list[Row]:
    """Return the rows in ``data``, which must be empty or consist of a header and any number of rows."""
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
    """Return the value in ``data``, which must have the form of the result of ``encode_value``."""
    data = bytes(data)
    try:
        value, end = read_value(data, 0)
    except READ_ERRORS as error:
        raise as_codec_error(error, data, "a value") from error
    if end != len(data):
        fail(end, f"{len(data) - end} more bytes", "the end of the value")
    return value
