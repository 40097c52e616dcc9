"""The source over a tunnel: channels instead of shards, tokens instead of iterators, full data before the changes.

A tunnel is read without a session, as the connector of EMR reads it: by tokens, which Spark's checkpoint holds. The
tunnel's own checkpoints follow later: the planner stores the position of a channel in the tunnel once Spark will not
repeat the records before that position. So the tunnel opens the channels that follow channels read to their ends, and
its consume point moves. The query reads a checkpoint of the tunnel only for a channel that it does not know.

The changes of a channel are the same each time they are read. Full data is read from the living table. A range of full
data that is read again has the same keys, except for rows that were added or deleted, and each row has its present
values. The changes that follow make up for these differences.
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
from streamclient.tunnel.log_watch import LOOK_SECONDS, LogWatch, Suspicion, facts_of_description
from streamclient.tunnel.tunnel_client import TunnelClient
from streamclient.tunnel.tunnel_errors import SequenceNumberNotMatchError, TunnelExpiredError
from streamclient.tunnel.tunnel_model import ChannelStatus, TunnelDescription, TunnelStage
from streamclient.tunnel.tunnel_order import ChannelOrder, delivers_changes, key_of_token
from streamclient.wire.page_parts import FINISHED, PageSummary, TunnelPage
from streamclient.wire.tunnel import decode_token

_log = logs.logger(__name__)

CLIENT_ID = "spark-client"
"""The client id in calls for data, which need no session. The connector of EMR uses the same client id."""

OPENING_SECONDS = 30.0
"""The seconds that a query which ends at the present waits for channels to open after those that it has read. The
service needs seconds to open them, and longer only during an outage."""

OPENING_PAUSE_SECONDS = 0.5

IDLE_MOVE_SECONDS = 600.0
"""The seconds between two batches that hold only later tokens of channels without records. Each empty read gives
another token. A query that stored each token would run empty batches without end. A query that stored none would begin
again with an old token after months."""

ALL_OF_A_PAGE = 2**31
"""The number of records to request when all are wanted. The service alone decides how many records a page of a tunnel
has."""

_READABLE = frozenset({ChannelStatus.OPEN, ChannelStatus.CLOSE})
"""The states of channels that do not wait and are neither stopped nor finished. CLOSE means that no client holds the
channel."""


@lru_cache(maxsize=MOST_CONNECTIONS)
def _client_of(connection: Connection) -> TunnelClient:
    return TunnelClient(opened(connection))


@frozen
class TunnelService:
    """The service from which planner and executors read. It is pickled for them, and connects at its first use."""

    connection: Connection
    table: str
    tunnel_id: str

    @property
    def client(self) -> TunnelClient:
        """The process's client for the instance."""
        return _client_of(self.connection)

    def summary(self, shard_id: str, iterator: str, limit: int, *, order: ChannelOrder | None = None) -> PageSummary:
        """Read a page for the planner: its number of records, regardless of ``limit``, and the position of the last.

        Raises:
            TrimmedDataException: the log that the tunnel needs is past retention.
        """
        page = self.page(shard_id, iterator, order)
        first, last = (page.records.sequence_info(at) if page.record_count else None for at in (0, -1))
        following = None if page.is_finished else page.next_token
        return PageSummary(page.record_count, last, following, page.may_more_record, first)

    def page(self, channel_id: str, token: str, order: ChannelOrder | None = None) -> TunnelPage:
        """Read a page for executors, decoded without making records.

        Raises:
            TrimmedDataException: the log that the tunnel needs is past retention.
        """
        try:
            return self.client.read_records(self.tunnel_id, CLIENT_ID, channel_id, token, order=order)
        except TunnelExpiredError as error:
            raise TrimmedDataException(str(error)) from error


def tunnel_loss(loss: str) -> str:
    """Return the message of a query whose tunnel has lost records. Unlike a stream's query, it cannot skip the loss."""
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
    """The channels of a tunnel, as shards without parents: the service opens a channel only when it may be read."""

    service: TunnelService
    is_opening: bool = field(init=False, default=True)
    """Whether channels wait to be opened, according to the last description of the tunnel."""
    listed: frozenset[str] = field(init=False, default=frozenset())
    """The channels that can be read, according to the last description of the tunnel."""
    described: TunnelDescription | None = field(init=False, default=None)
    """The last description of the tunnel."""
    _name: str = field(init=False, default="")
    _numbers: dict[str, int] = field(init=False, factory=dict)
    """The known sequence numbers of the stored checkpoints, by channel."""

    def list_stream(self, table_name: str | None = None) -> Sequence[StreamSummary]:
        """Return the tunnel as the only stream.

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
        """Return the tunnel with its channels that can be read.

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
        """Return the token that the tunnel has for a channel. The tunnel decides the start, so the time is ignored.

        Raises:
            StreamClientException: the tunnel has expired.
        """
        service = self.service
        with _loss_is_told(service.tunnel_id):
            stored = service.client.get_checkpoint(service.tunnel_id, CLIENT_ID, shard_id)
        self._numbers[shard_id] = stored.sequence_number
        return stored.token

    def checkpoint(self, channel_id: str, token: str) -> None:
        """Store the position of a channel in the tunnel.

        Raises:
            StreamClientException: another consumer stores positions too, or the tunnel has expired.
            DependencyException: the service does not answer, or refuses.
        """
        service = self.service
        if channel_id not in self._numbers and self.get_shard_iterator("", channel_id) == token:
            return
        number = self._numbers.pop(channel_id) + 1  # forgotten, because the call may end without a known outcome
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
    """The check that pages are in order. An offset gives the record after which a channel continues."""
    _channels: TunnelChannels = field(init=False)
    _told: dict[str, str] = field(init=False, factory=dict)
    """The tokens that the tunnel has stored, by channel."""
    _until_micros: int | None = field(init=False, default=None)
    """The stamp up to which records are wanted, for a query that ends at the present."""
    _done: frozenset[str] = field(init=False, default=frozenset())
    """The channels that were read up to that stamp."""
    _opening_since: float = field(init=False)
    """The time since which channels may open, because a channel before them has ended or the tunnel is new."""
    _moved_at: float = field(init=False)
    _log_watch: LogWatch = field(init=False)
    _watched: set[str] = field(init=False, factory=set)
    """The channels of changes that were read, or begun, since the planner was made."""
    _looked_at: float = field(init=False, default=float("-inf"))
    """The time at which the retention was last asked for."""
    _suspected_losses: int = field(init=False, default=0)

    @classmethod
    def of(cls, options: SourceOptions, service: TunnelService, **clocks: Any) -> TunnelPlanner:
        """Make the planner of a query, without connecting."""
        order = ChannelOrder()
        summary = partial(service.summary, order=order)
        return cls(options, TunnelChannels(service), summary, page_records=ALL_OF_A_PAGE, order=order, **clocks)

    def __attrs_post_init__(self) -> None:
        assert isinstance(self.streams, TunnelChannels)
        self._channels = self.streams
        self._opening_since = self._moved_at = self.monotonic()
        # The clock of this machine stands for the service's: what differs is little beside a retention of hours.
        self._log_watch = LogWatch(self.now_micros, self._suspected)

    # --- what Spark asks ----------------------------------------------------------------------------------------------

    def latest(self, start: StreamOffset, most: int | None, per_shard: int | None) -> StreamOffset:
        """Return the end of the batch, as for a stream. First tell the tunnel that Spark has passed ``start``."""
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
        return True  # the token names the end, so a page that was cut cannot pretend it

    def committed(self, end: StreamOffset) -> None:
        """Store the position of each channel in the tunnel.

        Raises:
            ConfigurationError: the offset is of another tunnel, or of a stream; no position was stored.
            StreamClientException: another consumer stores positions too.
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
                _log.warning("channel %s: its checkpoint is stored again with the next batch: %s", channel, error)
                continue
            self._told[channel] = token
            if token == FINISHED:
                self._listed_at, self._opening_since = float("-inf"), self.monotonic()

    def lag(self) -> dict[str, Any] | None:
        """Return the lag as for a stream, with the number of suspected losses since the query was started."""
        lag = super().lag()
        return None if lag is None else {**lag, "suspectedLosses": self._suspected_losses}

    # --- records that the service may have skipped --------------------------------------------------------------------

    def _walk(
        self, end: StreamOffset, readable: list[str], most: int | None, per_shard: int | None, latest: int | None
    ) -> StreamOffset:
        self._watch_new(end, readable)
        return super()._walk(end, readable, most, per_shard, latest)

    def _watch_new(self, end: StreamOffset, readable: list[str]) -> None:
        """Watch the channels of changes that are about to be read for the first time, and judge their positions."""
        offsets = {channel: end.shards[channel] for channel in readable if channel not in self._watched}
        new = {channel: offset for channel, offset in offsets.items() if offset.at and delivers_changes(offset.at)}
        described = self._channels.described
        if not new or described is None:
            return
        self._watched.update(new)
        facts = self._log_watch.facts
        if self.monotonic() - self._looked_at >= LOOK_SECONDS:
            self._looked_at = self.monotonic()
            facts = facts_of_description(self._channels.service.client, described)
        # A query may have read further than the tunnel was told.
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
            # The channel was read at least up to the latest of these times.
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

    # --- inside -------------------------------------------------------------------------------------------------------

    def _page(self, end: StreamOffset, shard: str, size: int, taken: int) -> tuple[str | None, PageSummary | None]:
        offset = end.shards[shard]
        if offset.at is not None and offset.last is not None:
            self.order.begin(shard, offset.at, offset.last)
        return super()._page(end, shard, size, taken)

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
        # Another tunnel of the table may have channels of the same ids. If this query stored positions there, the
        # changes before them would never be read.
        if offset.stream_id != described.stream_id:
            raise ConfigurationError(
                f"the checkpoint is of {offset.stream_id}, and the option tunnelId says {described.stream_id}: name "
                "the former if it is a tunnel, leave the option out if it is a stream, or begin with a new checkpoint"
            )


# --- executors --------------------------------------------------------------------------------------------------------


@frozen
class PlannedPages:
    """Reads the pages that hold the records of a range of a channel and no others."""

    service: TunnelService

    def __call__(self, part: ShardSlice) -> Iterator[TunnelPage]:
        """Yield the pages of ``part``, in order.

        Raises:
            StreamClientException: records of the range are gone, or are not the planned ones.
        """
        try:
            yield from self._changes(part) if decode_token(part.at).is_stream else self._rows(part)
        except TrimmedDataException as error:
            loss = f"records of channel {part.shard_id} were trimmed after they were planned: {error}"
            raise StreamClientException(tunnel_loss(loss)) from error

    def _changes(self, part: ShardSlice) -> Iterator[TunnelPage]:
        """Yield as many records as were planned. The last page may have grown since."""
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
        """Read the next page with records. The planned records exist: only a replica that lags lacks them."""
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
        """Yield full data up to the key at which the range ended when it was planned."""
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
    """Return the key in the service's order: the keys of one table have values of the same types."""
    return tuple(value for _, value in record.primary_key)
