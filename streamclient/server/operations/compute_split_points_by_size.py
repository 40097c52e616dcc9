"""The operation ComputeSplitPointsBySize, which divides a table into parts of about equal size."""

from __future__ import annotations

import hashlib
from typing import Any

from attrs import frozen

from streamclient.server import refusals
from streamclient.server.capacity import consumed, units_of
from streamclient.server.operation import ServedOperation, own_table
from streamclient.server.server_limits import MEGABYTE, Limits
from streamclient.server.server_state import ServerState
from streamclient.server.splitting import split_points
from streamclient.server.table_messages import key_prefix_frame, key_schema
from streamclient.server.validation.table_names import check_table_name
from streamclient.wire import schema

_DEFAULT_UNIT_BYTES = 100 * MEGABYTE


@frozen
class ComputeSplitPoints:
    """A validated request of ComputeSplitPointsBySize."""

    table_name: str
    split_bytes: int
    point_limit: int


def _validate(request: Any, limits: Limits) -> ComputeSplitPoints:
    """Return the table to divide, the size of the parts, and the largest number of split points."""
    table_name = check_table_name(request.table_name, limits)
    unit = request.split_size_unit_in_byte if request.HasField("split_size_unit_in_byte") else _DEFAULT_UNIT_BYTES
    if request.split_size <= 0:
        raise refusals.SPLIT_SIZE()
    if unit < limits.split_unit_bytes:
        raise refusals.SPLIT_UNIT(least=limits.split_unit_bytes)
    point_limit = request.split_point_limit if request.HasField("split_point_limit") else limits.splits_per_request
    if point_limit <= 0:
        raise refusals.SPLIT_LIMIT()
    return ComputeSplitPoints(table_name, request.split_size * unit, min(point_limit, limits.splits_per_request))


def _act(state: ServerState, request: ComputeSplitPoints) -> Any:
    """Return the keys that divide the table into parts of about the requested size.

    A split point is the key of the first row after the split. If this row is the first row of its partition key, the
    split point consists of the partition key alone.
    """
    table = state.table(request.table_name)
    state.forget_expired_rows(table)
    points = split_points(table, request.split_bytes, request.point_limit)
    # All parts have one location. The Java SDK requires that the repeats add up to the number of parts.
    location = hashlib.md5(request.table_name.encode(), usedforsecurity=False).hexdigest()
    return schema.ComputeSplitPointsBySizeResponse(
        # The service was seen to charge 1 unit for a table in one part, and 4 units for a table in three parts.
        consumed=consumed(read=len(points) + 2 if points else 1),
        schema=key_schema(table.definition.key),
        split_points=[key_prefix_frame(table.definition, point) for point in points],
        locations=[schema.SplitLocation(location=location, repeat=len(points) + 1)],
    )


OPERATION = ServedOperation(
    messages=schema.OPERATIONS["ComputeSplitPointsBySize"],
    validate=_validate,
    act=_act,
    tables=own_table,
    units=units_of,
)
