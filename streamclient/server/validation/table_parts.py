"""Checks of tables that CreateTable and UpdateTable share: options, throughput, stream specification."""

from __future__ import annotations

from typing import Any

from attrs import evolve, frozen

from streamclient.server import refusals
from streamclient.server.server_limits import DEVIATION_MAX_SECONDS, TIME_TO_LIVE_MIN_SECONDS, Limits
from streamclient.server.stored_tables import TableOptions
from streamclient.server.validation.table_names import check_attribute_name


@frozen
class StreamSwitch:
    """The stream settings in a request of CreateTable or UpdateTable."""

    enable: bool
    expiration_hours: int | None = None
    """The retention of records in hours; ``None`` if the request does not give it."""
    origin_columns: tuple[str, ...] = ()


def read_options(message: Any, present: TableOptions) -> TableOptions:
    """Return a copy of ``present`` with the options that the message changes, or raise ``ServiceError``."""
    options = present
    if message.HasField("time_to_live"):
        options = evolve(options, time_to_live_seconds=_time_to_live(message.time_to_live))
    if message.HasField("max_versions"):
        if message.max_versions <= 0:
            raise refusals.MAX_VERSIONS()
        options = evolve(options, max_versions=message.max_versions)
    if message.HasField("deviation_cell_version_in_sec"):
        deviation = message.deviation_cell_version_in_sec
        if not 0 <= deviation <= DEVIATION_MAX_SECONDS:
            raise refusals.DEVIATION()
        options = evolve(options, deviation_seconds=deviation)
    if message.HasField("allow_update"):
        options = evolve(options, allow_update=message.allow_update)
    if message.HasField("update_full_row"):
        options = evolve(options, update_full_row=message.update_full_row)
    return options


def _time_to_live(seconds: int) -> int:
    if seconds == 0 or seconds < -1:
        raise refusals.TIME_TO_LIVE()
    if 0 < seconds < TIME_TO_LIVE_MIN_SECONDS:
        raise refusals.TIME_TO_LIVE_SHORT(least=TIME_TO_LIVE_MIN_SECONDS)
    return int(seconds)


def read_throughput(message: Any, limits: Limits) -> tuple[int | None, int | None]:
    """Return the reserved read and write capacity units; ``None`` for a number that the request does not give."""
    unit = message.capacity_unit
    values = []
    for name in ("read", "write"):
        value = getattr(unit, name) if unit.HasField(name) else None
        if value is not None and not 0 <= value <= limits.capacity_units:
            raise refusals.CAPACITY(name=name, limit=limits.capacity_units)
        values.append(value)
    return values[0], values[1]


def read_stream_specification(message: Any, limits: Limits) -> StreamSwitch:
    """Return the settings of the stream, or raise ``ServiceError``.

    If the request switches the stream off, ignore its retention, because the Go SDK always sends a retention.
    """
    if not message.enable_stream:
        return StreamSwitch(enable=False)
    hours = message.expiration_time if message.HasField("expiration_time") else None
    if hours is not None and not 0 < hours <= limits.stream_expiration_hours:
        raise refusals.RETENTION(limit=limits.stream_expiration_hours)
    columns = tuple(check_attribute_name(name, limits) for name in message.columns_to_get)
    if len(set(columns)) != len(columns):
        raise refusals.ORIGIN_TWICE()
    return StreamSwitch(enable=True, expiration_hours=hours, origin_columns=columns)
