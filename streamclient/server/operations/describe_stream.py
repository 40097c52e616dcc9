"""The operation DescribeStream, which lists the shards of a stream."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from streamclient.server import refusals
from streamclient.server.iterators import table_of_stream
from streamclient.server.operation import ServedOperation
from streamclient.server.server_limits import Limits
from streamclient.server.server_state import ServerState
from streamclient.server.stored_streams import ShardLog
from streamclient.wire import schema
from streamclient.wire.schema import StreamStatusNumber


@frozen
class DescribeStream:
    """A validated request of DescribeStream."""

    stream_id: str
    start_shard_id: str | None
    shard_limit: int


def _validate(request: Any, limits: Limits) -> DescribeStream:
    """Return the stream to describe, and which page of its shards to return."""
    if not request.stream_id:
        raise refusals.STREAM_ID()
    shard_limit = request.shard_limit if request.HasField("shard_limit") else limits.stream_page_shards
    if shard_limit <= 0:
        raise refusals.SHARD_LIMIT()
    shard_limit = min(shard_limit, limits.stream_page_shards_most)
    return DescribeStream(request.stream_id, request.inclusive_start_shard_id or None, shard_limit)


def _act(state: ServerState, request: DescribeStream) -> Any:
    """Return one page of the stream's shards, in order of creation: parents come before their children."""
    stream = state.stream(request.stream_id)
    definition = stream.definition
    now = state.clock.now_micros()
    if request.start_shard_id is not None and not stream.had(request.start_shard_id):
        raise refusals.SHARD_MISSING()
    page = stream.page(request.start_shard_id, request.shard_limit + 1)
    is_enabling = now < definition.created_micros + state.stream_enabling_millis * 1000
    response = schema.DescribeStreamResponse(
        stream_id=definition.stream_id,
        expiration_time=definition.expiration_hours,
        table_name=definition.table_name,
        creation_time=definition.created_micros,
        stream_status=StreamStatusNumber.ENABLING if is_enabling else StreamStatusNumber.ACTIVE,
        shards=[_message(shard) for shard in page[: request.shard_limit]],
    )
    if len(page) > request.shard_limit:
        response.next_shard_id = page[-1].shard_id
    return response


def _message(shard: ShardLog) -> Any:
    message = schema.StreamShard(shard_id=shard.shard_id)
    if shard.definition.parent_id is not None:
        message.parent_id = shard.definition.parent_id
    if shard.definition.parent_sibling_id is not None:
        message.parent_sibling_id = shard.definition.parent_sibling_id
    return message


OPERATION = ServedOperation(
    messages=schema.OPERATIONS["DescribeStream"],
    validate=_validate,
    act=_act,
    tables=lambda request: (table_of_stream(request.stream_id),),
)
