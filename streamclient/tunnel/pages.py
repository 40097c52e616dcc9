"""One channel as a stream: pages behind tokens, so that the lease workers' consumer reads it unchanged."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from streamclient.core.position import Position
from streamclient.errors import StreamClientException
from streamclient.records import StreamRecord
from streamclient.stream.api import RecordPage, StreamDescription, StreamSummary
from streamclient.tunnel.client import TunnelClient
from streamclient.wire.pages import FINISHED, TunnelPage


@frozen(kw_only=True)
class ChannelPages:
    """Reads one channel; its iterators are tokens. A ``StreamApi`` as far as a consumer needs one. Thread-safe."""

    client: TunnelClient
    tunnel_id: str
    client_id: str
    channel_id: str
    most_pages: int
    most_bytes: int

    def get_stream_record(self, shard_iterator: str, limit: int | None = None) -> RecordPage:
        """The pages at a token, joined as configured. The service chooses their sizes; ``limit`` has no effect."""
        records: Sequence[StreamRecord] = ()
        size = 0
        token = shard_iterator
        for _ in range(self.most_pages):
            page = self._read(token)
            of_page = page.records
            records = (*records, *of_page) if records else of_page
            size += page.body_bytes
            token = page.next_token
            if page.is_finished or page.may_more_record is False or not of_page or size >= self.most_bytes:
                break
        return RecordPage(records, position_of(token), page.may_more_record, size)

    def _read(self, token: str) -> TunnelPage:
        return self.client.read_records(self.tunnel_id, self.client_id, self.channel_id, token)

    def get_shard_iterator(self, stream_id: str, shard_id: str, timestamp_micros: int | None = None) -> str:
        """Where the channel is read next, as the service keeps it."""
        return self.client.get_checkpoint(self.tunnel_id, self.client_id, self.channel_id).token

    def list_stream(self, table_name: str | None = None) -> Sequence[StreamSummary]:
        """A channel has no streams."""
        raise StreamClientException("a tunnel's channel has no streams to list")

    def describe_stream(self, stream_id: str) -> StreamDescription:
        """A channel has no shards."""
        raise StreamClientException("a tunnel's channel has no shards to describe")


def position_of(token: str) -> Position:
    """A token as a position in the channel."""
    return Position.SHARD_END if token == FINISHED else Position(token)


def token_of(value: str) -> str:
    """The token for a checkpoint value."""
    return FINISHED if value == Position.SHARD_END.text else value
