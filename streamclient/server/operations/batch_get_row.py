"""The operation BatchGetRow, which reads rows of one or several tables by their keys."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from streamclient.server import refusals
from streamclient.server.capacity import consumed, units_of_rows
from streamclient.server.operation import ServedOperation
from streamclient.server.row_reads import Selection, find_row, read_found
from streamclient.server.server_errors import ServiceError
from streamclient.server.server_limits import Limits
from streamclient.server.server_state import ServerState
from streamclient.server.stored_tables import Key, check_key
from streamclient.server.validation.checked_reads import read_selection
from streamclient.server.validation.message_frames import read_key
from streamclient.server.validation.table_names import check_table_name
from streamclient.wire import schema


@frozen
class TableKeys:
    """The keys of the rows that a request reads from one table, and the selected part of each row."""

    table_name: str
    keys: tuple[Key, ...]
    selection: Selection


def _validate(request: Any, limits: Limits) -> tuple[TableKeys, ...]:
    """Return the keys to read, table by table in the request's order. A table must not occur twice.

    A table may have no keys. The answer then has the table without rows.
    """
    if not request.tables:
        raise refusals.BATCH_GET_EMPTY()
    names = set()
    for table in request.tables:
        name = check_table_name(table.table_name, limits)
        if name in names:
            raise refusals.BATCH_TABLE_TWICE(name=name)
        names.add(name)
    count = sum(len(table.primary_key) for table in request.tables)
    if count > limits.batch_get_rows:
        raise refusals.BATCH_ROWS(limit=limits.batch_get_rows)
    return tuple(_table(table, limits) for table in request.tables)


def _table(table: Any, limits: Limits) -> TableKeys:
    keys = tuple(read_key(data, limits) for data in table.primary_key)
    # Without keys, nothing is read, so the table needs neither a number of versions nor a time range.
    missing = refusals.VERSIONS_MISSING_IN_BATCH if keys else None
    return TableKeys(table.table_name, keys, read_selection(table, limits, missing))


def _act(state: ServerState, request: tuple[TableKeys, ...]) -> Any:
    """Read the rows in the request's order. Each row succeeds or fails on its own.

    A row fails if it would make the total size of the rows too large. The client must request this row again.
    """
    response = schema.BatchGetRowResponse()
    reading = _Reading(state)
    for keys in request:
        answer = response.tables.add(table_name=keys.table_name)
        for key in keys.keys:
            reading.read(keys, key, answer.rows.add())
    return response


class _Reading:
    """The execution of one request, with the total size of the rows read so far."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._now_micros = state.clock.now_micros()
        self._looked_at_bytes = 0

    def read(self, keys: TableKeys, key: Key, message: Any) -> None:
        """Read the row with one key, and write the result into ``message``."""
        try:
            row, units = self._read(keys, key)
        except ServiceError as error:
            message.is_ok = False
            message.error.code, message.error.message = error.code, error.message
            return
        message.is_ok = True
        message.consumed.CopyFrom(consumed(read=units))
        message.row = row

    def _read(self, keys: TableKeys, key: Key) -> tuple[bytes, int]:
        table = self._state.table(keys.table_name)
        check_key(table.definition, key)
        found = find_row(table, table.rows, key, self._now_micros)
        if found is not None:
            self._look_at(table.size_of(found))
        return read_found(table, found, keys.selection)

    def _look_at(self, size_bytes: int) -> None:
        """Count the size of a row that is read. The whole row counts, even if the selection returns little of it.

        Raises:
            ServiceError: the rows would be too large together.
        """
        limit = self._state.limits.batch_get_bytes
        if self._looked_at_bytes and self._looked_at_bytes + size_bytes > limit:
            raise refusals.BATCH_GET_SIZE(limit=limit, size=self._looked_at_bytes + size_bytes)
        self._looked_at_bytes += size_bytes


OPERATION = ServedOperation(
    messages=schema.OPERATIONS["BatchGetRow"],
    validate=_validate,
    act=_act,
    tables=lambda request: tuple(table.table_name for table in request.tables),
    rows_read=lambda answer: sum(1 for table in answer.tables for row in table.rows if row.row),
    units=units_of_rows,
)
