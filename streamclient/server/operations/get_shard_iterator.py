"""The operation GetShardIterator, which returns an iterator, the position from which to read a shard."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from streamclient.server import refusals
from streamclient.server.iterators import ShardIterator, encode_iterator, table_of_stream
from streamclient.server.operation import ServedOperation
from streamclient.server.server_limits import Limits
from streamclient.server.server_state import ServerState
from streamclient.wire import schema


@frozen
class GetShardIterator:
    """A validated request of GetShardIterator."""

    stream_id: str
    shard_id: str
    timestamp_micros: int | None
    """The requested start time, in microseconds; ``None`` to start at the oldest retained record."""


def _validate(request: Any, limits: Limits) -> GetShardIterator:
    """Return the shard and the requested start time.

    Refuse every request that has a ``token``. The server never sends a token for a further request, because its first
    answer always has the iterator.
    """
    if not request.stream_id:
        raise refusals.STREAM_ID()
    if not request.shard_id:
        raise refusals.SHARD_ID()
    if request.token:
        raise refusals.SHARD_TOKEN()
    timestamp = request.timestamp if request.HasField("timestamp") else None
    if timestamp is not None and timestamp < 0:
        raise refusals.ITERATOR_TIMESTAMP()
    return GetShardIterator(request.stream_id, request.shard_id, timestamp)


def _act(state: ServerState, request: GetShardIterator) -> Any:
    """Return an iterator at the oldest retained record, or at the first record at or after the requested time.

    If the time is after the newest record, the iterator is at the position of the next record to be written.
    """
    stream = state.stream(request.stream_id)
    shard = stream.shards.get(request.shard_id)
    if shard is None:
        raise refusals.TRIMMED() if stream.had(request.shard_id) else refusals.SHARD_MISSING()
    if not shard.is_listed(stream.cutoff_micros(state.clock.now_micros())):
        raise refusals.TRIMMED()
    position = shard.first_position
    if request.timestamp_micros is not None:
        position = shard.position_at(request.timestamp_micros)
    iterator = ShardIterator(stream.stream_id, shard.shard_id, stream.definition.generation, position)
    return schema.GetShardIteratorResponse(shard_iterator=encode_iterator(iterator))


OPERATION = ServedOperation(
    messages=schema.OPERATIONS["GetShardIterator"],
    validate=_validate,
    act=_act,
    tables=lambda request: (table_of_stream(request.stream_id),),
)
