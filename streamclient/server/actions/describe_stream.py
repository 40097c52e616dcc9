"""DescribeStream."""

from __future__ import annotations

from typing import Any

from streamclient.server.errors import shard_missing
from streamclient.server.state import ServerState
from streamclient.server.streams import Shard
from streamclient.server.validation.describe_stream import DescribeStream
from streamclient.wire import schema
from streamclient.wire.schema import StreamStatus


def act(state: ServerState, request: DescribeStream) -> Any:
    """One page of the stream's shards, in order of creation: a shard never comes before its parents."""
    stream = state.stream(request.stream_id)
    definition = stream.definition
    now = state.clock.now_micros()
    if request.start_shard_id is not None and not stream.had(request.start_shard_id):
        raise shard_missing()
    page = stream.page(request.start_shard_id, request.shard_limit + 1, now)
    is_enabling = now < definition.created_micros + state.stream_enabling_millis * 1000
    response = schema.DescribeStreamResponse(
        stream_id=definition.stream_id,
        expiration_time=definition.expiration_hours,
        table_name=definition.table_name,
        creation_time=definition.created_micros,
        stream_status=StreamStatus.ENABLING if is_enabling else StreamStatus.ACTIVE,
        shards=[_message(shard) for shard in page[: request.shard_limit]],
    )
    if len(page) > request.shard_limit:
        response.next_shard_id = page[-1].shard_id
    return response


def _message(shard: Shard) -> Any:
    message = schema.StreamShard(shard_id=shard.shard_id)
    if shard.definition.parent_id is not None:
        message.parent_id = shard.definition.parent_id
    if shard.definition.parent_sibling_id is not None:
        message.parent_sibling_id = shard.definition.parent_sibling_id
    return message
