"""The operation GetStreamRecord, which reads the records of a shard, page by page."""

from __future__ import annotations

from typing import Any

from attrs import evolve, frozen

from streamclient.server import refusals
from streamclient.server.capacity import Units, consumed, units
from streamclient.server.iterators import ShardIterator, decode_iterator, encode_iterator, table_of_iterator
from streamclient.server.operation import Counted, ServedOperation
from streamclient.server.server_limits import Limits
from streamclient.server.server_state import ServerState
from streamclient.wire import schema


@frozen
class GetStreamRecord:
    """A validated request of GetStreamRecord."""

    iterator_text: str
    iterator: ShardIterator
    limit: int


def _validate(request: Any, limits: Limits) -> GetStreamRecord:
    """Return the decoded iterator and the limit.

    Ignore the request's table name. Only table groups of the service need it, and this server has no table groups.
    """
    limit = request.limit if request.HasField("limit") else limits.stream_page_records
    if limit <= 0:
        raise refusals.LIMIT()
    limit = min(limit, limits.stream_page_records_most)
    return GetStreamRecord(request.shard_iterator, decode_iterator(request.shard_iterator), limit)


def _act(state: ServerState, request: GetStreamRecord) -> Counted:
    """Return records from the iterator on, oldest first, and the next iterator.

    - For an open shard without new records, the next iterator is the given iterator. The Go SDK then ends its loop.
    - For a closed shard that was read to its end, the answer has no next iterator.
    - If the record at the iterator is past retention, the answer is ``OTSTrimmedDataAccess``.
    """
    iterator = request.iterator
    stream = state.stream(iterator.stream_id)
    shard = stream.shards.get(iterator.shard_id)
    if shard is None and stream.had(iterator.shard_id):
        raise refusals.TRIMMED()
    if shard is None or iterator.generation > stream.definition.generation or iterator.position > shard.next_position:
        raise refusals.ITERATOR(reason="it names a shard or a position that the stream never had")
    if iterator.generation < stream.definition.generation or iterator.position < shard.first_position:
        raise refusals.TRIMMED()
    page = shard.page(iterator.position, request.limit, state.limits.stream_page_bytes)
    found = len(page.elements)
    cost = Units(read=units(page.size_bytes) if found else 0, write=0)
    rest = schema.GetStreamRecordResponse(consumed=consumed(read=cost.read), may_more_record=bool(found))
    position = iterator.position + found
    if not found and shard.is_open:
        rest.next_shard_iterator = request.iterator_text
    elif shard.is_open or position < shard.next_position:
        rest.next_shard_iterator = encode_iterator(evolve(iterator, position=position))
    # The server encoded each record as an element of this message when the record was written.
    return Counted(b"".join([*page.elements, rest.SerializeToString()]), found, cost)


OPERATION = ServedOperation(
    messages=schema.OPERATIONS["GetStreamRecord"],
    validate=_validate,
    act=_act,
    tables=lambda request: (table_of_iterator(request.shard_iterator),),
)
