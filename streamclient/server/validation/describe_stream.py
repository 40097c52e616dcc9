"""Rules of DescribeStream."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from streamclient.server.errors import invalid
from streamclient.server.limits import Limits


@frozen
class DescribeStream:
    """A validated request."""

    stream_id: str
    start_shard_id: str | None
    shard_limit: int


def validate(request: Any, limits: Limits) -> DescribeStream:
    """The stream to describe, and which page of its shards."""
    if not request.stream_id:
        raise invalid("Invalid stream id: it is empty.")
    shard_limit = request.shard_limit if request.HasField("shard_limit") else limits.stream_page_shards
    if shard_limit <= 0:
        raise invalid("The shard limit must be greater than 0.")
    return DescribeStream(request.stream_id, request.inclusive_start_shard_id or None, shard_limit)
