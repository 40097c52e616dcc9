"""The operation GetRow, which reads one row by its key."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from streamclient.server.capacity import consumed, units_of
from streamclient.server.operation import ServedOperation, own_table
from streamclient.server.row_reads import Selection, find_row, read_found
from streamclient.server.server_limits import Limits
from streamclient.server.server_state import ServerState
from streamclient.server.stored_tables import Key, check_key
from streamclient.server.validation.checked_reads import read_selection
from streamclient.server.validation.message_frames import read_key
from streamclient.server.validation.table_names import check_table_name
from streamclient.server.validation.transaction_ids import read_transaction_id
from streamclient.wire import schema


@frozen
class GetRow:
    """A validated request of GetRow."""

    table_name: str
    key: Key
    selection: Selection
    transaction_id: str | None


def _validate(request: Any, limits: Limits) -> GetRow:
    """Return the key of the row to read, and the selection of its columns and versions."""
    table_name = check_table_name(request.table_name, limits)
    key = read_key(request.primary_key, limits)
    return GetRow(table_name, key, read_selection(request, limits), read_transaction_id(request))


def _act(state: ServerState, request: GetRow) -> Any:
    """Read one row. The row in the answer is empty if the row does not exist or the selection omits it."""
    table = state.table(request.table_name)
    check_key(table.definition, request.key)
    rows = state.rows_seen(table, request.transaction_id, request.key)
    found = find_row(table, rows, request.key, state.clock.now_micros())
    row, units = read_found(table, found, request.selection)
    return schema.GetRowResponse(consumed=consumed(read=units), row=row)


OPERATION = ServedOperation(
    messages=schema.OPERATIONS["GetRow"],
    validate=_validate,
    act=_act,
    tables=own_table,
    rows_read=lambda answer: 1 if answer.row else 0,
    units=units_of,
)
