"""One channel as a stream, with pages at tokens, so that the consumer of lease workers reads it unchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import frozen

from streamclient.base.position import Position
from streamclient.errors import StreamClientError, StreamClientException
from streamclient.records import StreamRecord
from streamclient.tablestore.stream_api import RecordPage, StreamDescription, StreamSummary
from streamclient.tunnel.tunnel_client import TunnelClient
from streamclient.tunnel.tunnel_order import ChannelOrder
from streamclient.wire.page_parts import FINISHED, TunnelPage


@frozen(kw_only=True)
class ChannelPages:
    """Reads one channel. Its iterators are tokens. A ``StreamApi`` as far as a consumer needs one. Thread-safe."""

    client: TunnelClient
    tunnel_id: str
    client_id: str
    channel_id: str
    most_pages: int
    most_bytes: int
    answered: Callable[[StreamClientError | None], None]
    """Called after every read, with its error or ``None``."""

    def get_stream_record(self, shard_iterator: str, limit: int | None = None) -> RecordPage:
        """Return the pages at a token, joined as configured. The service chooses their sizes; ``limit`` has no effect.

        Each page has to follow the page before it; the consumer judges whether the first page does.
        """
        records: Sequence[StreamRecord] = ()
        size = 0
        token, order = shard_iterator, ChannelOrder()
        for _ in range(self.most_pages):
            try:
                page = self._read(token, order)
            except StreamClientError:
                if records:
                    break  # the pages read so far are good; the next call meets the error, if it still exists
                raise
            of_page = page.records
            records = (*records, *of_page) if records else of_page
            size += page.body_bytes
            token = page.next_token
            if page.is_finished or page.may_more_record is False or not of_page or size >= self.most_bytes:
                break
        return RecordPage(records, position_of(token), page.may_more_record, size)

    def _read(self, token: str, order: ChannelOrder) -> TunnelPage:
        """Read one page. A page that cannot be believed raises at once. The consumer names it, and reads again."""
        names = (self.tunnel_id, self.client_id, self.channel_id)
        try:
            page = self.client.read_records(*names, token, order=order, raises_at_once=True)
        except StreamClientError as error:
            self.answered(error)
            raise
        self.answered(None)
        return page

    def get_shard_iterator(self, stream_id: str, shard_id: str, timestamp_micros: int | None = None) -> str:
        """Return the position at which the channel is read next, as the service keeps it."""
        return self.client.get_checkpoint(self.tunnel_id, self.client_id, self.channel_id).token

    def list_stream(self, table_name: str | None = None) -> Sequence[StreamSummary]:
        """Refuse: a channel has no streams."""
        raise StreamClientException("a tunnel's channel has no streams to list")

    def describe_stream(self, stream_id: str) -> StreamDescription:
        """Refuse: a channel has no shards."""
        raise StreamClientException("a tunnel's channel has no shards to describe")


def position_of(token: str) -> Position:
    """Return a token as a position in the channel."""
    return Position.SHARD_END if token == FINISHED else Position(token)


def token_of(value: str) -> str:
    """Return the token for a checkpoint value."""
    return FINISHED if value == Position.SHARD_END.text else value
