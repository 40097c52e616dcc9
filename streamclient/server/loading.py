"""The restoration of the server's state from its storage, at the start of the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streamclient.errors import CodecError
from streamclient.server.admin_changes import PutTunnelPart, StoredState
from streamclient.server.keys import decode_key
from streamclient.server.server_errors import DataDirectoryError
from streamclient.server.server_state import CLOCK_AHEAD, CLOCK_LATEST, CLOCK_OFFSET, RECORD_COUNT, ServerState
from streamclient.server.stored_rows import decode_body
from streamclient.server.stored_streams import ShardLog, Stream, StreamDefinition
from streamclient.server.stored_tables import ServedTable, Table
from streamclient.server.tunnels.tunnel_channels import Client, Tunnel, TunnelChannel
from streamclient.server.tunnels.tunnel_journal import PartKind


def restore(state: ServerState, stored: StoredState) -> None:
    """Fill an empty state with the committed content of the storage.

    Raises:
        DataDirectoryError: parts of the storage are unreadable, or contradict each other; the text names them.
    """
    with _reading("the settings"):
        settings = {setting.name: int(setting.value) for setting in stored.settings}
        state.stored_offset_micros = settings.get(CLOCK_OFFSET, 0)
        latest, ahead = settings.get(CLOCK_LATEST, 0), settings.get(CLOCK_AHEAD, 0)
        came_back = state.clock.resume(state.stored_offset_micros, latest)
        state.ahead_micros = max(ahead, latest) if came_back else ahead
        state.last_generated = max(latest, ahead)
        state.record_count = state.stored_record_count = settings.get(RECORD_COUNT, 0)
    _restore_tables(state, stored)
    _restore_streams(state, stored)
    _restore_tunnels(state, stored)


@contextmanager
def _reading(what: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, CodecError) as error:
        raise DataDirectoryError(f"the data are damaged: {what} cannot be read: {error!r}") from error


def _restore_tables(state: ServerState, stored: StoredState) -> None:
    tables: dict[int, Table] = {}
    for change in stored.tables:
        with _reading(f"the definition of table number {change.table_number}"):
            definition = ServedTable.from_json(change.document)
            tables[definition.number] = Table(definition)
            state.last_creation_micros = max(state.last_creation_micros, definition.created_micros)
            state.last_number = max(state.last_number, definition.number)
    for row in stored.rows:
        table = tables.get(row.table_number)
        if table is None:
            raise DataDirectoryError(
                f"the data are damaged: row {row.key!r} belongs to table number {row.table_number}, which is missing"
            )
        try:
            table.rows.put(row.key, decode_body(row.body, row.written_millis))
        except (ValueError, LookupError, TypeError, CodecError) as error:
            key = decode_key(row.key)
            text = f"the data are damaged: row {key!r} of table '{table.definition.name}' cannot be read: {error}"
            raise DataDirectoryError(text) from error
    for table in tables.values():
        state.adopt_table(table)


def _restore_streams(state: ServerState, stored: StoredState) -> None:
    streams: dict[int, Stream] = {}
    shards: dict[int, ShardLog] = {}
    for change in stored.streams:
        with _reading(f"the definition of stream number {change.stream_number}"):
            stream = Stream(StreamDefinition.from_json(change.document))
        streams[change.stream_number] = stream
        state.adopt(stream)
        state.last_creation_micros = max(state.last_creation_micros, stream.definition.created_micros)
        state.last_number = max(state.last_number, change.stream_number)
    for shard_change in stored.shards:
        with _reading(f"the definition of shard number {shard_change.shard_number}"):
            shards[shard_change.shard_number] = ShardLog.from_json(shard_change.document)
        state.last_number = max(state.last_number, shard_change.shard_number)
    for record in stored.records:
        shard = shards.get(record.shard_number)
        if shard is None or shard.next_position != record.position:
            raise DataDirectoryError(_misplaced(record.shard_number, record.position, shard))
        shard.append(record.timestamp_micros, record.size_bytes, record.element)
    if len(stored.records) != state.record_count:
        found, expected = len(stored.records), state.record_count
        raise DataDirectoryError(
            f"the data are damaged: table 'records' holds {found} stream records, expected {expected}: the last "
            "records of a shard are missing"
        )
    for shard_change in stored.shards:
        with _reading(f"shard number {shard_change.shard_number}"):
            streams[shard_change.stream_number].add(shards[shard_change.shard_number])


def _misplaced(shard_number: int, position: int, shard: ShardLog | None) -> str:
    where = f"shard number {shard_number}" if shard is None else f"shard '{shard.shard_id}'"
    expected = "no record, as there is no such shard" if shard is None else f"position {shard.next_position}"
    return f"the data are damaged: the stream record at position {position} of {where}: expected {expected}"


def _restore_tunnels(state: ServerState, stored: StoredState) -> None:
    by_tunnel: dict[str, list[PutTunnelPart]] = {}
    for part in stored.tunnel_parts:
        by_tunnel.setdefault(part.tunnel_id, []).append(part)
    tunnels = []
    for tunnel_id, parts in by_tunnel.items():
        with _reading(f"tunnel '{tunnel_id}'"):
            tunnels.append(_tunnel(parts, state.clock.now_micros()))
    for tunnel in sorted(tunnels, key=lambda tunnel: tunnel.definition.created_micros):
        state.adopt_tunnel(tunnel)
        state.last_creation_micros = max(state.last_creation_micros, tunnel.definition.created_micros)


def _tunnel(parts: list[PutTunnelPart], now_micros: int) -> Tunnel:
    documents: dict[PartKind, list[str]] = {kind: [] for kind in PartKind}
    for part in parts:
        documents[PartKind(part.kind)].append(part.document)
    channels = [TunnelChannel.from_json(text) for text in documents[PartKind.CHANNEL]]
    sessions = [Client.from_json(text, now_micros) for text in documents[PartKind.SESSION]]
    return Tunnel.from_json(documents[PartKind.TUNNEL][0], channels, sessions)
