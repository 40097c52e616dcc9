"""Rows with versions, and a table's rows in key order.

A stored row never changes: a write makes a new one and replaces it. What a row *is* at a moment depends on the
table's time to live, so readers always go through ``alive``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Protocol, cast

from streamclient.records import ColumnValue, KeyValue
from streamclient.wire.plainbuffer import HEADER, Cell, Row, decode_row, encode_row

Version = tuple[int, ColumnValue]
"""One version of a column: timestamp in milliseconds, and value."""

Columns = Mapping[str, tuple[Version, ...]]
"""Versions by column name, newest first; no column has an empty tuple."""

KeyNames = tuple[str, ...]

_NUMBER_BYTES = 8
VERSION_BYTES = 8
"""What a version's timestamp adds to a row's size, where it counts."""


def value_size(value: ColumnValue) -> int:
    """Bytes of a value by the service's rule for capacity and limits."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode())
    if isinstance(value, bool):
        return 1
    return _NUMBER_BYTES if isinstance(value, (int, float)) else len(value)


def key_size(names: Iterable[str], key: Iterable[KeyValue]) -> int:
    """Bytes of a key, names included."""
    return sum(map(value_size, names)) + sum(map(value_size, key))


class StoredRow:
    """One row with all stored versions. Treat as frozen; the encoded form is computed once, when first needed.

    ``size_bytes`` is what names and values take; ``version_count`` versions have a timestamp each besides, which some
    tables count.
    """

    __slots__ = ("_body", "columns", "key", "size_bytes", "version_count", "written_millis")

    def __init__(
        self, key: tuple[KeyValue, ...], columns: Columns, written_millis: int, size_bytes: int, version_count: int
    ) -> None:
        self.key = key
        self.columns = columns
        self.written_millis = written_millis
        self.size_bytes = size_bytes
        self.version_count = version_count
        self._body: bytes | None = None

    def body(self, names: KeyNames) -> bytes:
        """All versions as a PlainBuffer row without header."""
        if self._body is None:
            self._body = encode_body(names, self.key, all_cells(self.columns))
        return self._body


def make_row(names: KeyNames, key: tuple[KeyValue, ...], columns: Columns, written_millis: int) -> StoredRow:
    """A row from its parts, with its size."""
    size = key_size(names, key)
    count = 0
    for name, versions in columns.items():
        count += len(versions)
        size += len(versions) * value_size(name)
        for _, value in versions:
            size += value_size(value)
    return StoredRow(key, columns, written_millis, size, count)


def all_cells(columns: Columns) -> tuple[Cell, ...]:
    """Cells in the order of answers: columns by name, versions newest first."""
    return tuple(
        Cell(name, value, timestamp_millis=timestamp) for name in sorted(columns) for timestamp, value in columns[name]
    )


def encode_body(names: KeyNames, key: Iterable[KeyValue], cells: tuple[Cell, ...]) -> bytes:
    """A row without the PlainBuffer header, to be joined with others behind one header."""
    return encode_row(Row(tuple(zip(names, key, strict=True)), cells))[len(HEADER) :]


def decode_body(body: bytes, written_millis: int) -> StoredRow:
    """The row whose ``body`` was stored."""
    row = decode_row(HEADER + body)
    versions: dict[str, list[Version]] = {}
    for cell in row.cells:
        version = (cast(int, cell.timestamp_millis), cast(ColumnValue, cell.value))
        versions.setdefault(cell.name, []).append(version)
    columns = {name: tuple(listed) for name, listed in versions.items()}
    names = tuple(name for name, _ in row.primary_key)
    return make_row(
        names, cast("tuple[KeyValue, ...]", tuple(value for _, value in row.primary_key)), columns, written_millis
    )


class Versions:
    """The versions of one column while a write changes them: each step costs little, however many there are."""

    def __init__(self, versions: Iterable[Version] = (), max_versions: int | None = None) -> None:
        self._max_versions = max_versions
        self._values = dict(versions)
        self._oldest = list(self._values)
        self._newest = [-timestamp for timestamp in self._values]
        heapify(self._oldest)
        heapify(self._newest)

    def put(self, timestamp_millis: int, value: ColumnValue) -> None:
        """One more version, in the place of one with the same timestamp; the oldest goes if there are too many."""
        if timestamp_millis not in self._values:
            heappush(self._oldest, timestamp_millis)
            heappush(self._newest, -timestamp_millis)
        self._values[timestamp_millis] = value
        while self._max_versions is not None and len(self._values) > self._max_versions:
            self._values.pop(heappop(self._oldest), None)  # none where it was deleted before

    def delete(self, timestamp_millis: int) -> None:
        """No more the version of that timestamp, if there is one."""
        self._values.pop(timestamp_millis, None)

    def newest(self) -> Version | None:
        """The version that readers get first."""
        while self._newest and -self._newest[0] not in self._values:
            heappop(self._newest)
        return (-self._newest[0], self._values[-self._newest[0]]) if self._newest else None

    def sorted(self) -> tuple[Version, ...]:
        """All of them, newest first."""
        return tuple(sorted(self._values.items(), key=lambda version: -version[0]))


def alive(row: StoredRow | None, names: KeyNames, expired_before_millis: int | None) -> StoredRow | None:
    """The row as readers see it, without expired versions; ``None`` if there is none or nothing of it is left.

    ``expired_before_millis`` is the clock less the time to live, or ``None`` if the table keeps data for ever. A row
    without any column lives until its last write expires.
    """
    if row is None or expired_before_millis is None:
        return row
    if not row.columns:
        return row if row.written_millis >= expired_before_millis else None
    if all(versions[-1][0] >= expired_before_millis for versions in row.columns.values()):
        return row
    columns = {}
    for name, versions in row.columns.items():
        kept = tuple(version for version in versions if version[0] >= expired_before_millis)
        if kept:
            columns[name] = kept
    return make_row(names, row.key, columns, row.written_millis) if columns else None


class Rows(Protocol):
    """Rows of one table by encoded key, in key order."""

    def get(self, key: bytes) -> StoredRow | None:
        """The row, expired or not."""

    def ascending(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, StoredRow]]:
        """Rows with start <= key < end."""

    def descending(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, StoredRow]]:
        """Rows with start >= key > end, from the greatest down."""


class RowStore:
    """The rows of one table by encoded key, in key order."""

    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self._rows: dict[bytes, StoredRow] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def get(self, key: bytes) -> StoredRow | None:
        """The stored row, expired or not."""
        return self._rows.get(key)

    def put(self, key: bytes, row: StoredRow) -> None:
        """Store or replace a row."""
        if key not in self._rows:
            if not self._keys or key > self._keys[-1]:
                self._keys.append(key)
            else:
                insort(self._keys, key)
        self._rows[key] = row

    def delete(self, key: bytes) -> None:
        """Forget a row that is stored."""
        del self._rows[key]
        del self._keys[bisect_left(self._keys, key)]

    def ascending(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, StoredRow]]:
        """Rows with start <= key < end. Do not write while iterating."""
        for index in range(bisect_left(self._keys, start), bisect_left(self._keys, end)):
            key = self._keys[index]
            yield key, self._rows[key]

    def descending(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, StoredRow]]:
        """Rows with start >= key > end, from the greatest down. Do not write while iterating."""
        for index in range(bisect_right(self._keys, start) - 1, bisect_right(self._keys, end) - 1, -1):
            key = self._keys[index]
            yield key, self._rows[key]

    def count(self, start: bytes, end: bytes | None) -> int:
        """How many rows have start <= key < end; no end means up to the last."""
        stop = len(self._keys) if end is None else bisect_left(self._keys, end)
        return stop - bisect_left(self._keys, start)

    def key_at(self, start: bytes, offset: int) -> bytes:
        """The key of the row that stands ``offset`` rows after the first row at or after ``start``."""
        return self._keys[bisect_left(self._keys, start) + offset]
