"""The times at which rows, or some of their versions, may expire by a table's time to live."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from attrs import define, field

from streamclient.server.keys import encode_key
from streamclient.server.stored_rows import StoredRow, alive
from streamclient.server.stored_tables import Table
from streamclient.wire.plainbuffer import KeyBound

HIGHEST_KEY = encode_key((KeyBound.INF_MAX,))
"""A key after every row."""

ROWS_AT_ONCE = 1_000
"""The largest number of rows that one request deletes. Later requests delete the remaining rows, so no request waits
for all of them."""

FEW_ENTRIES = 1_000
"""A heap of at most this many entries is never compacted."""


@define
class _Awaited:
    """The rows of one table, ordered by the time when their first version expires. ``millis`` has each row once."""

    heap: list[tuple[int, bytes]] = field(factory=list)
    millis: dict[bytes, int] = field(factory=dict)


class RowExpiry:
    """The rows of all tables that may expire. A table that keeps its data for ever costs nothing."""

    def __init__(self) -> None:
        self._tables: dict[int, _Awaited] = {}

    def expect(self, table: Table, key: bytes, row: StoredRow) -> None:
        """Add a stored row, which changes when its oldest version expires."""
        awaited = self._tables.get(table.definition.number)
        if awaited is None:
            if table.definition.options.time_to_live_seconds < 0:
                return
            awaited = self._begin(table)
        _push(awaited, key, row)

    def forget(self, table: Table) -> None:
        """Forget a deleted table."""
        self._tables.pop(table.definition.number, None)

    def forget_row(self, table: Table, key: bytes) -> None:
        """Forget a deleted row. The heap drops entries of deleted rows before they outnumber the rest."""
        awaited = self._tables.get(table.definition.number)
        if awaited is not None and awaited.millis.pop(key, None) is not None:
            _compact(awaited)

    def due(self, table: Table, now_micros: int) -> Iterator[tuple[bytes, StoredRow | None]]:
        """Yield each row that has expired versions, without these versions; ``None`` if no version is left."""
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
        """Add all rows of a table. The table may have kept its data for ever until now."""
        awaited = self._tables[table.definition.number] = _Awaited()
        for key, row in table.rows.ascending(b"", HIGHEST_KEY):
            _push(awaited, key, row)
        return awaited


def _compact(awaited: _Awaited) -> None:
    """Rebuild the heap if most of its entries are for deleted rows, or for rows that have an earlier entry as well."""
    if len(awaited.heap) > FEW_ENTRIES and len(awaited.heap) > 2 * len(awaited.millis):
        awaited.heap = [(millis, key) for key, millis in awaited.millis.items()]
        heapify(awaited.heap)


def _push(awaited: _Awaited, key: bytes, row: StoredRow) -> None:
    """Add a row to the heap. The row may be checked too early, because it is then checked again, but not too late."""
    millis = row.oldest_millis
    known = awaited.millis.get(key)
    if known is None or millis < known:
        awaited.millis[key] = millis
        heappush(awaited.heap, (millis, key))
        if known is not None:
            _compact(awaited)
