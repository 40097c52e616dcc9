"""The expiry of rows and versions by a table's time to live: which rows to check, and when."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from attrs import define, field

from streamclient.server.keys import encode_key
from streamclient.server.stored_rows import StoredRow, alive
from streamclient.server.stored_tables import Table
from streamclient.wire.plainbuffer import KeyBound

HIGHEST_KEY = encode_key((KeyBound.INF_MAX,))
"""An encoded key after the keys of all rows."""

ROWS_AT_ONCE = 1_000
"""The largest number of rows of one table that one request checks for expired versions. Later requests check the other
rows, so that no request takes long."""

FEW_ENTRIES = 1_000
"""The number of entries up to which the heap of ``_Awaited`` may contain any number of outdated entries. If most
entries of a larger heap are outdated, the heap is rebuilt without them."""


@define
class _Awaited:
    """The rows of one table, in a heap that finds the rows whose oldest versions may have expired.

    Each entry of ``heap`` is the timestamp of a row's oldest version in milliseconds, and the encoded key of the row.
    An entry may be outdated. ``millis`` maps each key to the timestamp of its valid entry.
    """

    heap: list[tuple[int, bytes]] = field(factory=list)
    millis: dict[bytes, int] = field(factory=dict)


class RowExpiry:
    """The rows that may expire, for all tables with a time to live. Tables that keep data for ever have no entries."""

    def __init__(self) -> None:
        self._tables: dict[int, _Awaited] = {}

    def expect(self, table: Table, key: bytes, row: StoredRow) -> None:
        """Add a stored row, to check it when its oldest version may expire."""
        awaited = self._tables.get(table.definition.number)
        if awaited is None:
            if table.definition.options.time_to_live_seconds < 0:
                return
            awaited = self._begin(table)
        _push(awaited, key, row)

    def forget(self, table: Table) -> None:
        """Forget all rows of a deleted table."""
        self._tables.pop(table.definition.number, None)

    def forget_row(self, table: Table, key: bytes) -> None:
        """Forget a deleted row. Its entry stays in the heap until the heap is rebuilt."""
        awaited = self._tables.get(table.definition.number)
        if awaited is not None and awaited.millis.pop(key, None) is not None:
            _compact(awaited)

    def is_due(self, table: Table, now_micros: int) -> bool:
        """Return whether ``due`` has a row to check. The row may turn out to have no expired version."""
        expired_before = table.expired_before_millis(now_micros)
        if expired_before is None:
            return False
        heap = self._awaited(table).heap
        return bool(heap) and heap[0][0] < expired_before

    def due(self, table: Table, now_micros: int) -> Iterator[tuple[bytes, StoredRow | None]]:
        """Yield the key of each row that has expired versions, and the row without these versions.

        Yield ``None`` for the row if no version is left. Check at most ``ROWS_AT_ONCE`` rows.
        """
        expired_before = table.expired_before_millis(now_micros)
        if expired_before is None:
            return
        awaited = self._awaited(table)
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

    def _awaited(self, table: Table) -> _Awaited:
        return self._tables.get(table.definition.number) or self._begin(table)

    def _begin(self, table: Table) -> _Awaited:
        """Begin with a table that has no entries: add all its rows, and return them.

        For example, a table has no entries if it kept its data for ever until now.
        """
        awaited = self._tables[table.definition.number] = _Awaited()
        for key, row in table.rows.ascending(b"", HIGHEST_KEY):
            _push(awaited, key, row)
        return awaited


def _compact(awaited: _Awaited) -> None:
    """Rebuild the heap if most of its entries are outdated."""
    if len(awaited.heap) > FEW_ENTRIES and len(awaited.heap) > 2 * len(awaited.millis):
        awaited.heap = [(millis, key) for key, millis in awaited.millis.items()]
        heapify(awaited.heap)


def _push(awaited: _Awaited, key: bytes, row: StoredRow) -> None:
    """Add a row to the heap, with the timestamp of its oldest version.

    Do nothing if the heap has a valid entry of the row with the same or an earlier timestamp. An earlier timestamp does
    no harm: if ``due`` then finds that no version of the row has expired, it adds the row again.
    """
    millis = row.oldest_millis
    known = awaited.millis.get(key)
    if known is None or millis < known:
        awaited.millis[key] = millis
        heappush(awaited.heap, (millis, key))
        if known is not None:
            _compact(awaited)
