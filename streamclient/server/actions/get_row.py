"""GetRow."""

from __future__ import annotations

from typing import Any

from streamclient.server.actions.row_reads import read_one
from streamclient.server.capacity import consumed
from streamclient.server.state import ServerState
from streamclient.server.validation.get_row import GetRow
from streamclient.wire import schema


def act(state: ServerState, request: GetRow) -> Any:
    """Read one row; the answer's row is empty if there is none."""
    table = state.table(request.table_name)
    row, units = read_one(table, request.key, request.selection, state.clock.now_micros())
    return schema.GetRowResponse(consumed=consumed(read=units), row=row)
