"""Rules that GetRow, GetRange and the tables of BatchGetRow share."""

from __future__ import annotations

from typing import Any

from streamclient.server.errors import invalid
from streamclient.server.filters import ColumnPagination, parse_filter
from streamclient.server.limits import Limits
from streamclient.server.reads import Selection, TimeRange
from streamclient.server.validation.names import check_requested_columns


def read_selection(message: Any, limits: Limits) -> Selection:
    """Which columns and versions a request reads."""
    columns_to_get = check_requested_columns(message.columns_to_get, limits)
    time_range = _time_range(message.time_range) if message.HasField("time_range") else None
    max_versions = message.max_versions if message.HasField("max_versions") else None
    if max_versions is None and time_range is None:
        raise invalid("No version condition is specified while querying row.")
    if max_versions is not None and max_versions <= 0:
        raise invalid("The maximum versions must be greater than 0.")
    if time_range is not None and message.time_range.HasField("specific_time"):
        # The Python SDK adds its default of one version to a specific time; the time decides.
        max_versions = None
    parsed = parse_filter(message.filter, limits) if message.filter else None
    return Selection(
        columns_to_get=columns_to_get,
        max_versions=max_versions,
        time_range=time_range,
        row_filter=None if isinstance(parsed, ColumnPagination) else parsed,
        pagination=parsed if isinstance(parsed, ColumnPagination) else None,
        start_column=message.start_column if message.HasField("start_column") else None,
        end_column=message.end_column if message.HasField("end_column") else None,
    )


def _time_range(message: Any) -> TimeRange:
    has_start, has_end = message.HasField("start_time"), message.HasField("end_time")
    if message.HasField("specific_time"):
        if has_start or has_end:
            raise invalid("Specific time and time range cannot be given at the same time.")
        return _checked(message.specific_time, message.specific_time + 1)
    if has_start != has_end:
        raise invalid("Start and end time must be given at the same time.")
    if not has_start:
        raise invalid("No version condition is specified while querying row.")
    return _checked(message.start_time, message.end_time)


def _checked(start_millis: int, end_millis: int) -> TimeRange:
    if start_millis < 0 or end_millis < 0:
        raise invalid("Timestamp must be in range [0, INT64_MAX/1000).")
    if start_millis >= end_millis:
        raise invalid("The start time must be less than the end time.")
    return TimeRange(start_millis, end_millis)
