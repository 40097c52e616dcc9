"""The operation BulkExport, which reads a range of rows forward.

The answer has the newest version of each requested column. Its rows are encoded as a SimpleRowMatrix or as PlainBuffer.
"""

from __future__ import annotations

from typing import Any

from streamclient.server import refusals
from streamclient.server.capacity import NO_UNITS, consumed
from streamclient.server.operation import Counted, ServedOperation, own_table
from streamclient.server.operations._ranges import RangeRead, encode_page, key_frame, read_range
from streamclient.server.row_reads import Selection
from streamclient.server.server_limits import Limits
from streamclient.server.server_state import ServerState
from streamclient.server.validation.checked_reads import read_row_filter
from streamclient.server.validation.message_frames import read_bound
from streamclient.server.validation.table_names import check_requested_columns, check_table_name
from streamclient.wire import schema
from streamclient.wire.plainbuffer import HEADER
from streamclient.wire.schema import DataBlockType, Direction


def _validate(request: Any, limits: Limits) -> RangeRead:
    """Return the range to read and the selection of its rows."""
    table_name = check_table_name(request.table_name, limits)
    start = read_bound(request.inclusive_start_primary_key, limits)
    end = read_bound(request.exclusive_end_primary_key, limits)
    columns_to_get = check_requested_columns(request.columns_to_get, limits)
    row_filter, pagination = read_row_filter(request, limits)
    hint = request.data_block_type_hint if request.HasField("data_block_type_hint") else DataBlockType.SIMPLE_ROW_MATRIX
    if hint not in tuple(DataBlockType):
        raise refusals.BLOCK_TYPE(given=hint)
    as_matrix = hint == DataBlockType.SIMPLE_ROW_MATRIX
    if as_matrix and not columns_to_get:
        raise refusals.MATRIX_COLUMNS()
    return RangeRead(
        table_name=table_name,
        direction=Direction.FORWARD,
        start=start,
        end=end,
        limit=None,
        selection=Selection(
            columns_to_get=columns_to_get, max_versions=1, row_filter=row_filter, pagination=pagination
        ),
        transaction_id=None,
        as_matrix=as_matrix,
        entire_keys=False,
    )


def _act(state: ServerState, request: RangeRead) -> Any:
    """Read one page of the range.

    The charge is not in capacity units. It is the size in bytes of the selected parts of all scanned rows.
    """
    table = state.table(request.table_name)
    page = read_range(state, table, request)
    # An answer without rows still has an empty block, because the Java SDK decodes a block in every answer.
    response = schema.BulkExportResponse(consumed=consumed(), rows=encode_page(table, request, page) or HEADER)
    response.consumed.capacity_data_size.read_size = page.charged_bytes
    response.consumed.capacity_data_size.write_size = 0
    response.data_block_type = DataBlockType.SIMPLE_ROW_MATRIX if request.as_matrix else DataBlockType.PLAIN_BUFFER
    if page.next_row is not None:
        response.next_start_primary_key = key_frame(table, page.next_row)
    return Counted(response, len(page.rows), NO_UNITS)


OPERATION = ServedOperation(
    messages=schema.OPERATIONS["BulkExport"],
    validate=_validate,
    act=_act,
    tables=own_table,
)
