"""Shard iterators: a position in a stream as opaque text that needs no memory on the server.

The form was observed at the service: the base64 text of three byte strings, each after one length byte, and a CRC-8
over all of them. The third string, the position, has this server's own form: generation and record position, eight
bytes each. A stream id may be too long for one length byte, which happens with table names over 238 characters. Then
reading refuses the iterator, as it does at the service.
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
    """The position of the next record to read."""

    stream_id: str
    shard_id: str
    generation: int
    """The stream's generation when the iterator was made. If the stream has a later generation, the iterator is refused
    as trimmed."""
    position: int


def encode_iterator(iterator: ShardIterator) -> str:
    """Return the text of an iterator. The same position always gives the same text."""
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
    """Return the position that an iterator names.

    Raises:
        ServiceError: ``OTSParameterInvalid``: the text is not an iterator of any stream.
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
    """Return the table that a stream id names: the part before the underscore and the creation time."""
    return stream_id.rpartition("_")[0]


def table_of_iterator(text: str) -> str:
    """Return the table that an iterator names, without checking the rest of the iterator."""
    data = base64.b64decode(text)
    return table_of_stream(data[1 : 1 + data[0]].decode())
