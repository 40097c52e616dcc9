"""Rules of UpdateTable."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from streamclient.server.errors import invalid
from streamclient.server.limits import Limits
from streamclient.server.tables import TableOptions
from streamclient.server.validation.names import check_table_name
from streamclient.server.validation.table_parts import (
    StreamSwitch,
    read_options,
    read_stream_specification,
    read_throughput,
)


@frozen
class UpdateTable:
    """A validated request; parts that are ``None`` stay as they are."""

    table_name: str
    read_capacity: int | None
    write_capacity: int | None
    options_message: Any | None
    """The options as sent: what they leave out is filled from the table."""
    stream: StreamSwitch | None


def validate(request: Any, limits: Limits) -> UpdateTable:
    """What to change."""
    table_name = check_table_name(request.table_name, limits)
    has_options, has_stream = request.HasField("table_options"), request.HasField("stream_spec")
    if not (has_options or has_stream or request.HasField("reserved_throughput")):
        raise invalid("No parameter is specified in the request of UpdateTable.")
    if has_options and not request.table_options.ListFields():
        raise invalid("No parameter is specified in table options.")
    read, write = read_throughput(request.reserved_throughput, limits)
    if has_options:
        read_options(request.table_options, TableOptions())
    return UpdateTable(
        table_name=table_name,
        read_capacity=read,
        write_capacity=write,
        options_message=request.table_options if has_options else None,
        stream=read_stream_specification(request.stream_spec, limits) if has_stream else None,
    )
