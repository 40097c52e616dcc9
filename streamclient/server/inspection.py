"""What a request is about, and how many rows it moved: for fault rules and counters.

Messages are parsed here once more, beside the engine: protobuf's parser is so much faster than anything in Python that
looking at the bytes by hand would cost more. These functions never raise: malformed input names no table and counts
no row, and the engine rejects it afterwards.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf.message import DecodeError

from streamclient.wire import schema


def _table_of_stream(stream_id: str) -> str:
    """A stream id is the table name, an underscore and the creation time."""
    return stream_id.rpartition("_")[0]


def _table_of_iterator(iterator: str) -> str:
    """An iterator is base64 of the stream id behind its length, and more."""
    start = base64.b64decode(iterator)
    return _table_of_stream(start[1 : 1 + start[0]].decode())


def _own_name(request: Any) -> tuple[str, ...]:
    return (request.table_name,)


def _nested_names(request: Any) -> tuple[str, ...]:
    return tuple(table.table_name for table in request.tables)


_TABLES: Mapping[str, Callable[[Any], tuple[str, ...]]] = {
    "BatchGetRow": _nested_names,
    "BatchWriteRow": _nested_names,
    "ComputeSplitPointsBySize": _own_name,
    "CreateTable": lambda request: (request.table_meta.table_name,),
    "DeleteRow": _own_name,
    "DeleteTable": _own_name,
    "DescribeStream": lambda request: (_table_of_stream(request.stream_id),),
    "DescribeTable": _own_name,
    "GetRange": _own_name,
    "GetRow": _own_name,
    "GetShardIterator": lambda request: (_table_of_stream(request.stream_id),),
    "GetStreamRecord": lambda request: (_table_of_iterator(request.shard_iterator),),
    "ListStream": _own_name,
    "PutRow": _own_name,
    "UpdateRow": _own_name,
    "UpdateTable": _own_name,
}
"""Where the requests name their tables; those not listed name none."""


def tables_of(operation: str, body: bytes) -> tuple[str, ...]:
    """The tables that a request names, in its order; empty where it names none or cannot be read."""
    find = _TABLES.get(operation)
    if find is None:
        return ()
    try:
        names = find(schema.OPERATIONS[operation].request.FromString(body))
    except (DecodeError, IndexError, binascii.Error, ValueError, TypeError):
        return ()
    return tuple(name for name in names if name and isinstance(name, str))


_ROWS_WRITTEN: Mapping[str, Callable[[Any], int]] = {
    "BatchWriteRow": lambda request: sum(len(table.rows) for table in request.tables),
    "DeleteRow": lambda request: 1,
    "PutRow": lambda request: 1,
    "UpdateRow": lambda request: 1,
}


def rows_written(operation: str, body: bytes) -> int:
    """How many rows a request asks to write; rows that the server refuses count too."""
    count = _ROWS_WRITTEN.get(operation)
    return 0 if count is None else _count(count, schema.OPERATIONS[operation].request, body)


_NAME_AND_VALUE_TAGS = frozenset({4, 5})
_ROW_CHECKSUM_TAG = 9
_PAYLOAD_BYTES = (0, 0, 0, 0, 0, 0, 1, 8, 0, 1, 1)
"""By tag, of those without a length in front: size of the payload."""
_HEADER_BYTES = 4
_read_length = struct.Struct("<I").unpack_from


def _plainbuffer_rows(data: bytes) -> int:
    """Rows of a PlainBuffer block, counted by their checksums."""
    count = 0
    offset = _HEADER_BYTES
    end = len(data)
    while offset < end:
        tag = data[offset]
        if tag in _NAME_AND_VALUE_TAGS:
            offset += 5 + _read_length(data, offset + 1)[0]
        else:
            count += tag == _ROW_CHECKSUM_TAG
            offset += 1 + _PAYLOAD_BYTES[tag]
    return count


_ROWS_READ: Mapping[str, Callable[[Any], int]] = {
    "BatchGetRow": lambda answer: sum(1 for table in answer.tables for row in table.rows if row.row),
    "GetRange": lambda answer: _plainbuffer_rows(answer.rows),
    "GetRow": lambda answer: 1 if answer.row else 0,
    "GetStreamRecord": lambda answer: len(answer.stream_records),
}


def rows_read(operation: str, answer: bytes) -> int:
    """How many rows, or stream records, an answer of a reading operation holds."""
    count = _ROWS_READ.get(operation)
    return 0 if count is None else _count(count, schema.OPERATIONS[operation].response, answer)


def _count(count: Callable[[Any], int], message_class: Any, data: bytes) -> int:
    try:
        return count(message_class.FromString(data))
    except (DecodeError, IndexError, struct.error, ValueError):
        return 0
