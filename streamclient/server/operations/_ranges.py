"""The read of a range of rows, page by page: shared code of GetRange and BulkExport."""

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
    """A validated request for a range of rows. Its bounds are not yet checked against the table and each other."""

    table_name: str
    direction: Direction
    start: Key
    """The key at which the read starts. The row with this key belongs to the range."""
    end: Key
    """The key at which the read ends. The row with this key does not belong to the range."""
    limit: int | None
    selection: Selection
    transaction_id: str | None
    as_matrix: bool
    entire_keys: bool
    """Whether an answer in the form of a matrix (``as_matrix``) has all key columns. If not, it has only the requested
    key columns."""


@frozen
class RangePage:
    """The page of rows that one call of ``read_range`` returns."""

    rows: list[StoredRow]
    """The selected parts of the returned rows."""
    charged_bytes: int
    next_row: StoredRow | None


def read_range(state: ServerState, table: Table, request: RangeRead) -> RangePage:
    """Return one page of a range, in key order.

    The page ends at the end of the range, at the request's limit, or at the server's limits on scanned rows, scanned
    bytes or work. A row that the filter rejects counts as scanned, but not towards the request's limit. If a row
    needs more work than the request has left, the page ends before this row, and the next page begins with it.

    Raises:
        ServiceError: the bounds do not fit the table or each other, or the first row needs too much work.
    """
    start, end = _bounds(table, request)
    seen = state.range_seen(table, request.transaction_id, request.start, request.end)
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
    """Return the rows of a page in the requested encoding: as a matrix, or as PlainBuffer."""
    if request.as_matrix:
        return _matrix(table, request, page.rows)
    return puts.rows_of([row.form(table.key_names) for row in page.rows]) if page.rows else b""


def _matrix(table: Table, request: RangeRead, rows: list[StoredRow]) -> bytes:
    names, wanted = table.key_names, request.selection.columns_to_get
    key_columns = [name for name in names if request.entire_keys or name in wanted]
    attributes = sorted(wanted - frozenset(names))
    return encode_matrix(names, key_columns, attributes, rows, entire_keys=request.entire_keys)


def key_frame(table: Table, row: StoredRow) -> bytes:
    """Return the key of the row with which the next page begins, as a PlainBuffer row."""
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
