"""Rules of GetStreamRecord."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from streamclient.server.errors import invalid
from streamclient.server.iterators import ShardIterator, decode_iterator
from streamclient.server.limits import Limits


@frozen
class GetStreamRecord:
    """A validated request."""

    iterator_text: str
    iterator: ShardIterator
    limit: int


def validate(request: Any, limits: Limits) -> GetStreamRecord:
    """Where to read, and how much. The table name in the request, for table groups, is not needed."""
    limit = request.limit if request.HasField("limit") else limits.stream_page_records
    if limit <= 0:
        raise invalid("The limit must be greater than 0.")
    return GetStreamRecord(request.shard_iterator, decode_iterator(request.shard_iterator), limit)
