"""The operation BatchWriteRow, which writes rows of one or several tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from attrs import frozen

from streamclient.server import refusals
from streamclient.server.capacity import consumed, units_of_rows
from streamclient.server.local_transactions import Transaction, partition_key_text
from streamclient.server.operation import ServedOperation
from streamclient.server.operations._row_batches import RowResult, TableWrites, execute_each, operation_type
from streamclient.server.server_errors import ServiceError
from streamclient.server.server_limits import Limits
from streamclient.server.server_state import ServerState
from streamclient.server.validation.row_writes import parse_write
from streamclient.server.validation.table_names import check_table_name
from streamclient.server.validation.transaction_ids import read_transaction_id
from streamclient.server.write_batch import WriteBatch
from streamclient.server.writes import AnyWrite
from streamclient.wire import schema
from streamclient.wire.schema import RowExistenceExpectation


@frozen
class BatchWriteRow:
    """A validated request of BatchWriteRow."""

    tables: tuple[TableWrites, ...]
    is_atomic: bool
    transaction_id: str | None


def _validate(request: Any, limits: Limits) -> BatchWriteRow:
    """Return the writes, table by table in the request's order. A table must not occur twice."""
    if not request.tables:
        raise refusals.BATCH_WRITE_EMPTY()
    _check_tables(request.tables, limits)
    if request.is_atomic and len(request.tables) > 1:
        raise refusals.ATOMIC_TABLES()
    tables = tuple(_table(table, limits) for table in request.tables)
    size = sum(write.request_bytes for table in tables for write in table.writes)
    if size > limits.batch_write_bytes:
        raise refusals.REQUEST_SIZE(operation="BatchWriteRow", limit=limits.batch_write_bytes, size=size)
    for table in tables:
        _check_repeated(table.writes)
    return BatchWriteRow(tables, request.is_atomic, read_transaction_id(request))


def _check_tables(tables: Any, limits: Limits) -> None:
    names = set()
    for table in tables:
        name = check_table_name(table.table_name, limits)
        if name in names:
            raise refusals.BATCH_TABLE_TWICE(name=name)
        if not table.rows:
            raise refusals.BATCH_TABLE_EMPTY(name=name)
        names.add(name)
    if sum(len(table.rows) for table in tables) > limits.batch_write_rows:
        raise refusals.BATCH_ROWS(limit=limits.batch_write_rows)


def _table(table: Any, limits: Limits) -> TableWrites:
    return TableWrites(table.table_name, tuple(_write(row, limits) for row in table.rows))


def _write(row: Any, limits: Limits) -> AnyWrite:
    return parse_write(operation_type(row), row, row.row_change, limits, refusals.UPDATE_EMPTY_BATCH_ROW)


def _check_repeated(writes: tuple[AnyWrite, ...]) -> None:
    """Raise ``ServiceError`` if the batch writes a row twice and one of these writes has a condition."""
    keyed = [(write.encoded_key, write) for write in writes if not write.generates_key]
    counts = Counter(key for key, _ in keyed)
    for key, write in keyed:
        if counts[key] == 1:
            continue
        if write.condition.expectation is not RowExistenceExpectation.IGNORE:
            raise refusals.REPEATED_EXPECTATION()
        if write.condition.column_filter is not None:
            raise refusals.REPEATED_CONDITION()


def _act(state: ServerState, request: BatchWriteRow) -> Any:
    """Execute the writes in the request's order. Each write succeeds or fails on its own, except in an atomic batch."""
    transaction = state.transaction(request.transaction_id)
    execute = _atomic if request.is_atomic else execute_each
    response = schema.BatchWriteRowResponse()
    for table in request.tables:
        answer = response.tables.add(table_name=table.table_name)
        for row in execute(state, table, transaction):
            answer.rows.append(_answer(row))
    return response


def _answer(result: RowResult) -> Any:
    if isinstance(result, ServiceError):
        error = schema.Error(code=result.code, message=result.message)
        return schema.RowInBatchWriteRowResponse(is_ok=False, error=error)
    if result.row is None:
        return _success(result.read_units, result.write_units)
    success = consumed(read=result.read_units, write=result.write_units)
    return schema.RowInBatchWriteRowResponse(is_ok=True, consumed=success, row=result.row)


@lru_cache(maxsize=64)
def _success(read_units: int, write_units: int) -> Any:
    """Return the usual result of a row: success without a returned row. The message is shared, so never change it."""
    return schema.RowInBatchWriteRowResponse(is_ok=True, consumed=consumed(read=read_units, write=write_units))


def _atomic(state: ServerState, writes: TableWrites, transaction: Transaction | None) -> Sequence[RowResult]:
    """Execute all writes, or none of them. If one write is refused, every row has this refusal as its result."""
    try:
        _check_one_partition_key(writes.writes)
        return WriteBatch(state, state.table(writes.table_name), transaction).execute_all(writes.writes)
    except ServiceError as error:
        return [error] * len(writes.writes)


def _check_one_partition_key(writes: tuple[AnyWrite, ...]) -> None:
    scope = writes[0].key[0][1]
    for write in writes:
        given = write.key[0][1]
        if given != scope:
            raise refusals.ATOMIC_SCOPE(own=partition_key_text(scope), given=partition_key_text(given))


OPERATION = ServedOperation(
    messages=schema.OPERATIONS["BatchWriteRow"],
    validate=_validate,
    act=_act,
    tables=lambda request: tuple(table.table_name for table in request.tables),
    rows_written=lambda request: sum(len(table.rows) for table in request.tables),
    units=units_of_rows,
)
