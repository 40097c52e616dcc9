"""BatchWriteRow."""

from __future__ import annotations

from typing import Any

from streamclient.server.capacity import consumed
from streamclient.server.errors import ServiceError, out_of_range
from streamclient.server.state import ServerState
from streamclient.server.validation.batch_write_row import BatchWriteRow, TableWrites
from streamclient.server.validation.frames import Key
from streamclient.server.writes import Outcome, RowWrite, WriteBatch
from streamclient.wire import schema

_Result = Outcome | ServiceError


def act(state: ServerState, request: BatchWriteRow) -> Any:
    """Execute row by row in the request's order; each row succeeds or fails on its own, unless the batch is atomic."""
    results = _atomic(state, request) if request.is_atomic else [_independent(state, table) for table in request.tables]
    response = schema.BatchWriteRowResponse()
    for table, rows in zip(request.tables, results, strict=True):
        answer = response.tables.add(table_name=table.table_name)
        for row in rows:
            _answer(answer.rows.add(), row)
    return response


def _answer(message: Any, result: _Result) -> None:
    if isinstance(result, ServiceError):
        message.is_ok = False
        message.error.code, message.error.message = result.code, result.message
        return
    message.is_ok = True
    message.consumed.CopyFrom(consumed(read=result.read_units, write=result.write_units))
    if result.row is not None:
        message.row = result.row


def _independent(state: ServerState, writes: TableWrites) -> list[_Result]:
    try:
        batch = WriteBatch(state, state.table(writes.table_name))
    except ServiceError as error:
        return [error] * len(writes.writes)
    return [_execute(batch, write) for write in writes.writes]


def _execute(batch: WriteBatch, write: RowWrite) -> _Result:
    try:
        return batch.execute(write)
    except ServiceError as error:
        return error


def _atomic(state: ServerState, request: BatchWriteRow) -> list[list[_Result]]:
    """All rows or none: the rows of one partition key are planned together before the first is applied.

    If one cannot be applied, each row reports its own refusal, or else the first one.
    """
    scope = request.tables[0].writes[0].key[:1]
    refusals = [[_refusal(state, table, write, scope) for write in table.writes] for table in request.tables]
    first = next((refusal for table in refusals for refusal in table if refusal is not None), None)
    if first is None:
        return [_independent(state, table) for table in request.tables]
    return [[refusal or first for refusal in table] for table in refusals]


def _refusal(state: ServerState, table: TableWrites, write: RowWrite, scope: Key) -> ServiceError | None:
    if write.key[:1] != scope:
        atomic, given = (_text(key) for key in (scope, write.key))
        return out_of_range(f"Data out of scope of atomic. Atomic PartKey:{atomic}. Data PartKey:{given}")
    try:
        WriteBatch(state, state.table(table.table_name)).plan(write)
    except ServiceError as error:
        return error
    return None


def _text(key: Key) -> str:
    """The partition key as the service's text shows it."""
    value = key[0][1] if key else ""
    return value.hex() if isinstance(value, bytes) else str(value)
