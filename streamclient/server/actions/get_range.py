"""GetRange."""

from __future__ import annotations

from typing import Any, cast

from streamclient.records import KeyValue
from streamclient.server.capacity import consumed, units
from streamclient.server.errors import invalid
from streamclient.server.keys import encode_key
from streamclient.server.reads import read_row
from streamclient.server.rows import KeyNames, StoredRow, alive
from streamclient.server.state import ServerState
from streamclient.server.tables import Table, check_key
from streamclient.server.validation.get_range import GetRange
from streamclient.wire import schema
from streamclient.wire.plainbuffer import HEADER, Row, encode_row
from streamclient.wire.schema import Direction


def act(state: ServerState, request: GetRange) -> Any:
    """Read rows in key order until the range, the request's limit, or what one call may scan is used up.

    Rows that the filter leaves out count as scanned but not towards the request's limit.
    """
    table = state.table(request.table_name)
    start, end = _bounds(table, request)
    rows = (
        table.rows.ascending(start, end)
        if request.direction is Direction.FORWARD
        else table.rows.descending(start, end)
    )
    expired_before = table.expired_before_millis(state.clock.now_micros())
    bodies: list[bytes] = []
    scanned_bytes = 0
    next_row: StoredRow | None = None
    for scanned_rows, (_, row) in enumerate(rows):
        is_full = len(bodies) == request.limit or scanned_rows == state.limits.range_rows
        if is_full or scanned_bytes >= state.limits.range_bytes:
            next_row = row
            break
        live = alive(row, table.key_names, expired_before)
        scanned_bytes += 0 if live is None else live.size_bytes
        selected = read_row(table, live, request.selection)
        if selected is not None:
            bodies.append(selected.body)
    response = schema.GetRangeResponse(consumed=consumed(read=units(scanned_bytes)))
    response.rows = HEADER + b"".join(bodies) if bodies else b""
    if next_row is not None:
        response.next_start_primary_key = _key_frame(table.key_names, next_row)
    return response


def _key_frame(names: KeyNames, row: StoredRow) -> bytes:
    return encode_row(Row(tuple(zip(names, row.key, strict=True))))


def _bounds(table: Table, request: GetRange) -> tuple[bytes, bytes]:
    check_key(table.definition, request.start)
    check_key(table.definition, request.end)
    start = encode_key(cast(KeyValue, value) for _, value in request.start)
    end = encode_key(cast(KeyValue, value) for _, value in request.end)
    if request.direction is Direction.FORWARD and start >= end:
        raise invalid("Begin key must less than end key in FORWARD")
    if request.direction is Direction.BACKWARD and start <= end:
        raise invalid("Begin key must more than end key in BACKWARD")
    return start, end
