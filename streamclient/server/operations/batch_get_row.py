"""BatchGetRow."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from streamclient.server.capacity import consumed
from streamclient.server.errors import ServiceError, invalid
from streamclient.server.limits import Limits
from streamclient.server.operation import ServedOperation
from streamclient.server.reads import Selection, read_one
from streamclient.server.state import ServerState
from streamclient.server.tables import Key, check_key
from streamclient.server.validation.frames import read_key
from streamclient.server.validation.names import check_table_name
from streamclient.server.validation.row_reads import read_selection
from streamclient.wire import schema

_NO_VERSION_CONDITION = "No version condition is specified while querying row."


@frozen
class TableKeys:
    """The keys to read of one table."""

    table_name: str
    keys: tuple[Key, ...]
    selection: Selection


def _validate(request: Any, limits: Limits) -> tuple[TableKeys, ...]:
    """The keys to read, in the request's order; each table once."""
    if not request.tables:
        raise invalid("No row specified in the request of BatchGetRow.")
    names = set()
    for table in request.tables:
        name = check_table_name(table.table_name, limits)
        if name in names:
            raise invalid(f"Duplicated table name: '{name}'.")
        names.add(name)
    count = sum(len(table.primary_key) for table in request.tables)
    if count > limits.batch_get_rows:
        raise invalid(f"Rows count exceeds the upper limit: {limits.batch_get_rows}.")
    return tuple(_table(table, limits) for table in request.tables)


def _table(table: Any, limits: Limits) -> TableKeys:
    keys = tuple(read_key(data, limits) for data in table.primary_key)
    return TableKeys(table.table_name, keys, read_selection(table, limits, _NO_VERSION_CONDITION))


def _act(state: ServerState, request: tuple[TableKeys, ...]) -> Any:
    """Read row by row in the request's order; each row succeeds or fails on its own."""
    response = schema.BatchGetRowResponse()
    for keys in request:
        answer = response.tables.add(table_name=keys.table_name)
        for key in keys.keys:
            _read(state, keys, key, answer.rows.add())
    return response


def _read(state: ServerState, keys: TableKeys, key: Key, message: Any) -> None:
    try:
        table = state.table(keys.table_name)
        check_key(table.definition, key)
        row, units = read_one(table, table.rows, key, keys.selection, state.clock.now_micros())
    except ServiceError as error:
        message.is_ok = False
        message.error.code, message.error.message = error.code, error.message
        return
    message.is_ok = True
    message.consumed.CopyFrom(consumed(read=units))
    message.row = row


OPERATION = ServedOperation(
    messages=schema.OPERATIONS["BatchGetRow"],
    validate=_validate,
    act=_act,
    tables=lambda request: tuple(table.table_name for table in request.tables),
    rows_read=lambda answer: sum(1 for table in answer.tables for row in table.rows if row.row),
)
