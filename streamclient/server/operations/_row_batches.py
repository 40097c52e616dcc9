"""The writes of many rows of one table, each with its own result: shared code of BatchWriteRow and BulkImport."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import frozen

from streamclient.server import refusals
from streamclient.server.local_transactions import Transaction
from streamclient.server.server_errors import ServiceError
from streamclient.server.server_state import ServerState
from streamclient.server.write_batch import WriteBatch, WriteResult
from streamclient.server.writes import AnyWrite
from streamclient.wire.schema import OperationType

RowResult = WriteResult | ServiceError


@frozen
class TableWrites:
    """The writes of a batch request to one table, in the request's order."""

    table_name: str
    writes: tuple[AnyWrite, ...]


def operation_type(message: Any) -> OperationType:
    """Return the kind of a write in a batch request: put, update or delete."""
    try:
        return OperationType(message.type)
    except ValueError as error:
        raise refusals.BATCH_MODIFY_TYPE() from error


def execute_each(state: ServerState, writes: TableWrites, transaction: Transaction | None) -> Sequence[RowResult]:
    """Execute the writes one after another; return the result of each. One failed write does not affect other writes.

    If the table does not exist, all writes fail.
    """
    try:
        batch = WriteBatch(state, state.table(writes.table_name), transaction)
    except ServiceError as error:
        return [error] * len(writes.writes)
    return [_execute(batch, write) for write in writes.writes]


def _execute(batch: WriteBatch, write: AnyWrite) -> RowResult:
    try:
        return batch.execute(write)
    except ServiceError as error:
        return error
