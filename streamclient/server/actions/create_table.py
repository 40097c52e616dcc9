"""CreateTable."""

from __future__ import annotations

from typing import Any

from streamclient.server.errors import quota_exhausted, table_exists
from streamclient.server.state import ServerState
from streamclient.server.tables import TableDefinition
from streamclient.server.validation.create_table import CreateTable
from streamclient.wire import schema


def act(state: ServerState, request: CreateTable) -> Any:
    """Create the table, ready at once, and its stream if one is asked for."""
    if request.table_name in state.tables:
        raise table_exists()
    if len(state.tables) >= state.limits.tables:
        raise quota_exhausted(f"Number of tables exceeds the quota:{state.limits.tables}.")
    created = state.creation_micros()
    definition = TableDefinition(
        name=request.table_name,
        number=state.next_number(),
        key=request.key,
        created_micros=created,
        defined_columns=request.defined_columns,
        options=request.options,
        read_capacity=request.read_capacity,
        write_capacity=request.write_capacity,
        last_increase_seconds=created // 1_000_000,
        encryption=request.encryption,
        boundaries=request.boundaries,
    )
    table = state.add_table(definition)
    if request.stream.enable:
        hours = request.stream.expiration_hours or state.limits.stream_expiration_default_hours
        state.switch_on(table, expiration_hours=hours, origin_columns=request.stream.origin_columns)
    return schema.CreateTableResponse()
