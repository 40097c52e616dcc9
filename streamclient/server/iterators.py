"""Shard iterators: positions in a stream as opaque text. The server need not remember the iterators that it issued.

The service's iterators have the same form except for the position. An iterator is the base64 text of three byte strings
and a CRC-8 over them. Each string comes after one length byte. The strings are the stream id, the shard id and the
position. The position has this server's own form: the generation of the stream, and the position of a record in the
shard, eight bytes each. If the table's name has more than 238 characters, the stream id is too long for one length
byte. Reads refuse the iterators of such a stream. The service refuses them, too.
"""

from __future__ import annotations

import base64
import binascii
import struct

from attrs import frozen

from streamclient.server import refusals
from streamclient.wire.crc8 import crc8

_POSITION = struct.Struct("<QQ")
_LENGTH_MAX = 255


@frozen
class ShardIterator:
    """The decoded content of an iterator: the position of the next record to read in a shard."""

    stream_id: str
    shard_id: str
    generation: int
    """The number of calls of ``expire_iterators`` for the stream before the iterator was made. After the next call, the
    server refuses the iterator as trimmed."""
    position: int


def encode_iterator(iterator: ShardIterator) -> str:
    """Return an iterator as text. Equal positions give equal texts."""
    parts = (
        iterator.stream_id.encode(),
        iterator.shard_id.encode(),
        _POSITION.pack(iterator.generation, iterator.position),
    )
    data = b"".join(bytes((len(part) & _LENGTH_MAX,)) + part for part in parts)
    return base64.b64encode(data + bytes((crc8(data),))).decode()


def _split(data: bytes) -> tuple[bytes, bytes, bytes]:
    parts = []
    offset = 0
    for _ in range(3):
        if offset >= len(data):
            raise refusals.ITERATOR(reason="it is too short")
        end = offset + 1 + data[offset]
        parts.append(data[offset + 1 : end])
        offset = end
    if offset != len(data):
        raise refusals.STREAM_ID_LENGTH()
    return parts[0], parts[1], parts[2]


def decode_iterator(text: str) -> ShardIterator:
    """Return the decoded content of an iterator's text.

    Raises:
        ServiceError: the text is not an iterator of any stream (``OTSParameterInvalid``).
    """
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise refusals.ITERATOR(reason="it is not base64 text") from error
    if len(data) < 2 or crc8(data[:-1]) != data[-1]:
        raise refusals.ITERATOR(reason="its checksum does not match")
    stream_id, shard_id, position = _split(data[:-1])
    if len(position) != _POSITION.size:
        raise refusals.STREAM_ID_LENGTH()
    try:
        return ShardIterator(stream_id.decode(), shard_id.decode(), *_POSITION.unpack(position))
    except UnicodeDecodeError as error:
        raise refusals.ITERATOR(reason="its ids are not UTF-8 text") from error


def table_of_stream(stream_id: str) -> str:
    """Return the name of the table in a stream id: the part before the last underscore and the creation time."""
    return stream_id.rpartition("_")[0]


def table_of_iterator(text: str) -> str:
    """Return the name of the table in an iterator's text, without checking the iterator."""
    data = base64.b64decode(text)
    return table_of_stream(data[1 : 1 + data[0]].decode())
