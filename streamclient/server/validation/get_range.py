"""Rules of GetRange."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from streamclient.server.errors import invalid, unsupported
from streamclient.server.limits import Limits
from streamclient.server.reads import Selection
from streamclient.server.validation.frames import Key, read_bound
from streamclient.server.validation.names import check_table_name
from streamclient.server.validation.row_reads import read_selection
from streamclient.wire.schema import Direction


@frozen
class GetRange:
    """A validated request; whether the bounds fit the table and each other is seen with the schema."""

    table_name: str
    direction: Direction
    start: Key
    """Inclusive."""
    end: Key
    """Exclusive."""
    limit: int | None
    selection: Selection


def validate(request: Any, limits: Limits) -> GetRange:
    """The range to read, and what of its rows."""
    if request.HasField("transaction_id"):
        raise unsupported("local transactions (transaction_id)")
    table_name = check_table_name(request.table_name, limits)
    try:
        direction = Direction(request.direction)
    except ValueError as error:
        raise invalid(f"Invalid direction: {request.direction}.") from error
    if request.HasField("limit") and request.limit <= 0:
        raise invalid("The limit must be greater than 0.")
    return GetRange(
        table_name=table_name,
        direction=direction,
        start=read_bound(request.inclusive_start_primary_key, limits),
        end=read_bound(request.exclusive_end_primary_key, limits),
        limit=request.limit if request.HasField("limit") else None,
        selection=read_selection(request, limits),
    )
