"""The operation ListStream, which lists the streams of one table or of all tables."""

from __future__ import annotations

from typing import Any

from streamclient.server.operation import ServedOperation, own_table
from streamclient.server.server_limits import Limits
from streamclient.server.server_state import ServerState
from streamclient.server.validation.table_names import check_table_name
from streamclient.wire import schema


def _validate(request: Any, limits: Limits) -> str | None:
    """Return the name of the table whose stream is requested; ``None`` for the streams of all tables."""
    return check_table_name(request.table_name, limits) if request.table_name else None


def _act(state: ServerState, table_name: str | None) -> Any:
    """Return the stream of one table, or the streams of all tables.

    The answer is empty if the table does not exist or has no stream.
    """
    streams = sorted(state.streams.values(), key=lambda stream: stream.stream_id)
    return schema.ListStreamResponse(
        streams=[
            schema.Stream(
                stream_id=stream.stream_id,
                table_name=stream.definition.table_name,
                creation_time=stream.definition.created_micros,
            )
            for stream in streams
            if table_name in (None, stream.definition.table_name)
        ]
    )


OPERATION = ServedOperation(
    messages=schema.OPERATIONS["ListStream"],
    validate=_validate,
    act=_act,
    tables=own_table,
)
