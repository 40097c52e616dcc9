"""DeleteTable."""

from __future__ import annotations

from typing import Any

from streamclient.server.state import ServerState
from streamclient.wire import schema


def act(state: ServerState, table_name: str) -> Any:
    """Delete the table with its rows and its stream, at once."""
    state.drop_table(state.table(table_name))
    return schema.DeleteTableResponse()
