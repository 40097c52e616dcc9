"""Times and durations as people write and read them. Pure."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

from streamclient.errors import ConfigurationError
from streamclient.operate.facts import MICROS_PER_SECOND

UNIT_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def duration(seconds: float) -> str:
    """``0.4 s``, ``12 s``, ``3 min 20 s``, ``2 h 5 min``, ``6 d 4 h``: two units at most, never a false precision."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    for unit, size, smaller, divisor in (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // divisor
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def parse_duration(text: str) -> float:
    """Seconds of ``90s``, ``15m``, ``2h``, ``1d`` or a sum such as ``1h30m``.

    Raises:
        ConfigurationError: the text is none of these, or zero.
    """
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ConfigurationError(f"a duration is written like 90s, 15m, 2h, 1d or 1h30m, not {text!r}")
    seconds = sum(float(number) * UNIT_SECONDS[unit] for number, unit in parts)
    if seconds <= 0:
        raise ConfigurationError(f"a duration must be above 0, not {text!r}")
    return seconds


def parse_moment(text: str, now_micros: int) -> int:
    """Microseconds of an ISO 8601 time with zone, or of ``2h-ago``.

    Raises:
        ConfigurationError: the text is neither, or has no zone: which one was meant cannot be guessed.
    """
    if text.endswith("-ago"):
        return now_micros - round(parse_duration(text.removesuffix("-ago")) * MICROS_PER_SECOND)
    try:
        when = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise ConfigurationError(f"a time is written like 2026-01-31T12:00:00Z or 2h-ago, not {text!r}") from None
    if when.tzinfo is None:
        raise ConfigurationError(f"time {text!r} has no zone; append Z for UTC, or an offset such as +08:00")
    return (when - _EPOCH) // timedelta(microseconds=1)


def rate(value: float | None) -> str:
    """A number per second; ``-`` while it is not known, which is not 0."""
    return "-" if value is None else f"{value:.0f}"
