"""ListStream."""

from __future__ import annotations

from typing import Any

from streamclient.server.state import ServerState
from streamclient.wire import schema


def act(state: ServerState, table_name: str | None) -> Any:
    """The streams of one table, or of all; none for a table that is unknown or has no stream."""
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
