"""Checks of reads that GetRow, GetRange and BatchGetRow share."""

from __future__ import annotations

from typing import Any

from streamclient.server import refusals
from streamclient.server.filters import ColumnPagination, RowFilter, parse_filter
from streamclient.server.row_reads import Selection, TimeRange
from streamclient.server.server_errors import ServiceRefusal
from streamclient.server.server_limits import Limits
from streamclient.server.validation.table_names import check_requested_columns


def read_selection(
    message: Any, limits: Limits, no_version_condition: ServiceRefusal | None = refusals.VERSIONS_MISSING
) -> Selection:
    """Check the selection in a read request, and return it.

    ``no_version_condition`` is the refusal of a request that has neither a number of versions nor a time range. With
    ``None``, such a request is accepted.
    """
    columns_to_get = check_requested_columns(message.columns_to_get, limits)
    row_filter, pagination = read_row_filter(message, limits)
    max_versions = message.max_versions if message.HasField("max_versions") else None
    time_range = _time_range(message.time_range, max_versions is not None) if message.HasField("time_range") else None
    if max_versions is None and time_range is None and no_version_condition is not None:
        raise no_version_condition()
    if max_versions is not None and max_versions <= 0:
        raise refusals.READ_VERSIONS(given=max_versions)
    return Selection(
        columns_to_get=columns_to_get,
        max_versions=max_versions,
        time_range=time_range,
        row_filter=row_filter,
        pagination=pagination,
        start_column=message.start_column if message.HasField("start_column") else None,
        end_column=message.end_column if message.HasField("end_column") else None,
    )


def read_row_filter(message: Any, limits: Limits) -> tuple[RowFilter | None, ColumnPagination | None]:
    """Return the row filter and the column pagination of a read. A request has at most one of them."""
    parsed = parse_filter(message.filter, limits) if message.HasField("filter") else None
    return (None, parsed) if isinstance(parsed, ColumnPagination) else (parsed, None)


def _time_range(message: Any, has_max_versions: bool) -> TimeRange | None:
    """Return the range of version timestamps that a read names; ``None`` if the message has no range."""
    has_start, has_end = message.HasField("start_time"), message.HasField("end_time")
    if message.HasField("specific_time"):
        _check_alone(has_start or has_end, has_max_versions)
        return _checked(message.specific_time, message.specific_time + 1)
    if has_start != has_end:
        raise refusals.TIME_RANGE_HALF()
    return _checked(message.start_time, message.end_time) if has_start else None


def _check_alone(has_range: bool, has_max_versions: bool) -> None:
    """Raise ``ServiceError`` if a read names a specific time together with a time range or a number of versions."""
    if has_range and has_max_versions:
        raise refusals.TIME_AND_ALL()
    if has_range:
        raise refusals.TIME_AND_RANGE()
    if has_max_versions:
        raise refusals.TIME_AND_VERSIONS()


def _checked(start_millis: int, end_millis: int) -> TimeRange:
    if start_millis < 0 or end_millis < 0:
        raise refusals.TIMESTAMP()
    if start_millis >= end_millis:
        raise refusals.TIME_RANGE()
    return TimeRange(start_millis, end_millis)
