"""The encoding SimpleRowMatrix: rows as one matrix of values, without versions and timestamps.

The layout, including the checksum, was checked against the parsers of the Java and Go SDKs. All numbers are
little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import chain

from streamclient.records import ColumnValue
from streamclient.server.stored_rows import StoredRow
from streamclient.wire.crc8 import crc8

_MAGIC = b"SRM0"
_HEADER = struct.Struct("<4siiii")
"""The header of a block: magic bytes, offset of the data, offset of the options, number of key columns, number of
attribute columns."""
_ENTIRE_KEYS, _ROW_COUNT, _ROW, _CHECKSUM = b"\x0a", b"\x03", b"\x02", b"\x01"
_INTEGER, _DOUBLE, _BOOLEAN, _STRING, _NULL, _BLOB = b"\x00", b"\x01", b"\x02", b"\x03", b"\x06", b"\x07"


def encode_matrix(
    key_names: Sequence[str],
    key_columns: Sequence[str],
    attributes: Sequence[str],
    rows: Iterable[StoredRow],
    *,
    entire_keys: bool,
) -> bytes:
    """Return rows of one table as a block with the columns ``key_columns`` and ``attributes``; absent values are null.

    ``key_names`` are all key columns of the table. ``entire_keys`` says whether the request asked for the whole key.
    If so, ``key_columns`` equals ``key_names``.
    """
    positions = [key_names.index(name) for name in key_columns]
    data: list[bytes] = []
    count = 0
    for row in rows:
        key, columns = row.parts()
        data.append(_ROW)
        data += (_value(key[position]) for position in positions)
        data += (_value(columns[name][0][1]) if name in columns else _NULL for name in attributes)
        count += 1
    names = b"".join(map(_name, chain(key_columns, attributes)))
    options = _ENTIRE_KEYS + bytes((entire_keys,)) + _ROW_COUNT + struct.pack("<i", count)
    at = _HEADER.size + len(names)
    header = _HEADER.pack(_MAGIC, at + len(options), at, len(key_columns), len(attributes))
    block = b"".join((header, names, options, *data, _CHECKSUM))
    return block + bytes((crc8(block),))


def _name(name: str) -> bytes:
    data = name.encode()
    return struct.pack("<h", len(data)) + data


def _value(value: ColumnValue) -> bytes:
    if isinstance(value, bool):
        return _BOOLEAN + bytes((value,))
    if isinstance(value, int):
        return _INTEGER + struct.pack("<q", value)
    if isinstance(value, float):
        return _DOUBLE + struct.pack("<d", value)
    data = value.encode() if isinstance(value, str) else bytes(value)
    return (_STRING if isinstance(value, str) else _BLOB) + struct.pack("<i", len(data)) + data
