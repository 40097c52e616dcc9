"""The settings of processing key by key, as frozen objects that check their values when they are made."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable

from attrs import field, frozen

from streamclient.base import checks
from streamclient.records import StreamRecord
from streamclient.worker.keyed.lane_order import named


def primary_key(record: StreamRecord) -> Hashable:
    """Return the primary key, which is the default key: all changes of one row stay in order."""
    return record.primary_key


_of_a_record = checks.function("with one StreamRecord")


@frozen(kw_only=True)
class LaneSettings:
    """The settings that apply to processing key by key both in threads and in an event loop."""

    key: Callable[[StreamRecord], Hashable] = field(default=primary_key, validator=_of_a_record)
    most_pending_bytes: int = field(default=8 << 20, validator=checks.positive)
    retries: int = field(default=2, validator=checks.not_negative)
    first_pause_millis: int = field(default=100, validator=checks.not_negative)
    checkpoint_interval_millis: int = field(default=1_000, validator=checks.not_negative)
    slow_record_warning_millis: int = field(default=30_000, validator=checks.positive)
    monotonic: Callable[[], float] = field(default=time.monotonic, validator=checks.function("without arguments"))

    def keyed(self, records: Iterable[StreamRecord]) -> list[tuple[Hashable, StreamRecord]]:
        """Return ``records`` with their keys.

        Raises:
            ConfigurationError: ``key`` is async.
            TypeError: ``key`` returned a value that is not hashable.
        """
        keyed = [(self.key(record), record) for record in records]
        if keyed:
            checks.done("key", keyed[0][0])  # one check is enough, because an async ``key`` always defers its work
        for key, record in keyed:
            try:
                hash(key)
            except TypeError as error:
                raise TypeError(f"key must return a hashable value, not {key!r} for {named(record)}") from error
        return keyed

    def pause_seconds(self, attempt: int) -> float:
        """Return the pause, in seconds, after the failed attempt number ``attempt`` at a record."""
        return float(self.first_pause_millis * 2 ** (attempt - 1)) / 1_000


@frozen(kw_only=True)
class KeyedSettings(LaneSettings):
    """The arguments of ``KeyedProcessorFactory``, whose docstring describes them."""

    process_record: Callable[[StreamRecord], object] = field(validator=_of_a_record)
    threads: int = field(default=16, validator=checks.positive)
