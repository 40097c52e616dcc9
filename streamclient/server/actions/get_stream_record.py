"""GetStreamRecord."""

from __future__ import annotations

from attrs import evolve

from streamclient.server.capacity import consumed, units
from streamclient.server.errors import invalid, trimmed
from streamclient.server.iterators import encode_iterator
from streamclient.server.state import ServerState
from streamclient.server.validation.get_stream_record import GetStreamRecord
from streamclient.wire import schema


def act(state: ServerState, request: GetStreamRecord) -> bytes:
    """Records from the iterator on, oldest first, and where to continue.

    - An open shard with nothing new answers with the iterator it was given: the Go SDK's loops end on that.
    - A closed shard that was read to its end answers without a next iterator.
    - Data behind the iterator that is past retention answers ``OTSTrimmedDataAccess``.
    """
    iterator = request.iterator
    stream = state.stream(iterator.stream_id)
    shard = stream.shards.get(iterator.shard_id)
    if shard is None and stream.had(iterator.shard_id):
        raise trimmed()
    if shard is None or iterator.generation > stream.definition.generation or iterator.position > shard.next_position:
        raise invalid("Invalid shard iterator: it names a place that the stream never had.")
    if iterator.generation < stream.definition.generation or iterator.position < shard.first_position:
        raise trimmed()
    page = shard.page(iterator.position, request.limit, state.limits.stream_page_bytes)
    size = sum(record.size_bytes for record in page)
    rest = schema.GetStreamRecordResponse(
        consumed=consumed(read=units(size) if page else 0), may_more_record=bool(page)
    )
    position = iterator.position + len(page)
    if not page and shard.is_open:
        rest.next_shard_iterator = request.iterator_text
    elif shard.is_open or position < shard.next_position:
        rest.next_shard_iterator = encode_iterator(evolve(iterator, position=position))
    # Each record was encoded once, as an element of this message, when it was written.
    return b"".join([record.element for record in page]) + bytes(rest.SerializeToString())
