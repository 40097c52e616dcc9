"""ReadRecords: the next page of a channel.

Full data is read live, in key order: a row that is written while its range is being read may be delivered as full data
and again in the stream. Incremental data comes in the order of the log.
"""

from __future__ import annotations

from attrs import evolve, frozen

from streamclient.records import KeyValue
from streamclient.server.errors import ServiceError, invalid
from streamclient.server.iterators import decode_iterator
from streamclient.server.keys import encode_key
from streamclient.server.rows import StoredRow, alive
from streamclient.server.state import ServerState
from streamclient.server.streams import Shard, StoredRecord, Stream
from streamclient.server.tables import Table
from streamclient.server.tunnels.channels import Channel, KeyRange, Tunnel
from streamclient.server.tunnels.positions import read_token, stream_token
from streamclient.wire import schema
from streamclient.wire.plainbuffer import HEADER, KeyBound, Row, decode_row, encode_row
from streamclient.wire.schema import ActionType
from streamclient.wire.tunnel import FINISHED, Token

_HIGHEST = encode_key((KeyBound.INF_MAX,))
_NANOS_PER_MICRO = 1_000


@frozen
class Page:
    """What one call returns."""

    body: bytes
    """The records, each as an element of the answer."""
    next_token: str
    may_more_record: bool

    def answer(self) -> bytes:
        """The serialized answer."""
        rest = schema.ReadRecordsResponse(next_token=self.next_token, may_more_record=self.may_more_record)
        return self.body + bytes(rest.SerializePartialToString())


def read(state: ServerState, tunnel: Tunnel, channel: Channel, text: str) -> Page:
    """The page at a token.

    Raises:
        ServiceError: the token is none of this channel, or its records are past retention.
    """
    if text == FINISHED:
        return Page(b"", FINISHED, False)
    token = read_token(text)
    if channel.key_range is not None:
        if token.is_stream:
            raise invalid(f"Invalid token: it is one of a stream channel, but {channel.channel_id} holds full data.")
        return _read_base(state, state.table(tunnel.definition.table_name), channel.key_range, token)
    stream = state.stream(tunnel.definition.stream_id)
    return _read_stream(state, tunnel, stream, stream.shards[channel.channel_id], token)


# --- full data -----------------------------------------------------------------------------------------------------


def _read_base(state: ServerState, table: Table, key_range: KeyRange, token: Token) -> Page:
    start = _start(table, token) if token.primary_key else key_range.begin
    rows = table.rows.ascending(start, _HIGHEST if key_range.end is None else key_range.end)
    expired_before = table.expired_before_millis(state.clock.now_micros())
    elements: list[bytes] = []
    size = 0
    for _, row in rows:
        if len(elements) >= state.limits.range_rows or size >= state.limits.range_bytes:
            following = evolve(token, primary_key=_key_frame(table, row), total_count=token.total_count + len(elements))
            return Page(b"".join(elements), following.encode(), True)
        live = alive(row, table.key_names, expired_before)
        if live is not None:
            elements.append(_element(HEADER + live.body(table.key_names)))
            size += live.size_bytes
    return Page(b"".join(elements), FINISHED, False)


def _element(record: bytes) -> bytes:
    page = schema.ReadRecordsResponse()
    page.records.add(action_type=int(ActionType.PUT_ROW), record=record)
    return bytes(page.SerializePartialToString())


def _start(table: Table, token: Token) -> bytes:
    key: list[KeyValue] = []
    for _, value in decode_row(token.primary_key).primary_key:
        if isinstance(value, KeyBound):
            raise invalid(f"Invalid token: {value.name} is no key of table '{table.definition.name}'.")
        key.append(value)
    return encode_key(key)


def _key_frame(table: Table, row: StoredRow) -> bytes:
    return encode_row(Row(tuple(zip(table.key_names, row.key, strict=True))))


# --- incremental data ----------------------------------------------------------------------------------------------


def _read_stream(state: ServerState, tunnel: Tunnel, stream: Stream, shard: Shard, token: Token) -> Page:
    place = decode_iterator(token.iterator) if token.is_stream else None
    if place is None or place.shard_id != shard.shard_id or place.position > shard.next_position:
        raise invalid(f"Invalid token: it names no place of channel {shard.shard_id}.")
    if place.position < shard.first_position or place.generation < stream.definition.generation:
        raise expired(tunnel)
    end_micros = tunnel.definition.end_nanos // _NANOS_PER_MICRO or None
    records = shard.page(place.position, state.limits.tunnel_page_records, state.limits.stream_page_bytes)
    kept = [record for record in records if end_micros is None or record.timestamp_micros <= end_micros]
    position = place.position + len(kept)
    now_micros = state.clock.now_micros()
    is_past_end = end_micros is not None and (len(kept) < len(records) or now_micros > end_micros)
    is_at_tail = position == shard.next_position
    if len(kept) < len(records) or (is_at_tail and (not shard.is_open or is_past_end)):
        return Page(_join(kept), FINISHED, False)
    following = evolve(
        stream_token(token, stream, shard.shard_id, position),
        timestamp=now_micros if is_at_tail else kept[-1].timestamp_micros,
        total_count=token.total_count + len(kept),
    )
    return Page(_join(kept), following.encode(), not is_at_tail)


def _join(records: list[StoredRecord]) -> bytes:
    # Encoded as elements of GetStreamRecord's answer, whose fields have the same numbers as those of ReadRecords.
    return b"".join([record.element for record in records])


def expired(tunnel: Tunnel) -> ServiceError:
    """400: the log that the tunnel still needs is past retention."""
    return ServiceError(
        400, "OTSTunnelExpired", f"The incremental log of tunnel '{tunnel.definition.tunnel_id}' is expired."
    )


def consumed_micros(text: str) -> int:
    """How far in the log a checkpoint is; 0 where it does not say."""
    if text == FINISHED:
        return 0
    try:
        return read_token(text).timestamp
    except ServiceError:
        return 0


def record_count(text: str) -> int | None:
    """How many records lie before a checkpoint, if it says so."""
    try:
        return None if text == FINISHED else read_token(text).total_count
    except ServiceError:
        return None
