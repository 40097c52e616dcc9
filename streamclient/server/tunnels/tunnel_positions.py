"""Where a channel is read next: from tokens to positions and back. And what happens to a channel with its shard."""

from __future__ import annotations

from attrs import evolve

from streamclient.errors import CodecError
from streamclient.server.iterators import ShardIterator, decode_iterator, encode_iterator
from streamclient.server.server_errors import invalid
from streamclient.server.stored_streams import ShardLog, Stream
from streamclient.server.tunnels.tunnel_channels import Status, Tunnel, TunnelChannel
from streamclient.wire.page_parts import FINISHED
from streamclient.wire.tunnel import Token, decode_token


def read_token(text: str) -> Token:
    """A token that a client sent.

    Raises:
        ServiceError: it is none.
    """
    try:
        return decode_token(text)
    except CodecError as error:
        raise invalid(f"Invalid token: {error}.") from error


def stream_place(stream: Stream, shard: ShardLog, token: Token, now_micros: int) -> ShardIterator:
    """The place in a shard that a token names, which may be past retention.

    Every number in a token is one that this server made: a token with others, be they of a damaged one, of another
    service or of a unit of time that is not the service's, would mislead everybody who looks at the tunnel.

    Raises:
        ServiceError: it names no place of this shard, or its numbers do not fit that place.
    """
    place = decode_iterator(token.iterator) if token.is_stream else None
    if (
        place is None
        or (place.stream_id, place.shard_id) != (stream.stream_id, shard.shard_id)
        or place.position > shard.next_position
        or place.generation > stream.definition.generation
    ):
        raise invalid(f"Invalid token: it names no place of channel {shard.shard_id}.")
    latest = max(now_micros, stream.last_timestamp_micros)
    if not 0 <= token.timestamp <= latest:
        raise invalid(f"Invalid token: its time {token.timestamp} is not from 0 to {latest} microseconds.")
    if not 0 <= token.total_count <= place.position:
        raise invalid(f"Invalid token: {token.total_count} records do not lie before position {place.position}.")
    return place


def first_token(channel: TunnelChannel, stream: Stream | None) -> str:
    """Where a channel without checkpoint begins."""
    if channel.is_base or stream is None:
        return Token().encode()
    return stream_token(Token(), stream, channel.channel_id, channel.start_position).encode()


def stream_token(token: Token, stream: Stream, shard_id: str, position: int) -> Token:
    """The token for a position of a shard, otherwise as the one before."""
    iterator = ShardIterator(stream.stream_id, shard_id, stream.definition.generation, position)
    return evolve(token, iterator=encode_iterator(iterator))


def next_position(channel: TunnelChannel, shard: ShardLog) -> int:
    """Position behind the checkpoint, or the first one."""
    return shard.next_position if channel.checkpoint == FINISHED else channel.position


def follow(tunnel: Tunnel, stream: Stream) -> None:
    """A channel for each new shard that has, or may get, records of this tunnel. Parents stand before children."""
    for shard in stream.created_since(tunnel.newest_shard):
        tunnel.newest_shard = shard.definition.number
        if shard.closed_micros is not None and shard.closed_micros < tunnel.start_micros:
            continue
        definition = shard.definition
        parents = (definition.parent_id, definition.parent_sibling_id)
        known = tuple(parent for parent in parents if parent is not None and parent in tunnel.channels)
        start = shard.position_at(tunnel.start_micros)
        channel = TunnelChannel(shard.shard_id, Status.WAIT, parent_ids=known, start_position=start, position=start)
        tunnel.add(channel)


def records_forgotten(tunnel: Tunnel, shard: ShardLog, before_position: int) -> None:
    """Notice that records are about to be lost: the next one of a channel that is not over must still be there."""
    channel = tunnel.live.get(shard.shard_id)
    if channel is not None and channel.position < min(before_position, shard.next_position):
        tunnel.is_expired = True


def shard_forgotten(tunnel: Tunnel, shard: ShardLog) -> None:
    """Let go of the channel of a shard that is gone; all of it that was not lost was read."""
    channel = tunnel.channels.get(shard.shard_id)
    if channel is not None:
        tunnel.finish(channel)
        tunnel.forget(channel)


def require_number(name: str, value: int, known: int) -> None:
    """Clients count up by one from what they know, so a number far beyond leaves the others none to go on with.

    Raises:
        ServiceError: the number is negative or far beyond.
    """
    if not 0 <= value <= known + _FURTHEST_STEP:
        raise invalid(f"Invalid {name}: {value}, expected one from 0 to {known + _FURTHEST_STEP}.")


_FURTHEST_STEP = 2**32
"""Far more than any client counts on while the server does not hear of it; 2**31 such steps fit into 64 bits."""
