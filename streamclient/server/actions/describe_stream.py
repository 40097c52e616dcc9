"""DescribeStream."""

from __future__ import annotations

from typing import Any

from streamclient.server.errors import shard_missing
from streamclient.server.state import ServerState
from streamclient.server.streams import Shard, Stream
from streamclient.server.validation.describe_stream import DescribeStream
from streamclient.wire import schema
from streamclient.wire.schema import StreamStatus


def act(state: ServerState, request: DescribeStream) -> Any:
    """One page of the stream's shards, in order of creation: a shard never comes before its parents."""
    stream = state.stream(request.stream_id)
    definition = stream.definition
    now = state.clock.now_micros()
    shards = _from(stream, request.start_shard_id, now)
    page, rest = shards[: request.shard_limit], shards[request.shard_limit :]
    is_enabling = now < definition.created_micros + state.stream_enabling_millis * 1000
    response = schema.DescribeStreamResponse(
        stream_id=definition.stream_id,
        expiration_time=definition.expiration_hours,
        table_name=definition.table_name,
        creation_time=definition.created_micros,
        stream_status=StreamStatus.ENABLING if is_enabling else StreamStatus.ACTIVE,
        shards=[_message(shard) for shard in page],
    )
    if rest:
        response.next_shard_id = rest[0].shard_id
    return response


def _from(stream: Stream, start_shard_id: str | None, now_micros: int) -> list[Shard]:
    """The listed shards from one on; it may have left the listing since the last page named it."""
    if start_shard_id is None:
        return stream.listed(now_micros)
    start = stream.shards.get(start_shard_id)
    if start is None:
        raise shard_missing()
    return [shard for shard in stream.listed(now_micros) if shard.definition.number >= start.definition.number]


def _message(shard: Shard) -> Any:
    message = schema.StreamShard(shard_id=shard.shard_id)
    if shard.definition.parent_id is not None:
        message.parent_id = shard.definition.parent_id
    if shard.definition.parent_sibling_id is not None:
        message.parent_sibling_id = shard.definition.parent_sibling_id
    return message
