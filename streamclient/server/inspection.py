"""What a request is about, read off its bytes without building messages: tables and row counts.

Fault rules and counters need the table of every request before it is executed. A full parse would cost as much as
some operations do, so these functions walk the protobuf fields and stop at the first one they need. They never raise:
malformed input names no table and counts no row, and the engine rejects it afterwards.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator

_LENGTH_DELIMITED = 2
_VARINT_MAX_BYTES = 10
"""A 64-bit number takes at most ten groups of seven bits; more is malformed."""

_TABLE_NAME_FIRST = frozenset(
    {
        "ComputeSplitPointsBySize",
        "DeleteRow",
        "DeleteTable",
        "DescribeTable",
        "GetRange",
        "GetRow",
        "ListStream",
        "PutRow",
        "StartLocalTransaction",
        "UpdateRow",
        "UpdateTable",
    }
)
"""Operations whose request has ``table_name`` as field 1."""

_TABLES_NESTED = frozenset({"BatchGetRow", "BatchWriteRow", "CreateTable"})
"""Operations whose request has messages as field 1 that have the table name as their field 1."""

_STREAM_ID_FIRST = frozenset({"DescribeStream", "GetShardIterator"})


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    value = 0
    for index in range(_VARINT_MAX_BYTES):
        byte = data[offset + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, offset + index + 1
    raise IndexError("varint is too long")


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and content of each length-delimited field, in wire order; other fields are skipped."""
    offset = 0
    while offset < len(data):
        tag, offset = _varint(data, offset)
        wire_type = tag & 7
        if wire_type == _LENGTH_DELIMITED:
            length, offset = _varint(data, offset)
            if offset + length > len(data):
                raise IndexError("field is cut short")
            yield tag >> 3, data[offset : offset + length]
            offset += length
        elif wire_type == 0:
            _, offset = _varint(data, offset)
        elif wire_type in (1, 5):
            offset += 8 if wire_type == 1 else 4
        else:
            raise IndexError("unknown wire type")


def _first(data: bytes, number: int) -> bytes:
    return next((content for found, content in _fields(data) if found == number), b"")


def _table_of_stream(stream_id: bytes) -> str:
    """A stream id is the table name, an underscore and the creation time."""
    return stream_id.rpartition(b"_")[0].decode()


def _table_of_iterator(iterator: bytes) -> str:
    """An iterator is base64 of the stream id behind its length, and more."""
    start = base64.b64decode(iterator)
    return _table_of_stream(start[1 : 1 + start[0]])


def _tables(operation: str, body: bytes) -> tuple[str, ...]:
    if operation in _TABLE_NAME_FIRST:
        return (_first(body, 1).decode(),)
    if operation in _TABLES_NESTED:
        return tuple(_first(content, 1).decode() for number, content in _fields(body) if number == 1)
    if operation in _STREAM_ID_FIRST:
        return (_table_of_stream(_first(body, 1)),)
    if operation == "GetStreamRecord":
        return (_table_of_iterator(_first(body, 1)),)
    return ()


def tables_of(operation: str, body: bytes) -> tuple[str, ...]:
    """The tables that a request names, in its order; empty where it names none or cannot be read."""
    try:
        return tuple(table for table in _tables(operation, body) if table)
    except (IndexError, UnicodeDecodeError, binascii.Error, ValueError):
        return ()


def _batch_rows(body: bytes) -> int:
    """Rows of all tables of a batch write request: field 2 of each field 1."""
    tables = (content for number, content in _fields(body) if number == 1)
    return sum(1 for table in tables for number, _ in _fields(table) if number == 2)


def rows_written(operation: str, body: bytes) -> int:
    """How many rows a request asks to write; rows that the server refuses count too."""
    if operation in ("PutRow", "UpdateRow", "DeleteRow"):
        return 1
    if operation != "BatchWriteRow":
        return 0
    try:
        return _batch_rows(body)
    except IndexError:
        return 0


_TAG_KEY, _TAG_DATA, _TAG_CELL, _TAG_DELETE, _TAG_ROW_CHECKSUM, _TAG_CELL_CHECKSUM = 1, 2, 3, 8, 9, 10
_CELL_FIELD_BYTES = {6: 1, 7: 8, _TAG_ROW_CHECKSUM: 1, _TAG_CELL_CHECKSUM: 1}
"""Payload sizes of PlainBuffer tags whose payload has no length of its own: type, timestamp and the checksums."""
_NAME_AND_VALUE_TAGS = (4, 5)


def _plainbuffer_rows(data: bytes) -> int:
    """Rows of a PlainBuffer block, counted by their checksums."""
    count = 0
    offset = 4  # the block header
    while offset < len(data):
        tag = data[offset]
        offset += 1
        if tag in _NAME_AND_VALUE_TAGS:
            offset += 4 + int.from_bytes(data[offset : offset + 4], "little")
        else:
            count += tag == _TAG_ROW_CHECKSUM
            offset += _CELL_FIELD_BYTES.get(tag, 0)
    return count


def _records(answer: bytes) -> int:
    return sum(1 for number, _ in _fields(answer) if number == 1)


def _batch_get_rows(answer: bytes) -> int:
    tables = (content for number, content in _fields(answer) if number == 1)
    rows = (row for table in tables for number, row in _fields(table) if number == 2)
    return sum(1 for row in rows if _first(row, 4))


def rows_read(operation: str, answer: bytes) -> int:
    """How many rows, or stream records, an answer of a reading operation holds."""
    try:
        if operation == "GetStreamRecord":
            return _records(answer)
        if operation == "GetRow":
            return 1 if _first(answer, 2) else 0
        if operation == "GetRange":
            return _plainbuffer_rows(_first(answer, 2))
        if operation == "BatchGetRow":
            return _batch_get_rows(answer)
    except IndexError:
        return 0
    return 0
