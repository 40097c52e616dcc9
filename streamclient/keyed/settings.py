"""How records are processed key by key: frozen, and checked when made."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any

from attrs import Attribute, field, frozen

from streamclient.errors import ConfigurationError
from streamclient.records import StreamRecord


def primary_key(record: StreamRecord) -> Hashable:
    """The usual key: all changes of one row are in order."""
    return record.primary_key


def _callable(instance: object, attribute: Attribute[Any], value: Any) -> None:
    if not callable(value):
        raise ConfigurationError(f"{attribute.name} must be callable with one StreamRecord, not {value!r}")


def _at_least(least: int) -> Callable[[object, Attribute[Any], Any], None]:
    def check(instance: object, attribute: Attribute[Any], value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigurationError(f"{attribute.name} must be a whole number of at least {least}, not {value!r}")

    return check


@frozen(kw_only=True)
class KeyedSettings:
    """See ``KeyedProcessorFactory``, whose arguments these are."""

    process_record: Callable[[StreamRecord], object] = field(validator=_callable)
    key: Callable[[StreamRecord], Hashable] = field(default=primary_key, validator=_callable)
    threads: int = field(default=16, validator=_at_least(1))
    most_pending_bytes: int = field(default=8 << 20, validator=_at_least(1))
    retries: int = field(default=2, validator=_at_least(0))
    first_pause_millis: int = field(default=100, validator=_at_least(0))
    checkpoint_interval_millis: int = field(default=1_000, validator=_at_least(0))
    slow_record_warning_millis: int = field(default=30_000, validator=_at_least(1))
    monotonic: Callable[[], float] = time.monotonic

    def pause_seconds(self, attempt: int) -> float:
        """Pause after the n-th failed attempt at one record."""
        return float(self.first_pause_millis * 2 ** (attempt - 1)) / 1_000
