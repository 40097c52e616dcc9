"""The operation ReadRecords, which returns the next page of a channel, and the checkpoints of channels.

Full data are the present rows, in key order. If a client writes a row while full data are read, the tunnel may deliver
the row twice: as full data and as a record of the stream. Incremental data have the order of the stream.
"""

from __future__ import annotations

import uuid
from bisect import bisect_right

from attrs import evolve, frozen

from streamclient.errors import CodecError
from streamclient.server import refusals
from streamclient.server.keys import encode_key
from streamclient.server.server_errors import ServiceError
from streamclient.server.server_state import ServerState
from streamclient.server.stored_rows import StoredRow, alive
from streamclient.server.stored_streams import ShardLog, Stream
from streamclient.server.stored_tables import Table, check_key
from streamclient.server.tunnels.tunnel_channels import ChannelRange, Tunnel, TunnelChannel
from streamclient.server.tunnels.tunnel_positions import read_token, stream_place, stream_token
from streamclient.wire import schema
from streamclient.wire.page_parts import FINISHED
from streamclient.wire.plainbuffer import HEADER, KeyBound, Row, decode_row, encode_row
from streamclient.wire.schema import ActionType
from streamclient.wire.tunnel import Token

_HIGHEST = encode_key((KeyBound.INF_MAX,))
_NANOS_PER_MICRO = 1_000
_PUT_ROW = int(ActionType.PUT_ROW)
_MOST_ROWS = 2**40
"""The largest number of delivered rows that a token of full data may state. No table of this server has more rows, and
the sum over all channels fits into 64 bits."""


@frozen
class Page:
    """The page of records that one call of ReadRecords returns."""

    body: bytes
    """The records of the page, each serialized as an element of the answer."""
    next_token: str
    may_more_record: bool
    total_count: int = 0
    """The number of all records of the channel, if this page is its last page; otherwise 0."""
    reached_micros: int = 0
    """The time in the stream, in microseconds, that the last page of a stream channel reaches; 0 for other pages."""

    def answer(self) -> bytes:
        """Return the serialized answer of ReadRecords."""
        rest = schema.ReadRecordsResponse(next_token=self.next_token, may_more_record=self.may_more_record)
        return self.body + bytes(rest.SerializePartialToString())


def read(state: ServerState, tunnel: Tunnel, channel: TunnelChannel, text: str) -> Page:
    """Return the page of a channel that begins at the token ``text``.

    Raises:
        ServiceError: the token is not a token of this channel, the records at the token are past retention, or the
            tunnel has expired.
    """
    if tunnel.is_expired and (channel.key_range is not None or tunnel.definition.stream_id not in state.streams):
        raise refusals.TUNNEL_EXPIRED(tunnel=tunnel.definition.tunnel_id)
    if text == FINISHED:
        return Page(b"", FINISHED, False)
    token = read_token(text)
    if channel.key_range is not None:
        table = state.table(tunnel.definition.table_name)
        start = base_start(table, channel, channel.key_range, token)
        page = _read_base(state, table, start, channel.key_range, token)
    else:
        stream = state.stream(tunnel.definition.stream_id)
        page = _read_stream(state, tunnel, stream, stream.shards[channel.channel_id], token)
    if page.next_token == FINISHED and not channel.is_over:
        channel.final_count, channel.final_micros = page.total_count, page.reached_micros
    return page


def checkpoint(state: ServerState, tunnel: Tunnel, channel: TunnelChannel, text: str) -> None:
    """Store the checkpoint of a channel; ``text`` is its token, which is not ``finished``.

    Raises:
        ServiceError: the token is not a token of this channel, or the records at the token are past retention. Nothing
            was changed.
    """
    token = read_token(text)
    if channel.key_range is not None:
        base_start(state.table(tunnel.definition.table_name), channel, channel.key_range, token)
    else:
        stream = state.stream(tunnel.definition.stream_id)
        shard = stream.shards[channel.channel_id]
        place = stream_place(stream, shard, token, state.clock.now_micros())
        if place.position < shard.first_position:
            raise refusals.TOKEN_TRIMMED(channel=channel.channel_id)
        channel.position = place.position
        channel.consumed_micros = token.timestamp
    channel.checkpoint = text
    channel.record_count = token.total_count


# --- full data -----------------------------------------------------------------------------------------------------


def _read_base(state: ServerState, table: Table, start: bytes, key_range: ChannelRange, token: Token) -> Page:
    rows = table.rows.ascending(start, _HIGHEST if key_range.end is None else key_range.end)
    expired_before = table.expired_before_millis(state.clock.now_micros())
    names, most_rows, most_bytes = table.key_names, state.limits.range_rows, state.limits.range_bytes
    answer = schema.ReadRecordsResponse()  # a separate message for each row would double the cost
    add = answer.records.add
    count = size = 0
    for _, row in rows:
        if count >= most_rows or size >= most_bytes:
            following = evolve(token, primary_key=_key_frame(table, row), total_count=token.total_count + count)
            return Page(bytes(answer.SerializePartialToString()), following.encode(), True)
        live = alive(row, names, expired_before)
        if live is not None:
            add(action_type=_PUT_ROW, record=HEADER + live.body(names))
            count += 1
            size += live.size_bytes
    return Page(bytes(answer.SerializePartialToString()), FINISHED, False, token.total_count + count)


def base_start(table: Table, channel: TunnelChannel, key_range: ChannelRange, token: Token) -> bytes:
    """Return the encoded key that ``token`` names: the key of the next row to read.

    If the token names no key, return the first key of ``key_range``.

    Raises:
        ServiceError: the token is not a token of this channel.
    """
    if token.is_stream:
        raise refusals.TOKEN_OF_STREAM(channel=channel.channel_id)
    if token.timestamp or not 0 <= token.total_count <= _MOST_ROWS:
        raise refusals.TOKEN_NUMBERS(time=token.timestamp, count=token.total_count)
    if not token.primary_key:
        return key_range.begin
    try:
        key = decode_row(token.primary_key).primary_key
        check_key(table.definition, key)
        if any(isinstance(value, KeyBound) for _, value in key):
            raise ValueError("a bound of a range is not a key value")
        start = encode_key(value for _, value in key)
    except (CodecError, ServiceError, ValueError) as error:
        raise refusals.TOKEN_KEY(table=table.definition.name, error=error) from error
    if start < key_range.begin or (key_range.end is not None and start >= key_range.end):
        raise refusals.TOKEN_RANGE(channel=channel.channel_id)
    return start


def _key_frame(table: Table, row: StoredRow) -> bytes:
    return encode_row(Row(tuple(zip(table.key_names, row.key, strict=True))))


# --- incremental data ----------------------------------------------------------------------------------------------


def _read_stream(state: ServerState, tunnel: Tunnel, stream: Stream, shard: ShardLog, token: Token) -> Page:
    now_micros = state.clock.now_micros()
    place = stream_place(stream, shard, token, now_micros)
    if place.position < shard.first_position and state.tunnels_skip_lost_log:
        place = evolve(place, position=shard.first_position)
    if place.position < shard.first_position or place.generation < stream.definition.generation:
        raise refusals.TUNNEL_LOG_LOST(request=uuid.uuid4())
    end_micros = tunnel.definition.end_nanos // _NANOS_PER_MICRO or None
    page = shard.page(place.position, state.limits.tunnel_page_records, state.limits.stream_page_bytes)
    found = len(page.elements)
    kept = found if end_micros is None else bisect_right(page.timestamps, end_micros)
    position = place.position + kept
    is_past_end = end_micros is not None and (kept < found or now_micros > end_micros)
    is_at_tail = position == shard.next_position
    # The records are encoded for GetStreamRecord. ReadRecords has the same field numbers, so the same bytes are valid.
    records = b"".join(page.before(kept))
    if kept < found or (is_at_tail and (not shard.is_open or is_past_end)):
        reached_micros = page.timestamps[kept - 1] if kept else token.timestamp
        return Page(records, FINISHED, False, token.total_count + kept, reached_micros)
    following = evolve(
        stream_token(token, stream, shard.shard_id, position),
        timestamp=now_micros if is_at_tail else page.timestamps[kept - 1],
        total_count=token.total_count + kept,
    )
    return Page(records, following.encode(), not is_at_tail)
