"""The operation ListTimeseriesTable. Its answer is always empty, because this server has no time series.

Clean-up scripts call this operation before they delete tables.
"""

from __future__ import annotations

from typing import Any

from streamclient.server.operation import ServedOperation
from streamclient.server.server_state import ServerState
from streamclient.wire import schema


def _act(state: ServerState, request: Any) -> Any:
    return schema.ListTimeseriesTableResponse()


OPERATION = ServedOperation(messages=schema.OPERATIONS["ListTimeseriesTable"], act=_act)
