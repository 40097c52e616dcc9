"""The operation GetRange, which reads the rows of a key range, page by page."""

from __future__ import annotations

from typing import Any

from streamclient.server import refusals
from streamclient.server.capacity import Units, consumed, units
from streamclient.server.operation import Counted, ServedOperation, own_table
from streamclient.server.operations._ranges import RangeRead, encode_page, key_frame, read_range
from streamclient.server.server_limits import Limits
from streamclient.server.server_state import ServerState
from streamclient.server.validation.checked_reads import read_selection
from streamclient.server.validation.message_frames import read_bound
from streamclient.server.validation.table_names import check_table_name
from streamclient.server.validation.transaction_ids import read_transaction_id
from streamclient.wire import schema
from streamclient.wire.schema import DataBlockType, Direction


def _validate(request: Any, limits: Limits) -> RangeRead:
    """Return the range to read, with the selection of its rows and the requested encoding."""
    table_name = check_table_name(request.table_name, limits)
    try:
        direction = Direction(request.direction)
    except ValueError as error:
        raise refusals.DIRECTION(given=request.direction) from error
    start = read_bound(request.inclusive_start_primary_key, limits)
    end = read_bound(request.exclusive_end_primary_key, limits)
    selection = read_selection(request, limits)
    if request.HasField("limit") and request.limit <= 0:
        raise refusals.LIMIT()
    return RangeRead(
        table_name=table_name,
        direction=direction,
        start=start,
        end=end,
        limit=request.limit if request.HasField("limit") else None,
        selection=selection,
        transaction_id=read_transaction_id(request),
        # A matrix needs named columns with one version each; otherwise the rows are PlainBuffer.
        as_matrix=request.data_block_type_hint == DataBlockType.SIMPLE_ROW_MATRIX and selection.fits_matrix,
        entire_keys=not request.HasField("return_entire_primary_keys") or request.return_entire_primary_keys,
    )


def _act(state: ServerState, request: RangeRead) -> Any:
    """Read one page of the range; return the page and the key at which the next page begins."""
    table = state.table(request.table_name)
    page = read_range(state, table, request)
    cost = Units(read=units(page.charged_bytes), write=0)
    response = schema.GetRangeResponse(consumed=consumed(read=cost.read), rows=encode_page(table, request, page))
    if request.as_matrix:
        response.data_block_type = DataBlockType.SIMPLE_ROW_MATRIX
    if page.next_row is not None:
        response.next_start_primary_key = key_frame(table, page.next_row)
    return Counted(response, len(page.rows), cost)


OPERATION = ServedOperation(messages=schema.OPERATIONS["GetRange"], validate=_validate, act=_act, tables=own_table)
