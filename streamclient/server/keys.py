"""Primary keys as byte strings that sort like the keys themselves.

The service orders keys column by column: INTEGER by value, STRING and BINARY by bytes, INF_MIN below and INF_MAX
above everything. The form below keeps that order and is reversible, so one bisect on bytes finds a row, and a
shard's bounds, which may name only leading columns, are plain prefixes.

Each column is a mark and a payload: INTEGER eight bytes with the sign bit flipped; STRING and BINARY their bytes with
``00`` doubled into ``00 ff``, ended by ``00 00``. Columns of one table never mix types, so the order of marks between
types does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable

from streamclient.records import KeyValue
from streamclient.wire.plainbuffer import KeyBound

_INF_MIN, _INTEGER, _STRING, _BINARY, _INF_MAX = b"\x00", b"\x10", b"\x11", b"\x12", b"\xff"
_SIGN = 1 << 63
_END = b"\x00\x00"


def _encode_column(value: KeyValue | KeyBound) -> bytes:
    if isinstance(value, str):
        return _STRING + value.encode().replace(b"\x00", b"\x00\xff") + _END
    if isinstance(value, int):
        return _INTEGER + (value + _SIGN).to_bytes(8, "big")
    if isinstance(value, (bytes, bytearray)):
        return _BINARY + bytes(value).replace(b"\x00", b"\x00\xff") + _END
    if value is KeyBound.INF_MIN:
        return _INF_MIN
    if value is KeyBound.INF_MAX:
        return _INF_MAX
    raise ValueError(f"{value!r} has no place in the order of keys; generate it first")


def encode_key(values: Iterable[KeyValue | KeyBound]) -> bytes:
    """The sortable form of a key, of leading columns of one, or of a range bound."""
    return b"".join([_encode_column(value) for value in values])


def _decode_escaped(encoded: bytes, start: int) -> tuple[bytes, int]:
    end = start
    while True:
        end = encoded.index(b"\x00", end)
        if encoded[end : end + 2] == _END:
            return encoded[start:end].replace(b"\x00\xff", b"\x00"), end + 2
        end += 2


def decode_key(encoded: bytes) -> tuple[KeyValue, ...]:
    """The key, or the leading columns, that ``encode_key`` encoded. Bounds such as INF_MIN are not accepted."""
    values: list[KeyValue] = []
    offset = 0
    while offset < len(encoded):
        mark = encoded[offset : offset + 1]
        if mark == _INTEGER:
            values.append(int.from_bytes(encoded[offset + 1 : offset + 9], "big") - _SIGN)
            offset += 9
        elif mark in (_STRING, _BINARY):
            data, offset = _decode_escaped(encoded, offset + 1)
            values.append(data.decode() if mark == _STRING else data)
        else:
            raise ValueError(f"no key column starts with {mark.hex()} at byte {offset} of {encoded.hex()}")
    return tuple(values)
