"""The data source over a tunnel: channels instead of shards, tokens instead of iterators, and full data first.

The query reads the tunnel without connecting to it: it sends no heartbeats, and the service assigns no channels to it.
The tokens of the query's positions are in Spark's checkpoint, like those of the EMR connector. The planner stores a
position as a checkpoint in the tunnel later, when Spark will not repeat the records before it. The tunnel needs these
checkpoints to open further channels after finished ones, and to move its consume point. The query reads a checkpoint
from the tunnel only for a channel that is not in the query's offset yet.

A repeated read of changes returns the same changes. A repeated read of full data returns the rows that the table has at
that time. Some rows may have been added, changed or deleted. The changes that follow the full data correct this.
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
from streamclient.spark.source.offsets import ShardOffset, ShardSlice, StreamOffset, not_as_planned
from streamclient.spark.source.partition_reading import MOST_CONNECTIONS, opened
from streamclient.spark.source.planner import MOST_SKEW_MICROS, StreamPlanner
from streamclient.spark.source.prefetch import MOST_EMPTY_PAGES
from streamclient.spark.source.source_options import SourceOptions
from streamclient.tablestore.instance import Connection
from streamclient.tablestore.read_retry import ReadRetry, Repeater
from streamclient.tablestore.stream_api import LONGEST_EXPIRATION_HOURS, StreamDescription, StreamStatus, StreamSummary
from streamclient.tunnel.log_watch import LOOK_SECONDS, LogWatch, Suspicion, facts_of_description
from streamclient.tunnel.tunnel_client import TunnelClient
from streamclient.tunnel.tunnel_errors import SequenceNumberNotMatchError, TunnelExpiredError
from streamclient.tunnel.tunnel_model import ChannelStatus, TunnelDescription, TunnelStage
from streamclient.tunnel.tunnel_order import ChannelOrder, delivers_changes, key_of_token
from streamclient.wire.page_parts import FINISHED, PageSummary, TunnelPage
from streamclient.wire.tunnel import decode_token

_log = logs.logger(__name__)

CLIENT_ID = "spark-client"
"""The client id in all calls of a query to the Tunnel Service. The EMR connector uses the same id."""

OPENING_SECONDS = 30.0
"""The longest time, in seconds, for which a query that ends at the present waits for the service to open further
channels. The service opens them within seconds, except during an outage."""

OPENING_PAUSE_SECONDS = 0.5

IDLE_MOVE_SECONDS = 600.0
"""The seconds between two empty batches, which only store later tokens of channels without records. Each empty read
gives another token. If the query stored each token, it would run empty batches without end. If it stored no token, it
would continue from a very old token when records come."""

ALL_OF_A_PAGE = 2**31
"""The number of records that the planner requests from a tunnel. The service ignores this number, and chooses the
number of records in each page."""

_READABLE = frozenset({ChannelStatus.OPEN, ChannelStatus.CLOSE})
"""The states in which a channel can be read. ``CLOSE`` only means that no client holds the channel."""


@lru_cache(maxsize=MOST_CONNECTIONS)
def _client_of(connection: Connection) -> TunnelClient:
    return TunnelClient(opened(connection))


@frozen
class TunnelService:
    """The reads of a tunnel, for planner and executors. Spark pickles this object, which connects at its first call."""

    connection: Connection
    table: str
    tunnel_id: str

    @property
    def client(self) -> TunnelClient:
        """The tunnel client for the instance. All queries in this process share it."""
        return _client_of(self.connection)

    def summary(self, shard_id: str, iterator: str, limit: int, *, order: ChannelOrder | None = None) -> PageSummary:
        """Read a page for the planner and return its summary. Ignore ``limit``: a tunnel's page is always whole.

        Raises:
            TrimmedDataException: the log that the tunnel needs is past retention.
        """
        page = self.page(shard_id, iterator, order)
        first, last = (page.records.sequence_info(at) if page.record_count else None for at in (0, -1))
        following = None if page.is_finished else page.next_token
        return PageSummary(page.record_count, last, following, page.may_more_record, first)

    def page(self, channel_id: str, token: str, order: ChannelOrder | None = None) -> TunnelPage:
        """Read the page at ``token``, as columns.

        Raises:
            TrimmedDataException: the log that the tunnel needs is past retention.
        """
        try:
            return self.client.read_records(self.tunnel_id, CLIENT_ID, channel_id, token, order=order)
        except TunnelExpiredError as error:
            raise TrimmedDataException(str(error)) from error


def tunnel_loss(loss: str) -> str:
    """Return the error message for a loss of a tunnel's records. A query cannot accept such a loss."""
    return (
        f"{loss}. A tunnel that has lost records cannot be read on: make a new tunnel, and begin with a new "
        "checkpoint; a tunnel of full data and changes delivers the rows as they are now"
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
    """The channels of a tunnel, presented as shards without parents.

    Parents are not needed, because the service opens a channel only when a client may read it.
    """

    service: TunnelService
    is_opening: bool = field(init=False, default=True)
    """Whether the last description of the tunnel shows that the service may open further channels."""
    listed: frozenset[str] = field(init=False, default=frozenset())
    """The ids of the channels that can be read, according to the last description of the tunnel."""
    described: TunnelDescription | None = field(init=False, default=None)
    """The last description of the tunnel by the service; ``None`` before the first one."""
    _name: str = field(init=False, default="")
    _numbers: dict[str, int] = field(init=False, factory=dict)
    """The sequence number of each channel's checkpoint in the tunnel. A channel whose number is unknown is absent."""

    def list_stream(self, table_name: str | None = None) -> Sequence[StreamSummary]:
        """Return the tunnel, presented as the only stream of the table.

        Raises:
            ConfigurationError: the table has no such tunnel.
            StreamClientException: the tunnel has expired.
        """
        service = self.service
        with _loss_is_told(service.tunnel_id):
            tunnels = service.client.list_tunnel(service.table)
        tunnel = next((tunnel for tunnel in tunnels if tunnel.tunnel_id == service.tunnel_id), None)
        if tunnel is None:
            known = ", ".join(f"{tunnel.tunnel_id} ({tunnel.tunnel_name})" for tunnel in tunnels) or "none"
            raise ConfigurationError(
                f"table {service.table!r} has no tunnel {service.tunnel_id!r}; its tunnels are: {known}"
            )
        self._name = tunnel.tunnel_name
        return [StreamSummary(tunnel.tunnel_id, tunnel.table_name, tunnel.create_time_micros)]

    def describe_stream(self, stream_id: str) -> StreamDescription:
        """Return the tunnel's description, presented as a stream with the readable channels as shards.

        Raises:
            StreamClientException: the tunnel has expired.
        """
        service = self.service
        with _loss_is_told(service.tunnel_id):
            tunnel = service.client.describe_tunnel(service.table, self._name)
        if tunnel.info.is_expired:
            raise StreamClientException(
                tunnel_loss(f"tunnel {service.tunnel_id} has expired: its log is past retention")
            )
        self.described = tunnel
        self.listed = frozenset(channel.channel_id for channel in tunnel.channels if channel.status in _READABLE)
        waits = any(channel.status is ChannelStatus.WAIT for channel in tunnel.channels)
        self.is_opening = waits or tunnel.info.stage is not TunnelStage.PROCESS_STREAM
        return StreamDescription(
            stream_id,
            service.table,
            LONGEST_EXPIRATION_HOURS,
            tunnel.info.create_time_micros,
            StreamStatus.ACTIVE,
            tuple(Shard(channel_id) for channel_id in sorted(self.listed)),
        )

    def get_shard_iterator(self, stream_id: str, shard_id: str, timestamp_micros: int | None = None) -> str:
        """Return the token of the channel's checkpoint in the tunnel.

        ``timestamp_micros`` is ignored, because the tunnel decides where a channel begins.

        Raises:
            StreamClientException: the tunnel has expired.
        """
        service = self.service
        with _loss_is_told(service.tunnel_id):
            stored = service.client.get_checkpoint(service.tunnel_id, CLIENT_ID, shard_id)
        self._numbers[shard_id] = stored.sequence_number
        return stored.token

    def checkpoint(self, channel_id: str, token: str) -> None:
        """Store ``token`` as the channel's checkpoint in the tunnel.

        Raises:
            StreamClientException: another consumer of the tunnel has stored a checkpoint, or the tunnel has expired.
            DependencyException: the service refuses the checkpoint, or does not answer.
        """
        service = self.service
        if channel_id not in self._numbers and self.get_shard_iterator("", channel_id) == token:
            return
        # Forget the old number, because the call below may get no response.
        number = self._numbers.pop(channel_id) + 1
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
    """Plans the offsets of one streaming query over a tunnel. A batch has whole pages, so it may exceed its limits."""

    order: ChannelOrder = field(kw_only=True, factory=ChannelOrder)
    """The check that the records of each channel are in order. It remembers the last record of the previous page."""
    _channels: TunnelChannels = field(init=False)
    _told: dict[str, str] = field(init=False, factory=dict)
    """The last token that this planner has stored in the tunnel for each channel."""
    _until_micros: int | None = field(init=False, default=None)
    """The timestamp, in microseconds, up to which the query reads; ``None`` for a query without an end."""
    _done: frozenset[str] = field(init=False, default=frozenset())
    """The channels that were read up to ``_until_micros``."""
    _opening_since: float = field(init=False)
    """The time of the last event after which the service may open channels: the query's start, or a channel's end."""
    _moved_at: float = field(init=False)
    _log_watch: LogWatch = field(init=False)
    _watched: set[str] = field(init=False, factory=set)
    """The channels whose changes this planner has begun to read, and has begun to watch for skipped records."""
    _looked_at: float = field(init=False, default=float("-inf"))
    """The time, by the monotonic clock, when the planner last read the retention of the tunnel's log."""
    _suspected_losses: int = field(init=False, default=0)

    @classmethod
    def of(cls, options: SourceOptions, service: TunnelService, **clocks: Any) -> TunnelPlanner:
        """Return the planner of a query, without a call of the service. ``clocks`` replace the planner's clocks."""
        order = ChannelOrder()
        summary = partial(service.summary, order=order)
        return cls(options, TunnelChannels(service), summary, page_records=ALL_OF_A_PAGE, order=order, **clocks)

    def __attrs_post_init__(self) -> None:
        assert isinstance(self.streams, TunnelChannels)
        self._channels = self.streams
        self._opening_since = self._moved_at = self.monotonic()
        # The local clock may replace the service's clock. Their difference is small compared to a retention of hours.
        self._log_watch = LogWatch(self.now_micros, self._suspected)

    # --- methods that Spark's reader calls ----------------------------------------------------------------------------

    def latest(self, start: StreamOffset, most: int | None, per_shard: int | None) -> StreamOffset:
        """Return the end of the batch that begins at ``start``, with the parameters of ``StreamPlanner.latest``.

        First, store the position ``start`` in the tunnel.
        """
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

    def _has_ended(self, shard: str, read_at: float) -> bool:
        return True  # a token says that its channel has ended; a page that was cut never does

    def committed(self, end: StreamOffset) -> None:
        """Store the positions of ``end`` as the channels' checkpoints in the tunnel.

        Raises:
            ConfigurationError: ``end`` belongs to another tunnel, or to a stream. Nothing was stored.
            StreamClientException: another consumer of the tunnel has stored a checkpoint.
        """
        if end.is_beginning:
            return
        self._check_tunnel(end, self._listing())
        for channel, offset in end.shards.items():
            token = offset.at or FINISHED
            if self._told.get(channel) == token or channel not in self._channels.listed:
                continue
            try:
                self._channels.checkpoint(channel, token)
            except DependencyException as error:
                if not error.retriable:
                    raise
                _log.warning("channel %s: its checkpoint is stored only with the next batch: %s", channel, error)
                continue
            self._told[channel] = token
            if token == FINISHED:
                self._listed_at, self._opening_since = float("-inf"), self.monotonic()

    def lag(self) -> dict[str, Any] | None:
        """Return the result of ``StreamPlanner.lag``, and the number of losses suspected since the query began."""
        lag = super().lag()
        return None if lag is None else {**lag, "suspectedLosses": self._suspected_losses}

    # --- the watch for records that the service may have skipped ------------------------------------------------------

    def _walk(
        self, end: StreamOffset, readable: list[str], most: int | None, per_shard: int | None, latest: int | None
    ) -> StreamOffset:
        self._watch_new(end, readable)
        return super()._walk(end, readable, most, per_shard, latest)

    def _watch_new(self, end: StreamOffset, readable: list[str]) -> None:
        """Begin to watch for skipped records in channels whose changes this planner reads for the first time.

        Also ask again for facts that the service did not answer.
        """
        offsets = {channel: end.shards[channel] for channel in readable if channel not in self._watched}
        new = {channel: offset for channel, offset in offsets.items() if offset.at and delivers_changes(offset.at)}
        described, facts = self._channels.described, self._log_watch.facts
        if described is None or not (new or facts.is_partial):
            return
        self._watched.update(new)
        if self.monotonic() - self._looked_at >= LOOK_SECONDS:
            self._looked_at = self.monotonic()
            facts = facts_of_description(self._channels.service.client, described)
        # The query may have read beyond the checkpoints that the tunnel stores.
        consumed = dict(facts.consumed_micros)
        for channel, offset in new.items():
            if offset.last is not None:
                consumed[channel] = max(consumed.get(channel, 0), offset.last.timestamp_micros)
        self._log_watch.learned(evolve(facts, consumed_micros=consumed))
        for channel in sorted(new):
            self._log_watch.opened(channel)

    def _advanced(self, end: StreamOffset, shard: str, page: PageSummary, begin: str | None) -> StreamOffset:
        before, seen = end.shards[shard], self._seen[shard]
        if page.first is not None:
            # The query has read the channel at least up to the latest of the three times below.
            told = self._log_watch.facts.consumed_micros.get(shard, 0)
            last = 0 if before.last is None else before.last.timestamp_micros
            found_empty = seen.read_up_micros if seen.caught_up_count == before.count else 0
            self._log_watch.page_came(shard, max(told, last, found_empty) or None, page.first.timestamp_micros)
        after = super()._advanced(end, shard, page, begin)
        if after.shards[shard].is_ended:
            self._log_watch.closed(shard)
        return after

    def _suspected(self, _cause: Suspicion, text: str) -> None:
        self._suspected_losses += 1
        _log.warning("tunnel %s: %s", self._channels.service.tunnel_id, text)

    # --- steps of a batch that differ for tunnels ---------------------------------------------------------------------

    def _page(self, end: StreamOffset, shard: str, size: int, taken: int) -> tuple[str | None, PageSummary | None]:
        offset = end.shards[shard]
        if offset.at is not None and offset.last is not None:
            self.order.begin(shard, offset.at, offset.last)
        return super()._page(end, shard, size, taken)

    def _is_read_up(self, before: str | None, after: ShardOffset, page: PageSummary, empty_pages: int) -> bool:
        # The token of a channel moves with time even if no record waits, so a token that has moved proves nothing.
        is_still = not page.record_count and (after.at == before or empty_pages >= MOST_EMPTY_PAGES)
        return is_still or page.may_more_record is False

    def _lost(self, loss: str) -> None:
        raise StreamClientException(tunnel_loss(loss))

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
            offset.count == start.shards[shard].count and offset.is_ended == start.shards[shard].is_ended
            for shard, offset in end.shards.items()
        )
        if is_idle and not start.is_beginning and self.monotonic() - self._moved_at < IDLE_MOVE_SECONDS:
            return start
        self._moved_at = self.monotonic()
        return end

    def _checked(self, start: StreamOffset, described: StreamDescription) -> StreamOffset:
        self._check_tunnel(start, described)
        return super()._checked(start, described)

    def _check_tunnel(self, offset: StreamOffset, described: StreamDescription) -> None:
        # Another tunnel of the table may have channels with the same ids. If this query stored its positions in the
        # other tunnel, readers would skip changes of that tunnel.
        if offset.stream_id != described.stream_id:
            raise ConfigurationError(
                f"the checkpoint is of {offset.stream_id}, and the option tunnelId says {described.stream_id}: name "
                "the former if it is a tunnel, leave the option out if it is a stream, or begin with a new checkpoint"
            )


# --- reads on executors -----------------------------------------------------------------------------------------------


@frozen
class PlannedPages:
    """Reads the pages of a range of a channel's records: exactly the records that the planner counted."""

    service: TunnelService

    def __call__(self, part: ShardSlice) -> Iterator[TunnelPage]:
        """Yield the pages of the range ``part``, in order.

        Raises:
            StreamClientException: records of the range are past retention, or differ from the planned records.
        """
        try:
            yield from self._changes(part) if decode_token(part.at).is_stream else self._rows(part)
        except TrimmedDataException as error:
            loss = f"records of channel {part.shard_id} were trimmed after they were planned: {error}"
            raise StreamClientException(tunnel_loss(loss)) from error

    def _changes(self, part: ShardSlice) -> Iterator[TunnelPage]:
        """Yield pages with the planned number of changes. Cut the last page, which may have grown since the plan."""
        token, count = part.at, 0
        last: SequenceInfo | None = None
        while count < part.count and token != FINISHED:
            page = _first_of(self._read(part.shard_id, token), part.count - count)
            count, token = count + page.record_count, page.next_token
            if page.record_count:
                last = page.records.sequence_info(-1)
                yield page
        if last != part.last or count != part.count:
            raise not_as_planned(part, count, last)

    def _read(self, channel_id: str, token: str) -> TunnelPage:
        """Read the next page that has records or ends the channel. Skip empty pages, which a lagging replica sends."""
        at = token

        def attempt() -> TunnelPage:
            nonlocal at
            page = self.service.page(channel_id, at)
            if page.record_count or page.is_finished:
                return page
            at = page.next_token
            raise DependencyException(
                f"channel {channel_id} has no record at a planned position", kind=ErrorKind.TRANSIENT
            )

        return Repeater(ReadRetry()).call("readrecords", attempt)

    def _rows(self, part: ShardSlice) -> Iterator[TunnelPage]:
        """Yield pages of full data up to the key at which the planned range ends, without the row of that key."""
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
    """Return the record's key as a tuple. Python sorts such tuples in the service's order of keys."""
    return tuple(value for _, value in record.primary_key)
