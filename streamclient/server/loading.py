"""Rebuild the server's state from what a storage kept."""

from __future__ import annotations

from streamclient.server.changes import StoredState
from streamclient.server.rows import decode_body
from streamclient.server.state import CLOCK_OFFSET, TUNNEL_PREFIX, ServerState
from streamclient.server.streams import Shard, StoredRecord, Stream, StreamDefinition
from streamclient.server.tables import Table, TableDefinition
from streamclient.server.tunnels.channels import Tunnel


def restore(state: ServerState, stored: StoredState) -> None:
    """Fill an empty state. Afterwards it equals the one whose changes were committed."""
    for setting in stored.settings:
        if setting.name == CLOCK_OFFSET:
            state.stored_offset_micros = int(setting.value)
            state.clock.ensure_offset(state.stored_offset_micros)
    _restore_tunnels(state, stored)
    _restore_tables(state, stored)
    _restore_streams(state, stored)


def _restore_tunnels(state: ServerState, stored: StoredState) -> None:
    for setting in stored.settings:
        if setting.name.startswith(TUNNEL_PREFIX):
            tunnel = Tunnel.from_json(setting.value, state.clock.now_micros())
            state.tunnels[tunnel.definition.tunnel_id] = tunnel
            state.last_creation_micros = max(state.last_creation_micros, tunnel.definition.created_micros)


def _restore_tables(state: ServerState, stored: StoredState) -> None:
    tables: dict[int, Table] = {}
    for change in stored.tables:
        definition = TableDefinition.from_json(change.document)
        tables[definition.number] = state.tables[definition.name] = Table(definition)
        state.last_creation_micros = max(state.last_creation_micros, definition.created_micros)
        state.last_number = max(state.last_number, definition.number)
    for row in stored.rows:
        tables[row.table_number].rows.put(row.key, decode_body(row.body, row.written_millis))


def _restore_streams(state: ServerState, stored: StoredState) -> None:
    streams: dict[int, Stream] = {}
    shards: dict[int, Shard] = {}
    for change in stored.streams:
        stream = Stream(StreamDefinition.from_json(change.document))
        streams[change.stream_number] = stream
        state.adopt(stream)
        state.last_creation_micros = max(state.last_creation_micros, stream.definition.created_micros)
        state.last_number = max(state.last_number, change.stream_number)
    for shard_change in stored.shards:
        shards[shard_change.shard_number] = Shard.from_json(shard_change.document)
        state.last_number = max(state.last_number, shard_change.shard_number)
    for record in stored.records:
        shards[record.shard_number].append(StoredRecord(record.timestamp_micros, record.size_bytes, record.element))
    for shard_change in stored.shards:
        streams[shard_change.stream_number].add(shards[shard_change.shard_number])
