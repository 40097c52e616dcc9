"""PutRow."""

from __future__ import annotations

from typing import Any

from streamclient.server.actions.row_writes import write_one
from streamclient.server.state import ServerState
from streamclient.server.validation.row_writes import SingleWrite
from streamclient.wire import schema


def act(state: ServerState, request: SingleWrite) -> Any:
    """Replace a row, if its condition holds."""
    return write_one(state, request, schema.PutRowResponse)
