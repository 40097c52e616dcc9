"""The source over a tunnel: channels in place of shards, tokens in place of iterators, full data before the changes.

A tunnel is read without a session, as the connector of EMR reads it: by tokens, which Spark's checkpoint holds. What
the tunnel itself remembers follows behind: it is told how far a channel is once Spark will not repeat what lies before,
so that channels open behind those that are read to their ends, and the tunnel's consume point moves. It is asked only
where a channel begins that the query does not know.

The changes of a channel are the same each time they are read. Full data is read from the living table: a range of it
that is read again has the same keys but for rows that came or went, and each row as it is by then; so say the changes.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

from attrs import define, evolve, field, frozen

from streamclient.base import logs
from streamclient.errors import (
    ConfigurationError,
    DependencyException,
    ErrorKind,
    StreamClientException,
    TrimmedDataException,
)
from streamclient.model import Shard
from streamclient.records import SequenceInfo, StreamRecord
from streamclient.spark.source.offsets import ShardSlice, StreamOffset, not_as_planned
from streamclient.spark.source.partition_reading import MOST_CONNECTIONS, opened
from streamclient.spark.source.planner import MOST_SKEW_MICROS, StreamPlanner
from streamclient.spark.source.source_options import SourceOptions
from streamclient.tablestore.instance import Connection
from streamclient.tablestore.read_retry import ReadRetry, Repeater
from streamclient.tablestore.stream_api import LONGEST_EXPIRATION_HOURS, StreamDescription, StreamStatus, StreamSummary
from streamclient.tunnel.tunnel_client import TunnelClient
from streamclient.tunnel.tunnel_errors import SequenceNumberNotMatchError, TunnelExpiredError
from streamclient.tunnel.tunnel_model import ChannelStatus, TunnelStage
from streamclient.tunnel.tunnel_order import ChannelOrder, key_of_token
from streamclient.wire.page_parts import FINISHED, PageSummary, TunnelPage
from streamclient.wire.tunnel import decode_token

_log = logs.logger(__name__)

CLIENT_ID = "spark-client"
"""In calls for data, which need no session. That of the connector of EMR."""

OPENING_SECONDS = 30.0
"""How long a query that ends with what is there waits for channels that open behind those it has read. The service
needs seconds for it, and longer only while it is in trouble."""

OPENING_PAUSE_SECONDS = 0.5

IDLE_MOVE_SECONDS = 600.0
"""Between two batches that hold nothing but later tokens of channels without records. Each empty read gives another
token; a query that took each over would run empty batches without an end, and one that took none would begin again with
an old one after months."""

ALL_OF_A_PAGE = 2**31
"""Records to ask for: a page of a tunnel has as many as the service says."""

_READABLE = frozenset({ChannelStatus.OPEN, ChannelStatus.CLOSE})
"""Nobody has let them wait, stopped them, or finished them. CLOSE only says that no client holds one."""


@lru_cache(maxsize=MOST_CONNECTIONS)
def _client_of(connection: Connection) -> TunnelClient:
    return TunnelClient(opened(connection))


@frozen
class TunnelService:
    """Where planner and executors read; it goes over to them by pickle, and opens nothing before it is used."""

    connection: Connection
    table: str
    tunnel_id: str

    @property
    def client(self) -> TunnelClient:
        """One for each instance in a process."""
        return _client_of(self.connection)

    def summary(self, shard_id: str, iterator: str, limit: int, *, order: ChannelOrder | None = None) -> PageSummary:
        """For the planner: how many records a page has, whatever the limit, and the place of the last one.

        Raises:
            TrimmedDataException: the log that the tunnel needs is past retention.
        """
        page = self.page(shard_id, iterator, order)
        last = page.records.sequence_info(-1) if page.record_count else None
        return PageSummary(page.record_count, last, None if page.is_finished else page.next_token, page.may_more_record)

    def page(self, channel_id: str, token: str, order: ChannelOrder | None = None) -> TunnelPage:
        """For executors: a page as it was decoded, of which no record is made.

        Raises:
            TrimmedDataException: the log that the tunnel needs is past retention.
        """
        try:
            return self.client.read_records(self.tunnel_id, CLIENT_ID, channel_id, token, order=order)
        except TunnelExpiredError as error:
            raise TrimmedDataException(str(error)) from error


def tunnel_loss(what: str) -> str:
    """What a query says whose tunnel has lost records: it cannot go on with a hole, as the one of a stream can."""
    return (
        f"{what}. A tunnel that has lost records cannot be read on: make a new tunnel, and begin with a new "
        "checkpoint; one of full data and changes delivers the rows as they are now"
    )


@contextmanager
def _loss_is_told(tunnel_id: str) -> Iterator[None]:
    try:
        yield
    except TunnelExpiredError as error:
        raise StreamClientException(
            tunnel_loss(f"records of tunnel {tunnel_id} are past retention: {error}")
        ) from error


@define(eq=False)
class TunnelChannels:
    """The channels of a tunnel as the planner asks for shards. None has parents here: the service opens none early."""

    service: TunnelService
    is_opening: bool = field(init=False, default=True)
    """Whether channels wait to be opened, as of the last description."""
    listed: frozenset[str] = field(init=False, default=frozenset())
    """Those that can be read, as of the last description."""
    _name: str = field(init=False, default="")
    _numbers: dict[str, int] = field(init=False, factory=dict)
    """Of the checkpoints that are stored, as far as they are known."""

    def list_stream(self, table_name: str | None = None) -> Sequence[StreamSummary]:
        """The tunnel.

        Raises:
            ConfigurationError: the table has no such tunnel.
            StreamClientException: the tunnel has expired.
        """
        service = self.service
        with _loss_is_told(service.tunnel_id):
            tunnels = service.client.list_tunnel(service.table)
        found = next((one for one in tunnels if one.tunnel_id == service.tunnel_id), None)
        if found is None:
            known = ", ".join(f"{one.tunnel_id} ({one.tunnel_name})" for one in tunnels) or "none"
            raise ConfigurationError(
                f"table {service.table!r} has no tunnel {service.tunnel_id!r}; its tunnels are: {known}"
            )
        self._name = found.tunnel_name
        return [StreamSummary(found.tunnel_id, found.table_name, found.create_time_micros)]

    def describe_stream(self, stream_id: str) -> StreamDescription:
        """Its channels that can be read.

        Raises:
            StreamClientException: the tunnel has expired.
        """
        service = self.service
        with _loss_is_told(service.tunnel_id):
            found = service.client.describe_tunnel(service.table, self._name)
        if found.info.is_expired:
            raise StreamClientException(
                tunnel_loss(f"tunnel {service.tunnel_id} has expired: its log is past retention")
            )
        self.listed = frozenset(one.channel_id for one in found.channels if one.status in _READABLE)
        waits = any(one.status is ChannelStatus.WAIT for one in found.channels)
        self.is_opening = waits or found.info.stage is not TunnelStage.PROCESS_STREAM
        return StreamDescription(
            stream_id,
            service.table,
            LONGEST_EXPIRATION_HOURS,
            found.info.create_time_micros,
            StreamStatus.ACTIVE,
            tuple(Shard(channel_id) for channel_id in sorted(self.listed)),
        )

    def get_shard_iterator(self, stream_id: str, shard_id: str, timestamp_micros: int | None = None) -> str:
        """The token that the tunnel has for a channel, which knows its own start.

        Raises:
            StreamClientException: the tunnel has expired.
        """
        service = self.service
        with _loss_is_told(service.tunnel_id):
            stored = service.client.get_checkpoint(service.tunnel_id, CLIENT_ID, shard_id)
        self._numbers[shard_id] = stored.sequence_number
        return stored.token

    def checkpoint(self, channel_id: str, token: str) -> None:
        """Tell the tunnel how far a channel is.

        Raises:
            StreamClientException: another consumer tells it, too, or the tunnel has expired.
            DependencyException: the service does not answer, or refuses.
        """
        service = self.service
        if channel_id not in self._numbers and self.get_shard_iterator("", channel_id) == token:
            return
        number = self._numbers.pop(channel_id) + 1  # forgotten, in case that it is not known how the call ends
        try:
            with _loss_is_told(service.tunnel_id):
                service.client.checkpoint(service.tunnel_id, CLIENT_ID, channel_id, token, number)
        except SequenceNumberNotMatchError as error:
            raise StreamClientException(
                f"channel {channel_id} of tunnel {service.tunnel_id} has another consumer, which stored a checkpoint: "
                f"a tunnel has one reader, so give the query a tunnel of its own ({error})"
            ) from error
        self._numbers[channel_id] = number


@define(eq=False)
class TunnelPlanner(StreamPlanner):
    """Offsets for a streaming query over a tunnel. A batch has whole pages: no limit makes one smaller."""

    order: ChannelOrder = field(kw_only=True, factory=ChannelOrder)
    """What the pages are compared by; an offset says after which record a channel goes on."""
    _channels: TunnelChannels = field(init=False)
    _told: dict[str, str] = field(init=False, factory=dict)
    """Tokens that the tunnel has."""
    _until_micros: int | None = field(init=False, default=None)
    """Stamp behind which nothing is wanted, of a query that ends with what is there."""
    _done: frozenset[str] = field(init=False, default=frozenset())
    """Channels that were read up to there."""
    _opening_since: float = field(init=False)
    """Since when channels may open: a channel before them has ended, or the tunnel is new."""
    _moved_at: float = field(init=False)

    @classmethod
    def of(cls, options: SourceOptions, service: TunnelService, **clocks: Any) -> TunnelPlanner:
        """The planner of a query; connects to nobody."""
        order = ChannelOrder()
        summary = partial(service.summary, order=order)
        return cls(options, TunnelChannels(service), summary, page_records=ALL_OF_A_PAGE, order=order, **clocks)

    def __attrs_post_init__(self) -> None:
        assert isinstance(self.streams, TunnelChannels)
        self._channels = self.streams
        self._opening_since = self._moved_at = self.monotonic()

    # --- what Spark asks ----------------------------------------------------------------------------------------------

    def latest(self, start: StreamOffset, most: int | None, per_shard: int | None) -> StreamOffset:
        """As of a stream; tells the tunnel about the start, which Spark has passed."""
        self.committed(start)
        if self._wants_chain:
            self._wants_chain, self._until_micros = False, self.now_micros() + MOST_SKEW_MICROS
            self._opening_since = self.monotonic()
        end = self._next(start, most, per_shard, self._done, self._until_micros)
        while self._until_micros is not None:
            self._done |= {shard for shard, seen in self._seen.items() if seen.caught_up_count is not None}
            if end != start or not self._may_open():
                break
            threading.Event().wait(OPENING_PAUSE_SECONDS)
            self._listed_at = float("-inf")
            end = self._next(start, most, per_shard, self._done, self._until_micros)
        self._latest = end
        return end

    def _has_ended(self, shard: str) -> bool:
        return True  # a token says so in words, which no page lacks that was cut

    def committed(self, end: StreamOffset) -> None:
        """Tell the tunnel how far each channel is.

        Raises:
            ConfigurationError: the offset is of another tunnel, or of a stream; the tunnel was told nothing.
            StreamClientException: another consumer tells it, too.
        """
        if end.is_beginning:
            return
        self._check_tunnel(end, self._listing())
        for channel, one in end.shards.items():
            token = one.at or FINISHED
            if self._told.get(channel) == token or channel not in self._channels.listed:
                continue
            try:
                self._channels.checkpoint(channel, token)
            except DependencyException as error:
                if not error.retriable:
                    raise
                _log.warning("channel %s: its checkpoint is told again with the next batch: %s", channel, error)
                continue
            self._told[channel] = token
            if token == FINISHED:
                self._listed_at, self._opening_since = float("-inf"), self.monotonic()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _page(self, end: StreamOffset, shard: str, size: int, taken: int) -> tuple[str | None, PageSummary | None]:
        one = end.shards[shard]
        if one.at is not None and one.last is not None:
            self.order.begin(shard, one.at, one.last)
        return super()._page(end, shard, size, taken)

    def _lost(self, what: str) -> None:
        raise StreamClientException(tunnel_loss(what))

    def _may_open(self) -> bool:
        return self._channels.is_opening and self.monotonic() - self._opening_since < OPENING_SECONDS

    def _next(
        self,
        start: StreamOffset,
        most: int | None,
        per_shard: int | None,
        done: frozenset[str],
        latest_micros: int | None,
    ) -> StreamOffset:
        end = super()._next(start, most, per_shard, done, latest_micros)
        is_idle = end.shards.keys() == start.shards.keys() and all(
            one.count == start.shards[shard].count and one.is_ended == start.shards[shard].is_ended
            for shard, one in end.shards.items()
        )
        if is_idle and not start.is_beginning and self.monotonic() - self._moved_at < IDLE_MOVE_SECONDS:
            return start
        self._moved_at = self.monotonic()
        return end

    def _checked(self, start: StreamOffset, described: StreamDescription) -> StreamOffset:
        self._check_tunnel(start, described)
        return super()._checked(start, described)

    def _check_tunnel(self, offset: StreamOffset, described: StreamDescription) -> None:
        # Another tunnel of the table may have channels of the same ids, whose changes nobody would read once it is told
        # that they were.
        if offset.stream_id != described.stream_id:
            raise ConfigurationError(
                f"the checkpoint is of {offset.stream_id}, and the option tunnelId says {described.stream_id}: name "
                "that one if it is a tunnel, leave the option out if it is a stream, or begin with a new checkpoint"
            )


# --- executors --------------------------------------------------------------------------------------------------------


@frozen
class PlannedPages:
    """Pages that hold the records of a range of a channel and no other."""

    service: TunnelService

    def __call__(self, part: ShardSlice) -> Iterator[TunnelPage]:
        """In order.

        Raises:
            StreamClientException: records of the range are gone, or are not those that were planned.
        """
        try:
            yield from self._changes(part) if decode_token(part.at).is_stream else self._rows(part)
        except TrimmedDataException as error:
            what = f"records of channel {part.shard_id} were trimmed after they were planned: {error}"
            raise StreamClientException(tunnel_loss(what)) from error

    def _changes(self, part: ShardSlice) -> Iterator[TunnelPage]:
        """As many records as were planned; more may have come to the last page since."""
        token, found = part.at, 0
        last: SequenceInfo | None = None
        while found < part.count and token != FINISHED:
            page = _first_of(self._read(part.shard_id, token), part.count - found)
            found, token = found + page.record_count, page.next_token
            if page.record_count:
                last = page.records.sequence_info(-1)
                yield page
        if last != part.last or found != part.count:
            raise not_as_planned(part, found, last)

    def _read(self, channel_id: str, token: str) -> TunnelPage:
        """The next page with records. What was planned is there: none is a late replica."""
        at = token

        def attempt() -> TunnelPage:
            nonlocal at
            page = self.service.page(channel_id, at)
            if page.record_count or page.is_finished:
                return page
            at = page.next_token
            raise DependencyException(
                f"channel {channel_id} has no record where one was planned", kind=ErrorKind.TRANSIENT
            )

        return Repeater(ReadRetry()).call("readrecords", attempt)

    def _rows(self, part: ShardSlice) -> Iterator[TunnelPage]:
        """Full data up to the key with which the range ended when it was planned."""
        end = None if part.until is None else key_of_token(part.until)
        token = part.at
        while token != FINISHED:
            page = self.service.page(part.shard_id, token)
            following = None if page.is_finished else key_of_token(page.next_token)
            is_last = end is not None and (following is None or following >= end)
            if is_last:
                page = _first_of(page, bisect_left(page.records, end, key=_key_of))  # type: ignore[type-var]
            if page.record_count:
                yield page
            if is_last:
                return
            token = page.next_token


def _first_of(page: TunnelPage, count: int) -> TunnelPage:
    return page if page.record_count <= count else evolve(page, records=page.records[:count])


def _key_of(record: StreamRecord) -> tuple[Any, ...]:
    """Comparable as the service orders keys: those of one table have values of the same types."""
    return tuple(value for _, value in record.primary_key)
