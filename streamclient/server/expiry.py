"""When rows have to be looked at because a table's time to live may have ended them, or some of their versions."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from attrs import define, field

from streamclient.server.keys import encode_key
from streamclient.server.stored_rows import StoredRow, alive
from streamclient.server.stored_tables import Table
from streamclient.wire.plainbuffer import KeyBound

HIGHEST_KEY = encode_key((KeyBound.INF_MAX,))
"""Behind every row."""

ROWS_AT_ONCE = 1_000
"""Rows that one request lets go of; the next ones go on, so that none waits for all that a step of the clock ended."""

FEW_ENTRIES = 1_000
"""Entries of a heap that are not worth being counted."""


@define
class _Awaited:
    """The rows of one table by the version that expires first, each at most once."""

    heap: list[tuple[int, bytes]] = field(factory=list)
    millis: dict[bytes, int] = field(factory=dict)


class RowExpiry:
    """The rows that may expire, of all tables. Tables that keep their data for ever cost nothing."""

    def __init__(self) -> None:
        self._tables: dict[int, _Awaited] = {}

    def expect(self, table: Table, key: bytes, row: StoredRow) -> None:
        """Look at a row that was stored when its oldest version may be expired."""
        awaited = self._tables.get(table.definition.number)
        if awaited is None:
            if table.definition.options.time_to_live_seconds < 0:
                return
            awaited = self._begin(table)
        _push(awaited, key, row)

    def forget(self, table: Table) -> None:
        """The table is gone."""
        self._tables.pop(table.definition.number, None)

    def forget_row(self, table: Table, key: bytes) -> None:
        """The row is gone. What the heap holds of gone rows is taken out before it is more than the rest."""
        awaited = self._tables.get(table.definition.number)
        if awaited is not None and awaited.millis.pop(key, None) is not None:
            _compact(awaited)

    def due(self, table: Table, now_micros: int) -> Iterator[tuple[bytes, StoredRow | None]]:
        """Rows of which something is expired, as what is left of them; ``None`` if nothing is."""
        expired_before = table.expired_before_millis(now_micros)
        if expired_before is None:
            return
        awaited = self._tables.get(table.definition.number) or self._begin(table)
        for _ in range(ROWS_AT_ONCE):
            if not awaited.heap or awaited.heap[0][0] >= expired_before:
                return
            millis, key = heappop(awaited.heap)
            if awaited.millis.get(key) != millis:
                continue
            del awaited.millis[key]
            row = table.rows.get(key)
            if row is None:
                continue
            left = alive(row, table.key_names, expired_before)
            if left is row:
                _push(awaited, key, row)
            else:
                yield key, left

    def _begin(self, table: Table) -> _Awaited:
        """Know all rows of a table, which may have kept its data for ever until now."""
        awaited = self._tables[table.definition.number] = _Awaited()
        for key, row in table.rows.ascending(b"", HIGHEST_KEY):
            _push(awaited, key, row)
        return awaited


def _compact(awaited: _Awaited) -> None:
    """Make the heap anew when most of it is of rows that are gone, or that are to be looked at earlier."""
    if len(awaited.heap) > FEW_ENTRIES and len(awaited.heap) > 2 * len(awaited.millis):
        awaited.heap = [(millis, key) for key, millis in awaited.millis.items()]
        heapify(awaited.heap)


def _push(awaited: _Awaited, key: bytes, row: StoredRow) -> None:
    """A row that is looked at too early is looked at again; too late would be wrong."""
    millis = row.oldest_millis
    known = awaited.millis.get(key)
    if known is None or millis < known:
        awaited.millis[key] = millis
        heappush(awaited.heap, (millis, key))
        if known is not None:
            _compact(awaited)
