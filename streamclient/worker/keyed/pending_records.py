"""The bound of the records that are queued or being processed, in bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable

from streamclient.records import ColumnValue, RecordColumn, StreamRecord

OVERHEAD_BYTES = 64
"""The bytes that a record, and each of its cells, counts in addition to its content. The plain-buffer format needs
about as many for a record."""


class PendingBytes:
    """The bytes of all records that wait or are being processed. Thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._changed = threading.Condition()
        self.used_bytes: int = 0

    def add(self, size_bytes: int, may_enter: Callable[[], bool]) -> None:
        """Add bytes as soon as they have room, or as soon as ``may_enter`` says that this caller need not wait."""
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
