"""Rules that GetRow, GetRange and the tables of BatchGetRow share."""

from __future__ import annotations

from typing import Any

from streamclient.server.filters import ColumnPagination, RowFilter, parse_filter
from streamclient.server.row_reads import Selection, TimeRange
from streamclient.server.server_errors import invalid
from streamclient.server.server_limits import Limits
from streamclient.server.validation.table_names import check_requested_columns

NO_VERSION_CONDITION = "No version condition is specified."


def read_selection(message: Any, limits: Limits, no_version_condition: str = NO_VERSION_CONDITION) -> Selection:
    """Return the columns, versions and rows that a request reads.

    ``no_version_condition`` is the error text for a request without a version condition.
    """
    columns_to_get = check_requested_columns(message.columns_to_get, limits)
    row_filter, pagination = read_row_filter(message, limits)
    max_versions = message.max_versions if message.HasField("max_versions") else None
    time_range = _time_range(message.time_range, max_versions is not None) if message.HasField("time_range") else None
    if max_versions is None and time_range is None:
        raise invalid(no_version_condition)
    if max_versions is not None and max_versions <= 0:
        raise invalid("The maximum versions must be greater than 0.")
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
    """Return the row filter of a read, or its window of columns."""
    parsed = parse_filter(message.filter, limits) if message.HasField("filter") else None
    return (None, parsed) if isinstance(parsed, ColumnPagination) else (parsed, None)


def _time_range(message: Any, has_max_versions: bool) -> TimeRange | None:
    """Return the range of version times; ``None`` if the message names none."""
    has_start, has_end = message.HasField("start_time"), message.HasField("end_time")
    if message.HasField("specific_time"):
        _check_alone(has_start or has_end, has_max_versions)
        return _checked(message.specific_time, message.specific_time + 1)
    if has_start != has_end:
        raise invalid("Start and end time must be given at the same time.")
    return _checked(message.start_time, message.end_time) if has_start else None


def _check_alone(has_range: bool, has_max_versions: bool) -> None:
    """Refuse a specific time with another version condition. The texts, spelling included, are the service's."""
    if has_range and has_max_versions:
        raise invalid("Specific timestamp, time range and max versions cannot be given at the same time.")
    if has_range:
        raise invalid("Specific tiemstamp and time range cannot be given at the same time.")
    if has_max_versions:
        raise invalid("Specific tiemstamp and max versions cannot be given at the same time.")


def _checked(start_millis: int, end_millis: int) -> TimeRange:
    if start_millis < 0 or end_millis < 0:
        raise invalid("Timestamp must be in range [0, INT64_MAX/1000).")
    if start_millis >= end_millis:
        raise invalid("The start time must be less than the end time.")
    return TimeRange(start_millis, end_millis)
