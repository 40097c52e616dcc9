"""The operation ListTable, which lists the names of all tables."""

from __future__ import annotations

from typing import Any

from streamclient.server.operation import ServedOperation
from streamclient.server.server_limits import Limits
from streamclient.server.server_state import ServerState
from streamclient.wire import schema


def _validate(request: Any, limits: Limits) -> None:
    """Accept every request, because a request of ListTable has no fields."""


def _act(state: ServerState, _: None) -> Any:
    """Return the sorted names of all tables."""
    return schema.ListTableResponse(table_names=sorted(state.tables))


OPERATION = ServedOperation(
    messages=schema.OPERATIONS["ListTable"],
    validate=_validate,
    act=_act,
)
