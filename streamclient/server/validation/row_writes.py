"""Checks of writes that PutRow, UpdateRow, DeleteRow, BatchWriteRow and BulkImport share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from streamclient.server import refusals
from streamclient.server.conditions import Condition
from streamclient.server.filters import parse_condition
from streamclient.server.server_errors import ServiceRefusal
from streamclient.server.server_limits import Limits
from streamclient.server.validation.message_frames import check_cells, check_write_key, read_frame
from streamclient.server.writes import AnyWrite, PlainPut, RowWrite
from streamclient.wire import puts
from streamclient.wire.plainbuffer import Cell, CellOperation, Row
from streamclient.wire.schema import OperationType, ReturnType, RowExistenceExpectation


def parse_write(
    kind: OperationType,
    message: Any,
    data: bytes,
    limits: Limits,
    empty_update: ServiceRefusal = refusals.UPDATE_EMPTY_ROW,
) -> AnyWrite:
    """Decode and check the write of one row, with its condition and return type.

    ``message`` has the fields ``condition`` and ``return_content``, and ``data`` is the row. ``empty_update`` is the
    refusal of an update without cells. The text of this refusal differs in a batch.
    """
    return (_plain_put(message, data, limits) if kind is OperationType.PUT else None) or _parsed(
        kind, message, data, limits, empty_update
    )


def _plain_put(message: Any, data: bytes, limits: Limits) -> PlainPut | None:
    """Return a put of the usual form, checked but not decoded; ``None`` for all other writes, even invalid writes."""
    condition = message.condition
    expected = _EXPECTATIONS.get(condition.row_existence)
    if expected is None or message.HasField("return_content") or condition.column_condition:
        return None
    put = puts.read_put(data, limits.put)
    return None if put is None else PlainPut(put, expected)


def _parsed(kind: OperationType, message: Any, data: bytes, limits: Limits, empty_update: ServiceRefusal) -> RowWrite:
    row = read_change(kind, data, limits, empty_update)
    return_type, return_columns = _return_content(message.return_content, row)
    return RowWrite(
        kind=kind,
        key=row.primary_key,
        cells=row.cells,
        condition=read_condition(message.condition, limits),
        return_type=return_type,
        return_columns=return_columns,
    )


_EXPECTATIONS = {int(expectation): Condition(expectation) for expectation in RowExistenceExpectation}
"""The conditions that concern only the existence of the row. The keys are the numbers of expectations in requests."""


def read_change(
    kind: OperationType, data: bytes, limits: Limits, empty_update: ServiceRefusal = refusals.UPDATE_EMPTY_BATCH_ROW
) -> Row:
    """Decode the row of a write, and check its key and cells.

    ``empty_update`` is the refusal of an update without cells.
    """
    row = read_frame(data)
    if kind is OperationType.UPDATE and not (row.cells or row.delete_marker):
        raise empty_update()
    _CHECKS[kind](row)
    check_write_key(row.primary_key, limits)
    check_cells(row.cells, row.primary_key, limits)
    return row


def read_condition(message: Any, limits: Limits) -> Condition:
    """Decode the conditions of a write, on the existence of the row and on its columns."""
    try:
        expectation = RowExistenceExpectation(message.row_existence)
    except ValueError as error:
        raise refusals.EXPECTATION(given=message.row_existence) from error
    column_filter = parse_condition(message.column_condition, limits) if message.column_condition else None
    return Condition(expectation, column_filter)


def _check_put(row: Row) -> None:
    if row.delete_marker:
        raise refusals.PUT_MARKER()
    for cell in row.cells:
        if cell.operation is not CellOperation.PUT:
            raise refusals.PUT_OPERATION(name=cell.name)


def _check_update(row: Row) -> None:
    if row.delete_marker:
        raise refusals.PUT_MARKER()
    for cell in row.cells:
        _check_cell(cell)


def _check_delete(row: Row) -> None:
    if not row.delete_marker:
        raise refusals.DELETE_MARKER()
    if row.cells:
        raise refusals.DELETE_CELLS()


_CHECKS: Mapping[OperationType, Callable[[Row], None]] = MappingProxyType(
    {OperationType.PUT: _check_put, OperationType.UPDATE: _check_update, OperationType.DELETE: _check_delete}
)


def _check_cell(cell: Cell) -> None:
    """Raise ``ServiceError`` if an update's cell does not have exactly the parts that its operation needs."""
    if cell.operation is CellOperation.PUT:
        return  # decode_row has checked that the cell has a value
    if cell.operation is CellOperation.INCREMENT:
        if isinstance(cell.value, bool) or not isinstance(cell.value, int):
            raise refusals.INCREMENT_VALUE(name=cell.name)
        if cell.timestamp_millis is not None:
            raise refusals.INCREMENT_TIMESTAMP()
    else:
        _check_deletion(cell)


def _check_deletion(cell: Cell) -> None:
    if cell.value is not None:
        raise refusals.DELETION_VALUE()
    if cell.operation is CellOperation.DELETE_ONE_VERSION and cell.timestamp_millis is None:
        raise refusals.DELETION_UNDATED()
    if cell.operation is CellOperation.DELETE_ALL_VERSIONS and cell.timestamp_millis is not None:
        raise refusals.DELETION_DATED()


def _return_content(message: Any, row: Row) -> tuple[ReturnType, tuple[str, ...]]:
    """Return the kind of row that the answer must contain, and the names of its columns.

    For AFTER_MODIFY, the names must be incremented columns of the request.
    """
    try:
        return_type = ReturnType(message.return_type)
    except ValueError as error:
        raise refusals.RETURN_TYPE(given=message.return_type) from error
    names = tuple(message.return_column_names)
    if names and return_type is not ReturnType.AFTER_MODIFY:
        raise refusals.RETURN_NAMES(type=return_type.name)
    incremented = {cell.name for cell in row.cells if cell.operation is CellOperation.INCREMENT}
    for name in names:
        if name not in incremented:
            raise refusals.RETURN_COLUMN(name=name)
    return return_type, names
