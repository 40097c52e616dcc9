"""Where a channel is read next: from tokens to positions in a shard, and back."""

from __future__ import annotations

from attrs import evolve

from streamclient.errors import CodecError
from streamclient.server.errors import ServiceError, invalid
from streamclient.server.iterators import ShardIterator, decode_iterator, encode_iterator
from streamclient.server.streams import Shard, Stream
from streamclient.server.tunnels.channels import Channel
from streamclient.wire.tunnel import FINISHED, Token, decode_token


def read_token(text: str) -> Token:
    """A token that a client sent.

    Raises:
        ServiceError: it is none.
    """
    try:
        return decode_token(text)
    except CodecError as error:
        raise invalid(f"Invalid token: {error}.") from error


def first_token(channel: Channel, stream: Stream | None) -> str:
    """Where a channel without checkpoint begins."""
    if channel.is_base or stream is None:
        return Token().encode()
    return stream_token(Token(), stream, channel.channel_id, channel.start_position).encode()


def stream_token(token: Token, stream: Stream, shard_id: str, position: int) -> Token:
    """The token for a position of a shard, otherwise as the one before."""
    iterator = ShardIterator(stream.stream_id, shard_id, stream.definition.generation, position)
    return evolve(token, iterator=encode_iterator(iterator))


def next_position(channel: Channel, shard: Shard) -> int:
    """Position behind the checkpoint, or the first one."""
    if not channel.checkpoint:
        return channel.start_position
    if channel.checkpoint == FINISHED:
        return shard.next_position
    try:
        return decode_iterator(read_token(channel.checkpoint).iterator).position
    except ServiceError:  # a client may store any text as its checkpoint; only reading from it fails
        return shard.next_position
