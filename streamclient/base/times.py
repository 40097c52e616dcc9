"""Times and durations: their units, and the texts in which people write and read them."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta, timezone, tzinfo

from streamclient.base import checks
from streamclient.errors import ConfigurationError

MICROS_PER_MILLI = 1_000
MILLIS_PER_SECOND = 1_000
MICROS_PER_SECOND = 1_000_000
SECONDS_PER_HOUR = 3_600
SECONDS_PER_DAY = 86_400
MICROS_PER_HOUR = SECONDS_PER_HOUR * MICROS_PER_SECOND

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FIRST_DAY, _LAST_DAY = (
    (datetime(year, month, day, tzinfo=timezone.utc) - _EPOCH).days for year, month, day in ((1, 1, 1), (9999, 12, 31))
)
_LONGEST_DAYS = _LAST_DAY - _FIRST_DAY
_UNIT_SECONDS = {"s": 1, "m": 60, "h": SECONDS_PER_HOUR, "d": SECONDS_PER_DAY}
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhd])")

_MICROS_BEGIN = 10**14
"""The smallest number that is taken for microseconds since 1970. As milliseconds it would mean the year 5138."""


def now_micros() -> int:
    """Return the present time by this machine's clock, in microseconds since 1970."""
    return time.time_ns() // 1_000


def micros_of(moment: datetime) -> int:
    """Return the microseconds since 1970 of ``moment``, which must have a time zone."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def utc(micros: int) -> datetime:
    """Return ``micros``, microseconds since 1970, as a ``datetime`` in UTC."""
    return _EPOCH + timedelta(microseconds=micros)


def utc_text(micros: int) -> str:
    """Return ``micros``, microseconds since 1970, as a text in ISO 8601 and UTC.

    A time outside of the years 1 to 9999 has no such text. It may stand in a row that another program wrote; its text
    is then the number.
    """
    if not is_moment(micros):
        return f"{micros} microseconds since 1970"
    return utc(micros).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def is_moment(micros: int) -> bool:
    """Return whether ``micros``, microseconds since 1970, is a time within the years 1 to 9999."""
    return _FIRST_DAY <= micros // (SECONDS_PER_DAY * MICROS_PER_SECOND) <= _LAST_DAY


def require_moment(text: str, micros: int) -> int:
    """Return ``micros``, microseconds since 1970; ``text`` names this time in the refusal.

    Raises:
        ConfigurationError: the time is outside of the years 1 to 9999.
    """
    if not is_moment(micros):
        raise ConfigurationError(f"{text} is outside of the years 1 to 9999")
    return micros


def duration(seconds: float) -> str:
    """Return the text for a duration, with at most two units: ``0.4 s``, ``12 s``, ``3 min 20 s``, ``6 d 4 h``."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    for unit, size, smaller, divisor in (
        ("d", SECONDS_PER_DAY, "h", SECONDS_PER_HOUR),
        ("h", SECONDS_PER_HOUR, "min", 60),
        ("min", 60, "s", 1),
    ):
        if whole >= size:
            rest = whole % size // divisor
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def rough_duration(seconds: float) -> str:
    """Return the text for an estimated duration, with one unit: ``119 s``, ``119 min``, ``2 h``, ``2 days``."""
    for limit, size, unit in ((120.0, 1.0, "s"), (7_200.0, 60.0, "min"), (172_800.0, SECONDS_PER_HOUR, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / SECONDS_PER_DAY:.0f} days"


def parse_duration(text: str) -> float:
    """Return the seconds of ``90s``, ``15m``, ``2h``, ``1d`` or a sum such as ``1h30m``.

    Raises:
        ConfigurationError: the text has another form, is zero, or is longer than the years 1 to 9999.
    """
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ConfigurationError(f"a duration is written like 90s, 15m, 2h, 1d or 1h30m, not {checks.shown(text)}")
    seconds = sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)
    if seconds <= 0:
        raise ConfigurationError(f"a duration must be above 0, not {checks.shown(text)}")
    if seconds > _LONGEST_DAYS * SECONDS_PER_DAY:
        raise ConfigurationError(f"a duration must be at most {_LONGEST_DAYS}d, not {checks.shown(text)}")
    return seconds


def parse_moment(text: str, now: int) -> int:
    """Return the microseconds since 1970 of an ISO 8601 time with a zone, or of ``2h-ago``, which counts from ``now``.

    Raises:
        ConfigurationError: the text has neither form, has no zone, or is a time outside of the years 1 to 9999.
    """
    expected = "a time is written like 2026-01-31T12:00:00Z or 2h-ago"
    if text.endswith("-ago"):
        micros = now - round(parse_duration(text.removesuffix("-ago")) * MICROS_PER_SECOND)
        return require_moment(text, micros)
    try:
        return _iso_micros(text.strip())
    except ConfigurationError as error:
        raise ConfigurationError(f"{expected}; {error}") from error
    except ValueError as error:
        raise ConfigurationError(f"{expected}, not {checks.shown(text)}") from error


def parse_timestamp(text: str) -> int:
    """Return the microseconds since 1970 of ``text``: milliseconds since 1970, or an ISO 8601 time with a zone.

    Raises:
        ConfigurationError: the text is a number in another unit, is before 1970, or has no zone.
        ValueError: the text is not a time at all.
    """
    given = text.strip()
    if given.isdecimal() and int(given) < _MICROS_BEGIN:
        return int(given) * MICROS_PER_MILLI
    micros = _iso_micros(given)
    if micros < 0:
        raise ConfigurationError("it is before 1970")
    return micros


def parse_local_time(text: str) -> datetime:
    """Return the time in a text such as ``2019-06-19 17:00:00``, without a zone.

    Raises:
        ValueError: the text does not have this form.
    """
    return datetime.strptime(text, "%Y-%m-%d %H:%M:%S")  # noqa: DTZ007  # the caller adds the zone


def zoned_micros(moment: datetime, zone: tzinfo | None) -> int:
    """Return the microseconds since 1970 of a local time in ``zone``; ``None`` stands for the zone of this machine.

    Raises:
        ConfigurationError: the time is before 1970, in the first months of 1970, or out of Python's range.
    """
    try:
        aware = moment.astimezone() if zone is None else moment.replace(tzinfo=zone)
        return checks.micros.require("time", round(aware.timestamp() * MICROS_PER_SECOND))
    except (ValueError, OverflowError, OSError) as error:
        raise ConfigurationError(f"time {moment} is out of range: it must be after April 1970") from error


def _iso_micros(given: str) -> int:
    if given.isdecimal():
        raise ConfigurationError(f"{given} are {_unit_of(int(given))}")
    moment = datetime.fromisoformat(given.replace("Z", "+00:00"))
    if moment.tzinfo is None:
        whole = moment if given[10:11] in ("T", " ") else datetime.combine(moment, datetime.min.time())
        raise ConfigurationError(
            f"it needs a time and a time zone, such as {whole.isoformat()}Z or {whole.isoformat()}+08:00"
        )
    return require_moment(given, micros_of(moment))


def _unit_of(number: int) -> str:
    """Return the unit in which ``number``, counted since 1970, would be a time near the present."""
    units = ((10**11, "seconds"), (_MICROS_BEGIN, "milliseconds"), (10**17, "microseconds"))
    return next((unit for limit, unit in units if number < limit), "nanoseconds")
