"""BatchGetRow."""

from __future__ import annotations

from typing import Any

from streamclient.server.actions.row_reads import read_one
from streamclient.server.capacity import consumed
from streamclient.server.errors import ServiceError
from streamclient.server.state import ServerState
from streamclient.server.validation.batch_get_row import TableKeys
from streamclient.server.validation.frames import Key
from streamclient.wire import schema


def act(state: ServerState, request: tuple[TableKeys, ...]) -> Any:
    """Read row by row in the request's order; each row succeeds or fails on its own."""
    response = schema.BatchGetRowResponse()
    for keys in request:
        answer = response.tables.add(table_name=keys.table_name)
        for key in keys.keys:
            _read(state, keys, key, answer.rows.add())
    return response


def _read(state: ServerState, keys: TableKeys, key: Key, message: Any) -> None:
    try:
        table = state.table(keys.table_name)
        row, units = read_one(table, key, keys.selection, state.clock.now_micros())
    except ServiceError as error:
        message.is_ok = False
        message.error.code, message.error.message = error.code, error.message
        return
    message.is_ok = True
    message.consumed.CopyFrom(consumed(read=units))
    message.row = row
