"""What the three operations that write one row have in common."""

from __future__ import annotations

from typing import Any

from streamclient.server.capacity import consumed
from streamclient.server.state import ServerState
from streamclient.server.validation.row_writes import SingleWrite
from streamclient.server.writes import WriteBatch


def write_one(state: ServerState, request: SingleWrite, response_class: Any) -> Any:
    """Execute the write; the answer has a row only if one was asked for."""
    outcome = WriteBatch(state, state.table(request.table_name)).execute(request.write)
    response = response_class(consumed=consumed(read=outcome.read_units, write=outcome.write_units))
    if outcome.row is not None:
        response.row = outcome.row
    return response
