"""The operation UpdateTable, which changes the throughput, the options or the stream of a table."""

from __future__ import annotations

from typing import Any

from attrs import evolve, frozen

from streamclient.base.times import MICROS_PER_SECOND
from streamclient.server import refusals
from streamclient.server.operation import ServedOperation, own_table
from streamclient.server.server_limits import Limits
from streamclient.server.server_state import ServerState
from streamclient.server.stored_tables import ServedTable, Table, TableOptions
from streamclient.server.table_messages import stream_details, table_options, throughput_details
from streamclient.server.validation.table_names import check_table_name
from streamclient.server.validation.table_parts import (
    StreamSwitch,
    read_options,
    read_stream_specification,
    read_throughput,
)
from streamclient.wire import schema


@frozen
class UpdateTable:
    """A validated request of UpdateTable. A part of the table whose field is ``None`` stays unchanged."""

    table_name: str
    read_capacity: int | None
    write_capacity: int | None
    options_message: Any | None
    """The message with the options as the client sent them. Options that the message omits stay unchanged."""
    stream: StreamSwitch | None


def _validate(request: Any, limits: Limits) -> UpdateTable:
    """Return the requested changes of the table."""
    table_name = check_table_name(request.table_name, limits)
    has_options, has_stream = request.HasField("table_options"), request.HasField("stream_spec")
    if not (has_options or has_stream or request.HasField("reserved_throughput")):
        raise refusals.UPDATE_EMPTY()
    if has_options and not request.table_options.ListFields():
        raise refusals.OPTIONS_EMPTY()
    if request.table_options.HasField("update_full_row"):
        raise refusals.FULL_ROW_FIXED()
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


def _act(state: ServerState, request: UpdateTable) -> Any:
    """Change throughput, options and stream as requested. If one change is refused, change nothing."""
    table = state.table(request.table_name)
    if request.stream is not None:
        _check_switch(state, table, request.stream)
    definition = _changed(table.definition, request, state.clock.now_micros() // MICROS_PER_SECOND)
    if definition != table.definition:
        state.define(table, definition)
    if request.stream is not None:
        _switch(state, table, request.stream)
    return schema.UpdateTableResponse(
        reserved_throughput_details=throughput_details(table.definition),
        table_options=table_options(table.definition),
        stream_details=stream_details(state.stream_of(table)),
    )


def _changed(definition: ServedTable, request: UpdateTable, now_seconds: int) -> ServedTable:
    if request.options_message is not None:
        definition = evolve(definition, options=read_options(request.options_message, definition.options))
    read = definition.read_capacity if request.read_capacity is None else request.read_capacity
    write = definition.write_capacity if request.write_capacity is None else request.write_capacity
    if read > definition.read_capacity or write > definition.write_capacity:
        definition = evolve(definition, last_increase_seconds=now_seconds)
    if read < definition.read_capacity or write < definition.write_capacity:
        definition = evolve(definition, last_decrease_seconds=now_seconds)
    return evolve(definition, read_capacity=read, write_capacity=write)


def _check_switch(state: ServerState, table: Table, switch: StreamSwitch) -> None:
    """Raise ``ServiceError`` if a request changes the retention or the origin columns of an existing stream."""
    stream = state.stream_of(table)
    if stream is None or not switch.enable:
        return
    present = stream.definition
    hours = switch.expiration_hours
    if hours is not None and hours != present.expiration_hours:
        raise refusals.RETENTION_FIXED(present=present.expiration_hours, given=hours)
    if switch.origin_columns != present.origin_columns:
        raise refusals.ORIGIN_FIXED()


def _switch(state: ServerState, table: Table, switch: StreamSwitch) -> None:
    if not switch.enable:
        state.switch_off(table)
    elif state.stream_of(table) is None:
        hours = switch.expiration_hours or state.limits.stream_expiration_default_hours
        state.switch_on(table, expiration_hours=hours, origin_columns=switch.origin_columns)


OPERATION = ServedOperation(
    messages=schema.OPERATIONS["UpdateTable"],
    validate=_validate,
    act=_act,
    tables=own_table,
)
