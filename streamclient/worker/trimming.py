"""Finding out what the stream's retention took."""

from __future__ import annotations

from streamclient.records import SequenceInfo, place_of
from streamclient.stream.api import StreamApi


def first_record_left(stream_api: StreamApi, stream_id: str, shard_id: str) -> SequenceInfo | None:
    """Place and time of the oldest record that a shard still has; ``None`` if it has none.

    Blocks, and raises what ``StreamApi`` raises.
    """
    oldest = stream_api.get_shard_iterator(stream_id, shard_id)
    page = stream_api.get_stream_record(oldest, 1)
    return place_of(page.records, 0) if page.records else None
