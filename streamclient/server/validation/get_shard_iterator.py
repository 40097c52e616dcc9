"""Rules of GetShardIterator."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from streamclient.server.errors import invalid
from streamclient.server.limits import Limits


@frozen
class GetShardIterator:
    """A validated request."""

    stream_id: str
    shard_id: str
    timestamp_micros: int | None
    """``None`` for the oldest retained record."""


def validate(request: Any, limits: Limits) -> GetShardIterator:
    """Which place of which shard to find.

    A token cannot be ours, as this server always answers at once, and is refused like any other foreign value.
    """
    if not request.stream_id:
        raise invalid("Invalid stream id: it is empty.")
    if not request.shard_id:
        raise invalid("Invalid shard id: it is empty.")
    if request.token:
        raise invalid("Invalid token: it was not issued by this server.")
    timestamp = request.timestamp if request.HasField("timestamp") else None
    if timestamp is not None and timestamp < 0:
        raise invalid("The timestamp must be greater than or equal to 0.")
    return GetShardIterator(request.stream_id, request.shard_id, timestamp)
