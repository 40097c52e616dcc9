"""A tunnel's channel in the form of a shard, for the consumer of lease workers. Tokens serve as iterators."""

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
    """Reads one channel. The class has the methods of ``StreamApi`` that a consumer needs. Thread-safe."""

    client: TunnelClient
    tunnel_id: str
    client_id: str
    channel_id: str
    most_pages: int
    most_bytes: int
    answered: Callable[[StreamClientError | None], None]
    """Called after every read of a page, with the error of the read or ``None``."""

    def get_stream_record(self, shard_iterator: str, limit: int | None = None) -> RecordPage:
        """Return the pages from the token ``shard_iterator`` on, joined into one page as configured.

        The service chooses the sizes of pages, so ``limit`` has no effect. Each page must follow the page before it.
        The consumer judges whether the first page follows the records before it.
        """
        records: Sequence[StreamRecord] = ()
        size = 0
        token, order = shard_iterator, ChannelOrder()
        for _ in range(self.most_pages):
            try:
                page = self._read(token, order)
            except StreamClientError:
                if records:
                    break  # deliver the good pages now; the next call raises an error that lasts
                raise
            of_page = page.records
            records = (*records, *of_page) if records else of_page
            size += page.body_bytes
            token = page.next_token
            if page.is_finished or page.may_more_record is False or not of_page or size >= self.most_bytes:
                break
        return RecordPage(records, position_of(token), page.may_more_record, size)

    def _read(self, token: str, order: ChannelOrder) -> TunnelPage:
        """Read one page. Raise an error at once for a damaged page: the consumer reports the error and reads again."""
        names = (self.tunnel_id, self.client_id, self.channel_id)
        try:
            page = self.client.read_records(*names, token, order=order, raises_at_once=True)
        except StreamClientError as error:
            self.answered(error)
            raise
        self.answered(None)
        return page

    def get_shard_iterator(self, stream_id: str, shard_id: str, timestamp_micros: int | None = None) -> str:
        """Return the token of the channel's checkpoint, which the service stores."""
        return self.client.get_checkpoint(self.tunnel_id, self.client_id, self.channel_id).token

    def list_stream(self, table_name: str | None = None) -> Sequence[StreamSummary]:
        """Raise an error, because a channel has no list of streams."""
        raise StreamClientException("a tunnel's channel has no streams to list")

    def describe_stream(self, stream_id: str) -> StreamDescription:
        """Raise an error, because a channel has no shards."""
        raise StreamClientException("a tunnel's channel has no shards to describe")


def position_of(token: str) -> Position:
    """Return the position that ``token`` names; ``SHARD_END`` for the token of a consumed channel."""
    return Position.SHARD_END if token == FINISHED else Position(token)


def token_of(value: str) -> str:
    """Return the token for ``value``, the text of a checkpoint's position."""
    return FINISHED if value == Position.SHARD_END.text else value
