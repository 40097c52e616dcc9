"""ListTable."""

from __future__ import annotations

from typing import Any

from streamclient.server.state import ServerState
from streamclient.wire import schema


def act(state: ServerState, _: None) -> Any:
    """All table names, sorted."""
    return schema.ListTableResponse(table_names=sorted(state.tables))
