"""The limit for the total size, in bytes, of the records that wait or are processed."""

from __future__ import annotations

import threading
from collections.abc import Callable

from streamclient.records import ColumnValue, RecordColumn, StreamRecord

OVERHEAD_BYTES = 64
"""The bytes that are counted for a record, and for each of its cells, in addition to their contents. The plain-buffer
format needs about as many bytes for a record."""


class PendingBytes:
    """The sum of the sizes of all records that wait or are processed, with a limit. Thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._changed = threading.Condition()
        self.used_bytes: int = 0

    def add(self, size_bytes: int, may_enter: Callable[[], bool]) -> None:
        """Wait until ``size_bytes`` fit below the limit, or until ``may_enter`` returns ``True``; then add them."""
        with self._changed:
            self._changed.wait_for(lambda: self.used_bytes + size_bytes <= self._most_bytes or may_enter())
            self.used_bytes += size_bytes

    def remove(self, size_bytes: int) -> None:
        """Subtract the bytes of records that are done or dropped."""
        with self._changed:
            self.used_bytes -= size_bytes
            self._changed.notify_all()


def record_bytes(record: StreamRecord) -> int:
    """Return the approximate size of the record on the wire."""
    size = OVERHEAD_BYTES
    for name, value in record.primary_key:
        size += len(name) + _value_bytes(value)
    return size + _columns_bytes(record.columns) + _columns_bytes(record.original_columns or ())


def _columns_bytes(columns: tuple[RecordColumn, ...]) -> int:
    return sum(OVERHEAD_BYTES + len(column.name) + _value_bytes(column.value) for column in columns)


def _value_bytes(value: ColumnValue | None) -> int:
    return len(value) if isinstance(value, str | bytes) else 8
