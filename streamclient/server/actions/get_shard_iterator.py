"""GetShardIterator."""

from __future__ import annotations

from typing import Any

from streamclient.server.errors import shard_missing, trimmed
from streamclient.server.iterators import ShardIterator, encode_iterator
from streamclient.server.state import ServerState
from streamclient.server.validation.get_shard_iterator import GetShardIterator
from streamclient.wire import schema


def act(state: ServerState, request: GetShardIterator) -> Any:
    """The place of the oldest record that is left, or of the first one at or after a time.

    A time after the newest record gives the place of the next record to come.
    """
    stream = state.stream(request.stream_id)
    shard = stream.shards.get(request.shard_id)
    if shard is None:
        raise trimmed() if stream.had(request.shard_id) else shard_missing()
    if not shard.is_listed(stream.cutoff_micros(state.clock.now_micros())):
        raise trimmed()
    position = shard.first_position
    if request.timestamp_micros is not None:
        position = shard.position_at(request.timestamp_micros)
    iterator = ShardIterator(stream.stream_id, shard.shard_id, stream.definition.generation, position)
    return schema.GetShardIteratorResponse(shard_iterator=encode_iterator(iterator))
