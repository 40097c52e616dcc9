"""The operation DeleteTable, which deletes a table with its rows, stream and tunnels."""

from __future__ import annotations

from typing import Any

from streamclient.server.operation import ServedOperation, own_table
from streamclient.server.server_limits import Limits
from streamclient.server.server_state import ServerState
from streamclient.server.validation.table_names import check_table_name
from streamclient.wire import schema


def _validate(request: Any, limits: Limits) -> str:
    """Return the name of the table to delete."""
    return check_table_name(request.table_name, limits)


def _act(state: ServerState, table_name: str) -> Any:
    """Delete the table with its rows, its stream and its tunnels. The deletion is complete when the call returns."""
    state.drop_table(state.table(table_name))
    return schema.DeleteTableResponse()


OPERATION = ServedOperation(
    messages=schema.OPERATIONS["DeleteTable"],
    validate=_validate,
    act=_act,
    tables=own_table,
)
