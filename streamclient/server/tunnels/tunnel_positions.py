"""Conversions between a channel's tokens and positions in its shard.

Also the effects on a tunnel when a shard opens, loses records or is deleted.
"""

from __future__ import annotations

from attrs import evolve

from streamclient.errors import CodecError
from streamclient.server import refusals
from streamclient.server.iterators import ShardIterator, decode_iterator, encode_iterator
from streamclient.server.stored_streams import ShardLog, Stream
from streamclient.server.tunnels.tunnel_channels import Status, Tunnel, TunnelChannel
from streamclient.wire.page_parts import FINISHED
from streamclient.wire.tunnel import Token, decode_token


def read_token(text: str) -> Token:
    """Decode a token that a client sent.

    Raises:
        ServiceError: the text is not a token.
    """
    try:
        return decode_token(text)
    except CodecError as error:
        raise refusals.TOKEN(error=error) from error


def stream_place(stream: Stream, shard: ShardLog, token: Token, now_micros: int) -> ShardIterator:
    """Return the position in ``shard`` that ``token`` contains. The position may be past retention.

    Check the time and the record count in the token, too. If the token is damaged or comes from another service, these
    numbers would falsify the state of the tunnel for all readers. ``now_micros`` is the present time.

    Raises:
        ServiceError: the token has no position of this shard, or its time or its record count is impossible.
    """
    place = decode_iterator(token.iterator) if token.is_stream else None
    if (
        place is None
        or (place.stream_id, place.shard_id) != (stream.stream_id, shard.shard_id)
        or place.position > shard.next_position
        or place.generation > stream.definition.generation
    ):
        raise refusals.TOKEN_CHANNEL(channel=shard.shard_id)
    latest = max(now_micros, stream.last_timestamp_micros)
    if not 0 <= token.timestamp <= latest:
        raise refusals.TOKEN_TIME(given=token.timestamp, latest=latest)
    if not 0 <= token.total_count <= place.position:
        raise refusals.TOKEN_COUNT(given=token.total_count, position=place.position)
    return place


def first_token(channel: TunnelChannel, stream: Stream | None) -> str:
    """Return the token at which reading a channel begins if the channel has no checkpoint."""
    if channel.is_base or stream is None:
        return Token().encode()
    return stream_token(Token(), stream, channel.channel_id, channel.start_position).encode()


def stream_token(token: Token, stream: Stream, shard_id: str, position: int) -> Token:
    """Return a copy of ``token`` with a position in a shard."""
    iterator = ShardIterator(stream.stream_id, shard_id, stream.definition.generation, position)
    return evolve(token, iterator=encode_iterator(iterator))


def next_position(channel: TunnelChannel, shard: ShardLog) -> int:
    """Return the position of the next record that a stream channel must deliver."""
    return shard.next_position if channel.checkpoint == FINISHED else channel.position


def follow(tunnel: Tunnel, stream: Stream) -> None:
    """Add a channel for each new shard that may have records for the tunnel, parents before children."""
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
    """Set ``tunnel.is_expired`` if the tunnel still needs records of ``shard`` before ``before_position``.

    The server is about to delete these records.
    """
    channel = tunnel.live.get(shard.shard_id)
    if channel is not None and channel.position < min(before_position, shard.next_position):
        tunnel.is_expired = True


def shard_forgotten(tunnel: Tunnel, shard: ShardLog) -> None:
    """End and forget the channel of a deleted shard. No records of the shard are left."""
    channel = tunnel.channels.get(shard.shard_id)
    if channel is not None:
        tunnel.finish(channel)
        tunnel.forget(channel)


def require_number(name: str, value: int, known: int) -> None:
    """Check a number that a client sends and raises by one for each use: a version or a sequence number.

    A huge number would leave no numbers for later requests. ``name`` is the name of the number for the refusal, and
    ``known`` is the last number that the server knows.

    Raises:
        ServiceError: the number is negative, or far above ``known``.
    """
    if not 0 <= value <= known + _FURTHEST_STEP:
        raise refusals.COUNT(name=name, given=value, limit=known + _FURTHEST_STEP)


_FURTHEST_STEP = 2**32
"""The largest increase, between two requests, of a number that a client counts up: a channel's version or the sequence
number of a checkpoint. Clients count up by one, so they stay far below this limit. 2**31 increases of this size fit
into 64 bits."""
