"""Reads one shard: a position, and the page behind it. No policy: no retries, no pauses, no checkpoints."""

from __future__ import annotations

from streamclient.core.position import Position
from streamclient.stream.api import RecordPage, StreamApi


class DataFetcher:
    """Where reading of one shard stands.

    The position moves only by ``advance`` and ``restart_at_oldest``, which the owner thread calls; a checkpoint never
    moves it. So a page that was not accepted is read again as it was.
    """

    def __init__(self, stream_api: StreamApi, stream_id: str, shard_id: str, position: Position, limit: int) -> None:
        self._stream_api = stream_api
        self._stream_id = stream_id
        self._shard_id = shard_id
        self._limit = limit
        self.position = position

    def read(self) -> RecordPage:
        """One page at the position, which stays where it is. Runs in a pool; raises what ``StreamApi`` raises."""
        return self._stream_api.get_stream_record(self._iterator(), self._limit)

    def advance(self, page: RecordPage) -> None:
        """Continue behind a page that was accepted."""
        self.position = page.next_position

    def restart_at_oldest(self) -> None:
        """Continue at the oldest record that is left, giving up what lies before it."""
        self.position = Position.TRIM_HORIZON

    def _iterator(self) -> str:
        position = self.position
        if position.is_iterator:
            return position.text
        return self._stream_api.get_shard_iterator(self._stream_id, self._shard_id)
