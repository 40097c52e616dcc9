"""Planned writes that are not applied: each plan sees the rows as the plans before it would leave them."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from operator import itemgetter

from streamclient.server.keys import SortedKeys
from streamclient.server.stored_rows import Rows, StoredRow
from streamclient.server.stored_tables import Table
from streamclient.server.writes import WritePlan


class Overlay:
    """Rows after the planned writes: changed rows over stored rows, which stay as they are."""

    def __init__(self, below: Rows) -> None:
        self._below = below
        self._changed: dict[bytes, StoredRow | None] = {}
        self._keys = SortedKeys()
        """The changed keys, in order, so that reading a page of a range costs only the page's own size."""

    def change(self, key: bytes, row: StoredRow | None) -> None:
        """Replace a row, or remove it."""
        if key not in self._changed:
            self._keys.add(key)
        self._changed[key] = row

    def get(self, key: bytes) -> StoredRow | None:
        """Return the row, expired or not."""
        return self._changed[key] if key in self._changed else self._below.get(key)

    def ascending(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, StoredRow]]:
        """Return rows with start <= key < end."""
        changed = self._present(self._keys.ascending(start, end))
        return merge(self._unchanged(self._below.ascending(start, end)), changed, key=itemgetter(0))

    def descending(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, StoredRow]]:
        """Return rows with start >= key > end, from the greatest down."""
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
    """The plans for one table, in order, and the rows after them."""

    def __init__(self, table: Table, below: Rows | None = None, last_generated: int = 0) -> None:
        self.rows: Overlay = Overlay(table.rows if below is None else below)
        self.plans: list[WritePlan] = []
        self.size_bytes: int = 0
        """The size of all writes in bytes, from which capacity units are computed."""
        self.last_generated: int = last_generated
        """The newest AUTO_INCREMENT value, made by these plans or before."""

    def add(self, plan: WritePlan) -> None:
        """Add a plan that was made for the present ``rows``."""
        self.rows.change(plan.encoded_key, plan.after)
        self.plans.append(plan)
        self.size_bytes += plan.write.size_bytes
        if plan.generated is not None:
            self.last_generated = plan.generated
