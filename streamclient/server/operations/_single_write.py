"""The write of one row: shared code of PutRow, UpdateRow and DeleteRow."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from attrs import frozen

from streamclient.server import refusals
from streamclient.server.capacity import Units, consumed, units_of
from streamclient.server.operation import Counted, ServedOperation, own_table
from streamclient.server.server_limits import Limits
from streamclient.server.server_state import ServerState
from streamclient.server.validation.row_writes import parse_write
from streamclient.server.validation.table_names import check_table_name
from streamclient.server.validation.transaction_ids import read_transaction_id
from streamclient.server.write_batch import WriteBatch
from streamclient.server.writes import AnyWrite
from streamclient.wire import schema
from streamclient.wire.schema import OperationType


@frozen
class SingleWrite:
    """A validated request of PutRow, UpdateRow or DeleteRow."""

    table_name: str
    write: AnyWrite
    transaction_id: str | None


def single_row_write(name: str, kind: OperationType, row_field: str) -> ServedOperation:
    """Return the operation ``name``, which writes the row in the request's field ``row_field``."""
    messages = schema.OPERATIONS[name]

    def validate(request: Any, limits: Limits) -> SingleWrite:
        table_name = check_table_name(request.table_name, limits)
        write = parse_write(kind, request, getattr(request, row_field), limits)
        if write.request_bytes > limits.row_bytes:
            raise refusals.REQUEST_SIZE(operation=name, limit=limits.row_bytes, size=write.request_bytes)
        return SingleWrite(table_name, write, read_transaction_id(request))

    def act(state: ServerState, request: SingleWrite) -> Any:
        table = state.table(request.table_name)
        outcome = WriteBatch(state, table, state.transaction(request.transaction_id)).execute(request.write)
        if outcome.row is None:
            return usual_answer(outcome.read_units, outcome.write_units)
        units = consumed(read=outcome.read_units, write=outcome.write_units)
        return messages.response(consumed=units, row=outcome.row)

    @lru_cache(maxsize=64)
    def usual_answer(read_units: int, write_units: int) -> Counted:
        answer = messages.response(consumed=consumed(read=read_units, write=write_units))
        return Counted(bytes(answer.SerializeToString()), 0, Units(read_units, write_units))

    return ServedOperation(
        messages=messages,
        validate=validate,
        act=act,
        tables=own_table,
        rows_written=lambda request: 1,
        units=units_of,
    )
