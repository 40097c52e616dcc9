"""Views of tables, rows, changes and tunnels for an operator, as plain Python values. No view counts as a request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from itertools import islice

from attrs import frozen

from streamclient.records import ColumnValue, KeyValue, StreamRecord
from streamclient.server.capacity import consumed
from streamclient.server.expiry import HIGHEST_KEY
from streamclient.server.server_state import ServerState
from streamclient.server.shard_ancestry import stream_of
from streamclient.server.stored_rows import alive
from streamclient.server.stored_streams import ShardLog, Stream
from streamclient.server.tunnels.tunnel_channels import TYPE_NAMES, Tunnel
from streamclient.wire import schema
from streamclient.wire.record_decoding import default_codec


@frozen
class TableView:
    """A table with its key and its numbers of rows, shards and records, for an operator."""

    name: str
    key: tuple[tuple[str, str], ...]
    """The key columns in key order, each with its type: INTEGER, STRING or BINARY."""
    row_count: int
    """The number of stored rows. Expired rows count until they are deleted."""
    retention_hours: int | None
    """The retention of the stream's records in hours; ``None`` if the table has no stream."""
    open_shard_count: int
    record_count: int
    """The number of retained records of the stream; 0 if the table has no stream."""


@frozen
class RowView:
    """A row with the newest version of each column."""

    encoded_key: bytes
    key: tuple[tuple[str, KeyValue], ...]
    columns: Mapping[str, ColumnValue]


@frozen
class ChangeView:
    """A record of a stream, with its shard and its position in the shard."""

    shard_id: str
    position: int
    timestamp_micros: int
    record: StreamRecord


@frozen
class ChangesView:
    """Records of a table's stream, oldest first."""

    records: tuple[ChangeView, ...]
    positions: Mapping[str, int]
    """The position of the next record of each shard, by shard id, for the parameter ``after`` of the next call."""
    skipped: int
    """The number of records that the call left out, because they are older than the newest ``most`` records."""


@frozen
class FoundChanges:
    """Records of a table's stream that are not yet decoded."""

    elements: tuple[tuple[str, int, int, bytes], ...]
    """The records, oldest first, each as its shard id, its position, its time in microseconds, and its bytes."""
    positions: Mapping[str, int]
    skipped: int

    def decoded(self) -> ChangesView:
        """Decode the records; return them with ``positions`` and ``skipped``."""
        page = b"".join([entry[-1] for entry in self.elements])
        rest = schema.GetStreamRecordResponse(consumed=consumed(read=0), may_more_record=False)
        decoded = default_codec().decode_page(page + rest.SerializeToString())
        records = tuple(
            ChangeView(shard_id, position, timestamp, record)
            for (shard_id, position, timestamp, _), record in zip(self.elements, decoded.records, strict=True)
        )
        return ChangesView(records, self.positions, self.skipped)


@frozen
class ShardSpan:
    """A shard as a rectangle in a picture: its range of keys, and the time from its opening to its closing."""

    shard_id: str
    parent_ids: tuple[str, ...]
    begin: bytes
    """The encoded first key of the range; empty for the lowest shard. Encoded keys are ordered like the keys."""
    end: bytes | None
    """The encoded first key after the range; ``None`` for the highest shard."""
    opened_micros: int | None
    """The time when the shard opened; ``None`` if the server has forgotten the shard's parents."""
    closed_micros: int | None
    """The time when the shard closed; ``None`` for an open shard."""
    record_count: int
    """The number of retained records in the shard."""


@frozen
class ChannelView:
    """A channel of a tunnel, for an operator."""

    channel_id: str
    kind: str
    status: str
    client_id: str
    """The id of the session that holds the channel; empty if no session holds it."""
    record_count: int
    """The number of records that clients have consumed through the channel."""
    consumed_micros: int
    """The time in the stream that the channel's checkpoint has reached; 0 before the first checkpoint, and for full
    data."""


@frozen
class TunnelView:
    """A view of a tunnel, for an operator.

    The server normally updates a tunnel at the next request about the tunnel. So the view may still contain a session
    that has timed out, and may not yet contain a new channel.
    """

    tunnel_id: str
    name: str
    table: str
    kind: str
    stage: str
    client_ids: tuple[str, ...]
    record_count: int
    """The number of records that clients have consumed through all channels."""
    finished_channel_count: int
    channels: tuple[ChannelView, ...]
    """The channels that are not finished."""


def view_tables(state: ServerState) -> list[TableView]:
    """Return a view of each table, ordered by name."""
    found = []
    for name in sorted(state.tables):
        table = state.tables[name]
        stream = state.stream_of(table)
        if stream is not None:
            state.forget_expired(stream)
        found.append(
            TableView(
                name=name,
                key=tuple((column.name, column.type.name) for column in table.definition.key),
                row_count=len(table.rows),
                retention_hours=None if stream is None else stream.definition.expiration_hours,
                open_shard_count=0 if stream is None else len(stream.open_shards),
                record_count=0 if stream is None else sum(shard.record_count for shard in stream.shards.values()),
            )
        )
    return found


def view_rows(state: ServerState, table_name: str, after: bytes | None, most: int) -> list[RowView]:
    """Return at most ``most`` rows after the encoded key ``after``, in the order of their keys."""
    table = state.table(table_name)
    expired_before = table.expired_before_millis(state.clock.now_micros())
    found: list[RowView] = []
    # The smallest key after a key is that key followed by a zero byte.
    for encoded, stored in table.rows.ascending(b"" if after is None else after + b"\0", HIGHEST_KEY):
        row = alive(stored, table.key_names, expired_before)
        if row is None:
            continue
        key, columns = row.parts()
        newest = {name: versions[0][1] for name, versions in columns.items() if versions}
        found.append(RowView(encoded, tuple(zip(table.key_names, key, strict=True)), newest))
        if len(found) == most:
            break
    return found


def find_changes(state: ServerState, table_name: str, after: Mapping[str, int] | None, most: int) -> FoundChanges:
    """Return the newest records of a stream, at most ``most``, oldest first.

    ``after`` maps shard ids to positions. For these shards, return only the records from the position on. For all other
    shards, begin at the oldest record.

    Raises:
        ServiceError: the table does not exist, or has no stream.
    """
    known = after or {}
    fresh: dict[str, int] = {}
    shards = stream_of(state, table_name).shards
    for shard_id, shard in shards.items():
        count = shard.next_position - max(known.get(shard_id, 0), shard.first_position)
        if count > 0:
            fresh[shard_id] = count
    newest_first = merge(*(_backwards(shards[shard_id], count) for shard_id, count in fresh.items()), key=_age)
    elements = tuple(islice(newest_first, most))[::-1]
    positions = {shard_id: shard.next_position for shard_id, shard in shards.items()}
    return FoundChanges(elements, positions, sum(fresh.values()) - len(elements))


def _backwards(shard: ShardLog, count: int) -> Iterator[tuple[str, int, int, bytes]]:
    """Yield the last ``count`` records of a shard, newest first."""
    for position in range(shard.next_position - 1, shard.next_position - 1 - count, -1):
        run = shard.page(position, 1, 1)  # the first record is returned even if it is larger than one byte
        yield shard.shard_id, position, run.timestamps[0], run.elements[0]


def _age(entry: tuple[str, int, int, bytes]) -> int:
    return -entry[2]


def view_spans(state: ServerState, table_name: str) -> list[ShardSpan]:
    """Return a view of each shard that DescribeStream lists, parents before their children."""
    stream = stream_of(state, table_name)
    return [_span(stream, shard) for shard in stream.listed()]


def _span(stream: Stream, shard: ShardLog) -> ShardSpan:
    definition = shard.definition
    parents = tuple(parent for parent in (definition.parent_id, definition.parent_sibling_id) if parent is not None)
    return ShardSpan(
        shard_id=shard.shard_id,
        parent_ids=parents,
        begin=definition.begin,
        end=definition.end,
        opened_micros=_opened_micros(stream, parents),
        closed_micros=shard.closed_micros,
        record_count=shard.record_count,
    )


def _opened_micros(stream: Stream, parents: tuple[str, ...]) -> int | None:
    """Return the time when a shard with these parents opened: the time when the parents closed.

    A shard without parents opened with the stream. Return ``None`` if the server has forgotten the parents.
    """
    if not parents:
        return stream.definition.created_micros
    closed = [parent.closed_micros for parent_id in parents if (parent := stream.shards.get(parent_id)) is not None]
    return max((micros for micros in closed if micros is not None), default=None)


def ranges_of(spans: Iterable[ShardSpan]) -> dict[str, tuple[float, float]]:
    """Return the interval of each shard in a picture in which the key space reaches from 0 to 1.

    The result maps shard ids to the beginning and the end of the interval.

    Keys have no measurable distance. So shards without a known parent share the space evenly, and the children of a
    split share their parent's interval evenly. A split does not move other shards in the picture.
    """
    listed = list(spans)
    present = {span.shard_id for span in listed}
    places: dict[bytes | None, float] = {b"": 0.0, None: 1.0}
    first = [span for span in listed if present.isdisjoint(span.parent_ids)]
    begins = sorted({bound for span in first for bound in (span.begin, span.end) if bound})
    places |= {bound: number / (len(begins) + 1) for number, bound in enumerate(begins, 1)}
    ranges: dict[str, tuple[float, float]] = {}
    for span in listed:
        for bound in (span.begin, span.end):
            if bound not in places:
                parents = [ranges[parent] for parent in span.parent_ids if parent in ranges]
                places[bound] = (min(low for low, _ in parents) + max(high for _, high in parents)) / 2
        ranges[span.shard_id] = (places[span.begin], places[span.end])
    return ranges


def view_tunnels(state: ServerState) -> list[TunnelView]:
    """Return a view of each tunnel, ordered by table and name."""
    by_name = sorted(state.tunnels.values(), key=lambda tunnel: (tunnel.definition.table_name, tunnel.definition.name))
    return [_tunnel(tunnel) for tunnel in by_name]


def _tunnel(tunnel: Tunnel) -> TunnelView:
    definition = tunnel.definition
    return TunnelView(
        tunnel_id=definition.tunnel_id,
        name=definition.name,
        table=definition.table_name,
        kind=TYPE_NAMES[definition.type],
        stage=tunnel.stage.value,
        client_ids=tuple(tunnel.clients),
        record_count=tunnel.record_count,
        finished_channel_count=len(tunnel.past_elements),
        channels=tuple(
            ChannelView(
                channel_id=channel.channel_id,
                kind=channel.kind,
                status=channel.status.value,
                client_id=channel.client_id,
                record_count=channel.record_count,
                consumed_micros=channel.consumed_micros,
            )
            for channel in tunnel.live.values()
        ),
    )
