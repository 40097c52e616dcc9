"""Rows with versions, and the store of a table's rows in key order.

The server keeps the row of a put as the put's bytes. If a stream record contains the whole row, the server keeps the
row only as a part of that record. So a million rows and their records need little more memory than the records alone.

A stored row never changes: a write makes a new row, which replaces the old row. Parts of a stored row may be past the
table's time to live. So every read calls ``alive``, which omits these parts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Protocol, cast

from streamclient.records import ColumnValue, KeyValue
from streamclient.server.keys import KeyRun, SortedKeys
from streamclient.wire.plainbuffer import HEADER, decode_row
from streamclient.wire.puts import Columns, Put, parts_of, read_parts, row_of, row_of_parts

Version = tuple[int, ColumnValue]
"""One version of a column: its timestamp in milliseconds, and its value."""

KeyNames = tuple[str, ...]

_NUMBER_BYTES = 8
VERSION_BYTES = 8
"""The number of bytes that a version's timestamp adds to the size of a row, in tables that count timestamps."""


_MOST_AS_BYTES = 25_000
"""The largest number of versions of a row that the server keeps as bytes. No request writes more cells, so only updates
make a larger row."""

_SIZES = tuple(range(4_096))
"""Shared integers for common sizes. A separate integer would take 32 bytes in every row."""


def value_size(value: ColumnValue) -> int:
    """Return the size of a value in bytes, by the service's rule for capacity units and limits."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode())
    if isinstance(value, bool):
        return 1
    return _NUMBER_BYTES if isinstance(value, (int, float)) else len(value)


def key_size(names: Iterable[str], key: Iterable[KeyValue]) -> int:
    """Return the size of a key in bytes, including the names of its columns."""
    return sum(map(value_size, names)) + sum(map(value_size, key))


_Parts = tuple[tuple[KeyValue, ...], Columns]


class StoredRow:
    """One row with all stored versions. Never change it.

    The object keeps the row as decoded values, as a put, or as bytes. Its methods convert the row to the other forms.

    ``size_bytes`` is the size of names and values, without timestamps. ``version_count`` is the number of versions of
    all columns. ``is_single`` is true if no column has two versions.
    """

    __slots__ = ("_data", "_oldest_millis", "_source", "is_single", "size_bytes", "version_count", "written_millis")

    def __init__(
        self,
        source: _Parts | Put | None,
        data: bytes | None,
        written_millis: int,
        *,
        size_bytes: int,
        version_count: int,
        oldest_millis: int | None,
        is_single: bool,
    ) -> None:
        self._source = source
        self._data = data
        """A PlainBuffer row without a header, or the stream record that contains the row."""
        self.written_millis: int = written_millis
        self.size_bytes: int = _SIZES[size_bytes] if size_bytes < len(_SIZES) else size_bytes
        self.version_count: int = version_count
        self._oldest_millis = oldest_millis
        self.is_single: bool = is_single

    @property
    def oldest_millis(self) -> int:
        """The timestamp of the oldest version; for a row without columns, the time of the last write.

        The value is computed at the first access.
        """
        if self._oldest_millis is None:
            oldest = (versions[-1][0] for versions in self.columns.values())
            self._oldest_millis = min(oldest, default=self.written_millis)
        return self._oldest_millis

    @property
    def key(self) -> tuple[KeyValue, ...]:
        """The values of the key columns."""
        return self.parts()[0]

    @property
    def columns(self) -> Columns:
        """The versions of each column, by name. Each access decodes the stored bytes, so keep the result."""
        return self.parts()[1]

    def parts(self) -> _Parts:
        """Return the key and the columns. This method is cheaper than ``key`` and ``columns`` together."""
        return self._source if isinstance(self._source, tuple) else read_parts(self.stored_form())

    def stored_form(self) -> bytes:
        """Return the bytes of the row, or of the stream record that contains the row, for ``puts.rows_of``.

        If the row is kept only as decoded values, call ``form`` instead.
        """
        if self._data is None:
            assert self._source is not None
            assert not isinstance(self._source, tuple)
            self._data = self._source.row(self.written_millis)
            self._source = None
        return self._data

    def body(self, names: KeyNames) -> bytes:
        """Return all versions as a PlainBuffer row without a header. Unlike ``form``, do not keep the bytes."""
        if self._data is None and isinstance(self._source, tuple):
            return row_of_parts(names, *self._source)
        return row_of(self.stored_form())

    def form(self, names: KeyNames) -> bytes:
        """Return the result of ``stored_form``. If the row is kept only as decoded values, encode it first.

        ``names`` are the names of the key columns.
        """
        if self._data is None and isinstance(self._source, tuple):
            self._data = row_of_parts(names, *self._source)
        return self.stored_form()

    def keep_in(self, record: bytes) -> None:
        """Keep this row only as a part of the stream record ``record``, which contains the whole row."""
        self._data, self._source = record, None


def row_of_put(put: Put, now_millis: int) -> StoredRow:
    """Return the row that a put stores. A put replaces the whole former row."""
    oldest = put.versions(now_millis)[0] if put.dated else now_millis
    return StoredRow(
        put,
        None,
        now_millis,
        size_bytes=put.size_bytes,
        version_count=put.cell_count,
        oldest_millis=oldest,
        is_single=True,
    )


def make_row(names: KeyNames, key: tuple[KeyValue, ...], columns: Columns, written_millis: int) -> StoredRow:
    """Return a row with these key values and columns; compute its size."""
    size = key_size(names, key) + sum(_column_size(*column) for column in columns.items())
    return _sized(key, columns, written_millis, size, sum(map(len, columns.values())))


def changed_row(
    before: StoredRow, columns: Columns, written_millis: int, *, more_bytes: int, more_versions: int
) -> StoredRow:
    """Return the row after an update of ``before``, with the columns ``columns``.

    ``more_bytes`` and ``more_versions`` are the changes of its size and of its number of versions.
    """
    size, count = before.size_bytes + more_bytes, before.version_count + more_versions
    return _sized(before.key, columns, written_millis, size, count)


def _column_size(name: str, versions: tuple[Version, ...]) -> int:
    return len(versions) * value_size(name) + sum(value_size(value) for _, value in versions)


def _sized(key: tuple[KeyValue, ...], columns: Columns, written_millis: int, size: int, count: int) -> StoredRow:
    return StoredRow(
        (key, columns),
        None,
        written_millis,
        size_bytes=size,
        version_count=count,
        oldest_millis=None,
        is_single=count == len(columns),
    )


def decode_body(body: bytes, written_millis: int) -> StoredRow:
    """Return the row with this stored ``body``.

    Decode the whole body, so that the server already notices damage when it starts. If the row has many versions, keep
    it as decoded values, as before the restart. Otherwise, each refused update would decode all of them again.
    """
    row = decode_row(HEADER + body)
    key, columns = parts_of(row)
    whole = make_row(tuple(name for name, _ in row.primary_key), key, columns, written_millis)
    if whole.version_count <= _MOST_AS_BYTES:
        whole.keep_in(body)
    return whole


_FEW_EDITS = 64
"""The number of changes up to which it is quicker to move the versions after each change than to copy all once more."""


class Versions:
    """The versions of one column while a write changes them. Each change is cheap, even with many versions.

    The changes stay apart from the stored versions. Only ``sorted`` copies the stored versions, once for all changes.
    """

    def __init__(
        self, stored: tuple[Version, ...] = (), max_versions: int | None = None, most_changes: int = 0
    ) -> None:
        """Begin with the versions ``stored``, newest first. At most ``most_changes`` changes follow.

        If ``max_versions`` was lowered, ``stored`` may have more versions. The changes can make room only for the first
        of these, so the others are dropped at once.
        """
        self._stored = stored
        self._max_versions = max_versions
        self._begin = 0
        self._end = len(stored) if max_versions is None else min(len(stored), max_versions + most_changes)
        """The stored versions from ``_begin`` to before ``_end`` are left, except those in ``_changed``."""
        self._changed: dict[int, ColumnValue | None] = {}
        """The changed versions by timestamp; ``None`` for a deleted version."""
        self._oldest: list[int] = []
        self._newest: list[int] = []
        """Heaps of the changed timestamps, and of their negatives. They may have timestamps of deleted versions."""
        self._count = self._end
        self.more_bytes: int = -sum(value_size(value) for _, value in stored[self._end :])
        """The change of the total size of the values, in bytes."""

    @property
    def more_versions(self) -> int:
        """The change of the number of versions."""
        return self._count - len(self._stored)

    def put(self, timestamp_millis: int, value: ColumnValue) -> None:
        """Put a version. The version replaces an existing version with the same timestamp.

        If the column then has more than ``max_versions`` versions, drop the oldest version.
        """
        if self._changed.get(timestamp_millis) is None:
            heappush(self._oldest, timestamp_millis)
            heappush(self._newest, -timestamp_millis)
        self.delete(timestamp_millis)
        self._changed[timestamp_millis] = value
        self._count += 1
        self.more_bytes += value_size(value)
        if self._max_versions is not None and self._count > self._max_versions:
            self._drop_surplus(self._max_versions)

    def delete(self, timestamp_millis: int) -> None:
        """Delete the version with this timestamp, if it exists."""
        value = self._value(timestamp_millis)
        if value is not None:
            self._changed[timestamp_millis] = None
            self._count -= 1
            self.more_bytes -= value_size(value)

    def delete_all(self) -> None:
        """Delete all versions."""
        left = self.sorted()
        self.more_bytes -= sum(value_size(value) for _, value in left)
        self._count = self._begin = self._end = 0
        for changes in (self._changed, self._oldest, self._newest):
            changes.clear()

    def newest(self) -> Version | None:
        """Return the newest version; ``None`` if no version is left."""
        stored, changed = self._stored, self._changed
        while self._begin < self._end and stored[self._begin][0] in changed:
            self._begin += 1
        while self._newest and changed[-self._newest[0]] is None:
            heappop(self._newest)
        unchanged = stored[self._begin] if self._begin < self._end else None
        if self._newest and (unchanged is None or -self._newest[0] > unchanged[0]):
            return -self._newest[0], cast(ColumnValue, changed[-self._newest[0]])
        return unchanged

    def sorted(self) -> tuple[Version, ...]:
        """Return all versions, newest first, but at most ``max_versions``."""
        if self._max_versions is not None and self._count > self._max_versions:
            self._drop_surplus(self._max_versions)
        stored, end = self._stored, self._end
        if not self._changed:
            return stored[:end]
        edits = [(*self._find(timestamp), self._new(timestamp)) for timestamp in sorted(self._changed, reverse=True)]
        if len(edits) == 1:
            ((place, after, new),) = edits
            return stored[:place] + new + stored[after:end]
        if len(edits) <= _FEW_EDITS:
            edited = list(stored[:end])
            for place, after, new in reversed(edits):
                edited[place:after] = new
            return tuple(edited)
        merged: list[Version] = []
        position = 0
        for place, after, new in edits:
            merged += stored[position:place] + new
            position = after
        return (*merged, *stored[position:end])

    def _find(self, timestamp_millis: int) -> tuple[int, int]:
        """Return where a timestamp has its place in the stored versions, and the place after the stored version."""
        stored, end = self._stored, self._end
        place = bisect_left(stored, -timestamp_millis, 0, end, key=_age)
        return place, place + (place < end and stored[place][0] == timestamp_millis)

    def _new(self, timestamp_millis: int) -> tuple[Version, ...]:
        value = self._changed[timestamp_millis]
        return () if value is None else ((timestamp_millis, value),)

    def _value(self, timestamp_millis: int) -> ColumnValue | None:
        if timestamp_millis in self._changed:
            return self._changed[timestamp_millis]
        place, after = self._find(timestamp_millis)
        return self._stored[place][1] if after > place else None

    def _drop_surplus(self, max_versions: int) -> None:
        stored, changed = self._stored, self._changed
        while self._count > max_versions:
            while self._end and stored[self._end - 1][0] in changed:
                self._end -= 1
            while self._oldest and changed[self._oldest[0]] is None:
                heappop(self._oldest)
            if self._oldest and (not self._end or self._oldest[0] < stored[self._end - 1][0]):
                self.delete(heappop(self._oldest))
            else:
                self._end -= 1
                self._count -= 1
                self.more_bytes -= value_size(stored[self._end][1])


def _age(version: Version) -> int:
    return -version[0]


def alive(row: StoredRow | None, names: KeyNames, expired_before_millis: int | None) -> StoredRow | None:
    """Return the visible part of a row, without expired versions; ``None`` if the whole row has expired.

    ``expired_before_millis`` is the clock's time minus the time to live; ``None`` if the table keeps data for ever. A
    row without columns expires one time to live after its last write.
    """
    if row is None or expired_before_millis is None:
        return row
    if row.oldest_millis >= expired_before_millis:
        return row
    key, found = row.parts()
    columns = {}
    for name, versions in found.items():
        kept = tuple(version for version in versions if version[0] >= expired_before_millis)
        if kept:
            columns[name] = kept
    return make_row(names, key, columns, row.written_millis) if columns else None


class Rows(Protocol):
    """The interface for reading the rows of one table by encoded key."""

    def get(self, key: bytes) -> StoredRow | None:
        """Return the row with this key, even if it has expired; ``None`` if no such row is stored."""

    def ascending(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, StoredRow]]:
        """Return the rows with start <= key < end, in key order."""

    def descending(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, StoredRow]]:
        """Return the rows with start >= key > end, the greatest key first."""


class RowStore:
    """The store of one table's rows by encoded key, in key order."""

    def __init__(self) -> None:
        self._rows: dict[bytes, StoredRow] = {}
        self._keys = SortedKeys(self._weigh)

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, key: bytes) -> StoredRow | None:
        """Return the row with this key, even if it has expired; ``None`` if no such row is stored."""
        return self._rows.get(key)

    def put(self, key: bytes, row: StoredRow) -> None:
        """Store a row. The row replaces a stored row with the same key."""
        before = self._rows.get(key)
        if before is None:
            run = self._keys.add(key)
        else:
            run = self._keys.run_of(key)
            run.size_bytes -= before.size_bytes
            run.version_count -= before.version_count
        run.size_bytes += row.size_bytes
        run.version_count += row.version_count
        self._rows[key] = row

    def delete(self, key: bytes) -> None:
        """Delete the row with this key, which must be stored."""
        row = self._rows.pop(key)
        run = self._keys.run_of(key)
        run.size_bytes -= row.size_bytes
        run.version_count -= row.version_count
        self._keys.remove(key)

    def _weigh(self, keys: Sequence[bytes]) -> tuple[int, int]:
        rows = [self._rows[key] for key in keys]
        return sum(row.size_bytes for row in rows), sum(row.version_count for row in rows)

    def runs(self) -> Sequence[KeyRun]:
        """Return all keys in order, divided into runs. Each run has the total size of its rows."""
        return self._keys.runs

    def ascending(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, StoredRow]]:
        """Return the rows with start <= key < end, in key order. Do not write during the iteration."""
        return ((key, self._rows[key]) for key in self._keys.ascending(start, end))

    def descending(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, StoredRow]]:
        """Return the rows with start >= key > end, the greatest key first. Do not write during the iteration."""
        return ((key, self._rows[key]) for key in self._keys.descending(start, end))

    def count(self, start: bytes, end: bytes | None) -> int:
        """Return the number of rows with start <= key < end. If ``end`` is ``None``, count all from ``start`` on."""
        return self._keys.count(start, end)

    def key_at(self, start: bytes, offset: int) -> bytes:
        """Return the key with the index ``offset`` among the keys from ``start`` on. The first of them has index 0."""
        return self._keys.at(start, offset)
