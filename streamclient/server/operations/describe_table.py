"""The operation DescribeTable, which returns the key, options, stream and partitions of a table."""

from __future__ import annotations

from typing import Any

from streamclient.server.operation import ServedOperation, own_table
from streamclient.server.server_limits import Limits
from streamclient.server.server_state import ServerState
from streamclient.server.table_messages import (
    encryption_details,
    key_prefix_frame,
    stream_details,
    table_meta,
    table_options,
    throughput_details,
)
from streamclient.server.validation.table_names import check_table_name
from streamclient.wire import schema
from streamclient.wire.schema import TableStatus


def _validate(request: Any, limits: Limits) -> str:
    """Return the name of the table to describe."""
    return check_table_name(request.table_name, limits)


def _act(state: ServerState, table_name: str) -> Any:
    """Return the table's definition, its stream, and the boundaries of its partitions."""
    table = state.table(table_name)
    definition = table.definition
    return schema.DescribeTableResponse(
        table_meta=table_meta(definition),
        reserved_throughput_details=throughput_details(definition),
        table_options=table_options(definition),
        table_status=TableStatus.ACTIVE,
        stream_details=stream_details(state.stream_of(table)),
        shard_splits=[key_prefix_frame(definition, boundary) for boundary in definition.boundaries],
        sse_details=encryption_details(definition),
        creation_time=definition.created_micros,
    )


OPERATION = ServedOperation(
    messages=schema.OPERATIONS["DescribeTable"],
    validate=_validate,
    act=_act,
    tables=own_table,
)
