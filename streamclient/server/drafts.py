"""Planned writes to one table that are not yet applied. Each plan sees the results of the earlier plans."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from operator import itemgetter

from streamclient.server.keys import SortedKeys
from streamclient.server.stored_rows import Rows, StoredRow
from streamclient.server.stored_tables import Table
from streamclient.server.writes import WritePlan

PLAN_BYTES = 1_500
"""The measured memory, in bytes, of a planned write without its data."""

_COLUMN_BYTES, _VERSION_BYTES = 100, 8
"""The memory, in bytes, of a column and of a version in a row that shares names and values with the row before it."""


class Overlay:
    """The rows of a table as they will be after the planned writes. The stored rows stay unchanged."""

    def __init__(self, below: Rows) -> None:
        self._below = below
        self._changed: dict[bytes, StoredRow | None] = {}
        self._keys = SortedKeys()
        """The keys of changed rows, in order, so that reading a range does not search all changes."""

    def is_changed(self, key: bytes) -> bool:
        """Return whether a planned write changes or deletes the row with this key."""
        return key in self._changed

    def change(self, key: bytes, row: StoredRow | None) -> None:
        """Set the planned row for a key; ``None`` deletes the row."""
        if key not in self._changed:
            self._keys.add(key)
        self._changed[key] = row

    def get(self, key: bytes) -> StoredRow | None:
        """Return the row that ``key`` has after the planned writes, even if the row has expired."""
        return self._changed[key] if key in self._changed else self._below.get(key)

    def ascending(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, StoredRow]]:
        """Return the rows with start <= key < end, in key order."""
        changed = self._present(self._keys.ascending(start, end))
        return merge(self._unchanged(self._below.ascending(start, end)), changed, key=itemgetter(0))

    def descending(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, StoredRow]]:
        """Return the rows with start >= key > end, the greatest key first."""
        changed = self._present(self._keys.descending(start, end))
        return merge(self._unchanged(self._below.descending(start, end)), changed, key=itemgetter(0), reverse=True)

    def _unchanged(self, rows: Iterator[tuple[bytes, StoredRow]]) -> Iterator[tuple[bytes, StoredRow]]:
        return (row for row in rows if row[0] not in self._changed)

    def _present(self, keys: Iterator[bytes]) -> Iterator[tuple[bytes, StoredRow]]:
        for key in keys:
            row = self._changed[key]
            if row is not None:
                yield key, row


class Draft:
    """The planned writes to one table, in order, and the rows as they will be after these writes."""

    def __init__(self, table: Table, below: Rows | None = None, last_generated: int = 0) -> None:
        self.rows: Overlay = Overlay(table.rows if below is None else below)
        self.plans: list[WritePlan] = []
        self.size_bytes: int = 0
        """The total size of the planned writes in bytes, from which capacity units are computed."""
        self.held_bytes: int = 0
        """The memory of the planned writes in bytes, with the rows that exist only because of them."""
        self.last_generated: int = last_generated
        """The latest AUTO_INCREMENT value that the planned writes or earlier writes generated."""

    def add(self, plan: WritePlan) -> None:
        """Add a planned write. The plan must have been computed from the present ``rows`` of this draft."""
        self.held_bytes += self.memory_of(plan)
        self.rows.change(plan.encoded_key, plan.after)
        self.plans.append(plan)
        self.size_bytes += plan.write.size_bytes
        if plan.generated is not None:
            self.last_generated = plan.generated

    def memory_of(self, plan: WritePlan) -> int:
        """Return the memory in bytes that ``add`` would need for this plan.

        The row after an update has all values of the row before it, which may be far larger than the write. Later rows
        with the same key share the values. A row before the write that has expired versions is a copy, too.
        """
        size, key = plan.write.size_bytes, plan.encoded_key
        if plan.before is not None and plan.before is not self.rows.get(key):
            size = max(size, plan.before.size_bytes)
        if plan.made is None or plan.after is None:
            return size + PLAN_BYTES
        if not self.rows.is_changed(key):
            size = max(size, plan.after.size_bytes)
        row_bytes = _COLUMN_BYTES * len(plan.after.columns) + _VERSION_BYTES * plan.after.version_count
        return size + row_bytes + PLAN_BYTES
