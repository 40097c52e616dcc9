"""Rules of ComputeSplitPointsBySize."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from streamclient.server.errors import invalid
from streamclient.server.limits import MEGABYTE, Limits
from streamclient.server.validation.names import check_table_name

_DEFAULT_UNIT_BYTES = 100 * MEGABYTE


@frozen
class ComputeSplitPoints:
    """A validated request."""

    table_name: str
    split_bytes: int
    point_limit: int


def validate(request: Any, limits: Limits) -> ComputeSplitPoints:
    """The table to cut, and the size of the pieces."""
    table_name = check_table_name(request.table_name, limits)
    unit = request.split_size_unit_in_byte if request.HasField("split_size_unit_in_byte") else _DEFAULT_UNIT_BYTES
    if request.split_size <= 0 or unit <= 0:
        raise invalid("The split size must be greater than 0.")
    point_limit = request.split_point_limit if request.HasField("split_point_limit") else limits.splits_per_request
    if point_limit <= 0:
        raise invalid("The split point limit must be greater than 0.")
    return ComputeSplitPoints(table_name, request.split_size * unit, min(point_limit, limits.splits_per_request))
