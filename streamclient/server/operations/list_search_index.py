"""The operation ListSearchIndex. Its answer is always empty, because this server has no search indexes.

Clean-up scripts call this operation before they delete a table.
"""

from __future__ import annotations

from typing import Any

from streamclient.server.operation import ServedOperation, own_table
from streamclient.server.server_state import ServerState
from streamclient.wire import schema


def _act(state: ServerState, request: Any) -> Any:
    return schema.ListSearchIndexResponse()


OPERATION = ServedOperation(messages=schema.OPERATIONS["ListSearchIndex"], act=_act, tables=own_table)
