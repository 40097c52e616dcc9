"""Rules of BatchWriteRow: what refuses the request as a whole. Other failures concern single rows."""

from __future__ import annotations

from collections import Counter
from typing import Any

from attrs import frozen

from streamclient.server.errors import invalid, unsupported
from streamclient.server.keys import encode_key
from streamclient.server.limits import Limits
from streamclient.server.validation.names import check_table_name
from streamclient.server.validation.row_writes import parse_write
from streamclient.server.writes import RowWrite
from streamclient.wire.schema import OperationType, RowExistenceExpectation


@frozen
class TableWrites:
    """The writes for one table, in the request's order."""

    table_name: str
    writes: tuple[RowWrite, ...]


@frozen
class BatchWriteRow:
    """A validated request."""

    tables: tuple[TableWrites, ...]
    is_atomic: bool


def validate(request: Any, limits: Limits) -> BatchWriteRow:
    """The writes, table by table in the request's order; each table once."""
    if request.HasField("transaction_id"):
        raise unsupported("local transactions (transaction_id)")
    if not request.tables:
        raise invalid("No row is specified in BatchWriteRow.")
    _check_tables(request.tables, limits)
    if request.is_atomic and len(request.tables) > 1:
        raise invalid("An atomic BatchWriteRow can only write to one table.")
    tables = tuple(_table(table, limits) for table in request.tables)
    size = sum(write.size_bytes for table in tables for write in table.writes)
    if size > limits.batch_write_bytes:
        raise invalid(
            "The total data size of BatchWriteRow request exceeds the limit, "
            f"limit size: {limits.batch_write_bytes}, data size: {size}."
        )
    for table in tables:
        _check_repeated(table.writes)
    return BatchWriteRow(tables, request.is_atomic)


def _check_tables(tables: Any, limits: Limits) -> None:
    names = set()
    for table in tables:
        name = check_table_name(table.table_name, limits)
        if name in names:
            raise invalid(f"Duplicated table name: '{name}'.")
        if not table.rows:
            raise invalid(f"No operation is specified for table: '{name}'.")
        names.add(name)
    if sum(len(table.rows) for table in tables) > limits.batch_write_rows:
        raise invalid(f"Rows count exceeds the upper limit: {limits.batch_write_rows}.")


def _table(table: Any, limits: Limits) -> TableWrites:
    return TableWrites(table.table_name, tuple(_write(row, limits) for row in table.rows))


def _write(row: Any, limits: Limits) -> RowWrite:
    try:
        kind = OperationType(row.type)
    except ValueError as error:
        raise invalid(f"Invalid operation type: {row.type}.") from error
    return parse_write(kind, row, row.row_change, limits)


def _check_repeated(writes: tuple[RowWrite, ...]) -> None:
    """A row may occur twice only if no write of it depends on what it meets."""
    keyed = [(encode_key(value for _, value in write.key), write) for write in writes if not write.generates_key]
    counts = Counter(key for key, _ in keyed)
    for key, write in keyed:
        if counts[key] == 1:
            continue
        if write.condition.expectation is not RowExistenceExpectation.IGNORE:
            raise invalid("Repeated rows do not support row exist expectation check in BatchModify.")
        if write.condition.column_filter is not None:
            raise invalid("Repeated rows do not support row condition check in BatchModify.")
