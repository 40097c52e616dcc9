"""Shared code of GetRange and BulkExport: a range of rows, read page by page."""

from __future__ import annotations

from typing import cast

from attrs import frozen

from streamclient.records import KeyValue
from streamclient.server import refusals
from streamclient.server.keys import encode_key
from streamclient.server.row_matrix import encode_matrix
from streamclient.server.row_reads import RowReader, Selection
from streamclient.server.server_state import ServerState
from streamclient.server.stored_rows import StoredRow, alive
from streamclient.server.stored_tables import Key, Table, check_key
from streamclient.server.work import COLUMN_WORK, MATRIX_WORK, TooMuchWorkError, pay
from streamclient.wire import puts
from streamclient.wire.plainbuffer import Row, encode_row
from streamclient.wire.schema import Direction


@frozen
class RangeRead:
    """A validated read. The bounds are checked later, against the schema and against each other."""

    table_name: str
    direction: Direction
    start: Key
    """The key at which the read starts, inclusive."""
    end: Key
    """The key at which the read ends, exclusive."""
    limit: int | None
    selection: Selection
    transaction_id: str | None
    as_matrix: bool
    entire_keys: bool
    """Whether a matrix has all key columns, or only the requested key columns."""


@frozen
class RangePage:
    """The rows that one call reads."""

    rows: list[StoredRow]
    """The selected parts of the returned rows."""
    charged_bytes: int
    next_row: StoredRow | None


def read_range(state: ServerState, table: Table, request: RangeRead) -> RangePage:
    """Read rows in key order, up to the end of the range, the request's limit, or a call's limit of rows or of work.

    Rows that the filter leaves out count as scanned, but not towards the request's limit. If the filter of a row needs
    more work than is left, the page ends before that row, and the next page begins with it.

    Raises:
        ServiceError: the bounds do not fit, or the first row already needs more work than one request may do.
    """
    start, end = _bounds(table, request)
    seen = state.rows_seen(table, request.transaction_id, request.start, request.end)
    ascending = request.direction is Direction.FORWARD
    rows = seen.ascending(start, end) if ascending else seen.descending(start, end)
    expired_before = table.expired_before_millis(state.clock.now_micros())
    stamp_bytes, takes_all = table.stamp_bytes, request.selection.takes_all
    most_rows, most_bytes = state.limits.range_rows, state.limits.range_bytes
    reader = RowReader(table, request.selection)
    column_work = (MATRIX_WORK if request.as_matrix else COLUMN_WORK) * len(request.selection.columns_to_get)
    returned: list[StoredRow] = []
    scanned_bytes = charged_bytes = 0
    for scanned_rows, (_, row) in enumerate(rows):
        if len(returned) == request.limit or scanned_rows == most_rows or scanned_bytes >= most_bytes:
            return RangePage(returned, charged_bytes, row)
        live = row if expired_before is None else alive(row, table.key_names, expired_before)
        if live is None:
            continue
        scanned_bytes += live.size_bytes + stamp_bytes * live.version_count
        if takes_all and live.is_single:
            charged_bytes += live.size_bytes
            returned.append(live)
            continue
        try:
            pay(column_work, "The request names %d columns", len(request.selection.columns_to_get))
            part, part_bytes = reader.read(live)
        except TooMuchWorkError:
            if not scanned_rows:
                raise
            return RangePage(returned, charged_bytes, row)
        charged_bytes += part_bytes
        if part is not None:
            returned.append(part)
    return RangePage(returned, charged_bytes, None)


def encode_page(table: Table, request: RangeRead, page: RangePage) -> bytes:
    """Encode the rows of a page in the requested form."""
    if request.as_matrix:
        return _matrix(table, request, page.rows)
    return puts.rows_of([row.form(table.key_names) for row in page.rows]) if page.rows else b""


def _matrix(table: Table, request: RangeRead, rows: list[StoredRow]) -> bytes:
    names, wanted = table.key_names, request.selection.columns_to_get
    key_columns = [name for name in names if request.entire_keys or name in wanted]
    attributes = sorted(wanted - frozenset(names))
    return encode_matrix(names, key_columns, attributes, rows, entire_keys=request.entire_keys)


def key_frame(table: Table, row: StoredRow) -> bytes:
    """Return the position of the next page: the key of a row that was not returned yet."""
    return encode_row(Row(tuple(zip(table.key_names, row.key, strict=True))))


def _bounds(table: Table, request: RangeRead) -> tuple[bytes, bytes]:
    check_key(table.definition, request.start)
    check_key(table.definition, request.end)
    start = encode_key(cast(KeyValue, value) for _, value in request.start)
    end = encode_key(cast(KeyValue, value) for _, value in request.end)
    if request.direction is Direction.FORWARD and start >= end:
        raise refusals.RANGE_FORWARD()
    if request.direction is Direction.BACKWARD and start <= end:
        raise refusals.RANGE_BACKWARD()
    return start, end
