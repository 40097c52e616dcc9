"""The operation BulkImport, which writes rows of one table without conditions and without returned rows."""

from __future__ import annotations

from typing import Any

from streamclient.server import refusals
from streamclient.server.capacity import consumed
from streamclient.server.operation import ServedOperation, own_table
from streamclient.server.operations._row_batches import RowResult, TableWrites, execute_each, operation_type
from streamclient.server.server_errors import ServiceError
from streamclient.server.server_limits import Limits
from streamclient.server.server_state import ServerState
from streamclient.server.validation.row_writes import read_change
from streamclient.server.validation.table_names import check_table_name
from streamclient.server.writes import AnyWrite, RowWrite
from streamclient.wire import schema


def _validate(request: Any, limits: Limits) -> TableWrites:
    """Return the writes of the request, in the request's order."""
    name = check_table_name(request.table_name, limits)
    if not request.rows:
        raise refusals.BATCH_TABLE_EMPTY(name=name)
    if len(request.rows) > limits.batch_write_rows:
        raise refusals.BATCH_ROWS(limit=limits.batch_write_rows)
    writes = tuple(_write(row, limits) for row in request.rows)
    size = sum(write.request_bytes for write in writes)
    if size > limits.batch_write_bytes:
        raise refusals.REQUEST_SIZE(operation="BulkImport", limit=limits.batch_write_bytes, size=size)
    return TableWrites(name, writes)


def _write(message: Any, limits: Limits) -> RowWrite:
    kind = operation_type(message)
    row = read_change(kind, message.row_change, limits)
    return RowWrite(kind=kind, key=row.primary_key, cells=row.cells)


def _act(state: ServerState, request: TableWrites) -> Any:
    """Execute the writes in the request's order. Each write succeeds or fails on its own."""
    response = schema.BulkImportResponse(table_name=request.table_name)
    for write, result in zip(request.writes, execute_each(state, request, None), strict=True):
        _answer(response.rows.add(), write, result)
    return response


def _answer(message: Any, write: AnyWrite, result: RowResult) -> None:
    if isinstance(result, ServiceError):
        message.is_ok = False
        message.error.code, message.error.message = result.code, result.message
        return
    message.is_ok = True
    # BulkImport charges bytes, not capacity units.
    message.consumed.CopyFrom(consumed())
    message.consumed.capacity_data_size.read_size = 0
    message.consumed.capacity_data_size.write_size = write.size_bytes


OPERATION = ServedOperation(
    messages=schema.OPERATIONS["BulkImport"],
    validate=_validate,
    act=_act,
    tables=own_table,
    rows_written=lambda request: len(request.rows),
)
