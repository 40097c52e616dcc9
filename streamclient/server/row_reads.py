"""The selection of a read: which rows, columns and versions the read returns."""

from __future__ import annotations

from bisect import bisect_left
from typing import cast

from attrs import frozen

from streamclient.records import KeyValue
from streamclient.server.capacity import units
from streamclient.server.filters import ColumnPagination, RowFilter, judge_of
from streamclient.server.keys import encode_key
from streamclient.server.stored_rows import Rows, StoredRow, Version, alive, make_row
from streamclient.server.stored_tables import Key, Table
from streamclient.wire.plainbuffer import HEADER
from streamclient.wire.puts import Columns


@frozen
class TimeRange:
    """A range of version timestamps in milliseconds: start <= timestamp < end."""

    start_millis: int
    end_millis: int

    def versions(self, versions: tuple[Version, ...]) -> tuple[Version, ...]:
        """Return those of ``versions`` whose timestamps are in this range."""
        return tuple(version for version in versions if self.start_millis <= version[0] < self.end_millis)


@frozen
class Selection:
    """The columns, versions and rows that a GetRow, GetRange or BatchGetRow request selects."""

    columns_to_get: frozenset[str] = frozenset()
    """The names of the requested columns; empty for all columns."""
    max_versions: int | None = None
    """The largest number of versions of each column; ``None`` for as many as the table keeps."""
    time_range: TimeRange | None = None
    row_filter: RowFilter | None = None
    pagination: ColumnPagination | None = None
    start_column: str | None = None
    """The lower bound of a range of column names: start <= name < end. ``None`` means no bound."""
    end_column: str | None = None

    @property
    def fits_matrix(self) -> bool:
        """Whether the selected rows can be encoded as a matrix: the request names columns, and asks for one version."""
        return bool(self.columns_to_get) and self.max_versions == 1

    @property
    def takes_all(self) -> bool:
        """Whether the selection takes a whole row, unchanged, if the row has only one version of each column."""
        return self.row_filter is None and not self.is_partial

    @property
    def is_partial(self) -> bool:
        """Whether the selection may omit columns of a row, or versions outside a time range."""
        return bool(
            self.columns_to_get
            or self.time_range
            or self.pagination
            or self.start_column is not None
            or self.end_column is not None
        )


class RowReader:
    """A reader of rows of one table with one selection. Work that does not depend on the row is done only once."""

    def __init__(self, table: Table, selection: Selection) -> None:
        self._table = table
        self._selection = selection
        names, wanted = table.key_names, selection.columns_to_get
        self._judge = None if selection.row_filter is None else judge_of(selection.row_filter, names)
        self._is_partial = selection.is_partial
        # If the request names only key columns, the read returns every row.
        self._needs_a_column = not wanted <= frozenset(names)
        limit = table.definition.options.max_versions
        self._limit = limit if selection.max_versions is None else min(limit, selection.max_versions)

    def read(self, row: StoredRow) -> tuple[StoredRow | None, int]:
        """Return the selected part of a row, and the number of bytes to charge. The part of an omitted row is ``None``.

        ``row`` is a result of ``alive``. The row is omitted if the filter rejects it, or if the request names attribute
        columns and the row has none of the named columns. The filter sees the key and the selected columns, with all
        versions in the selected time range. The charge covers the key and the selected columns without timestamps, even
        if the row is omitted.
        """
        if self._selection.takes_all and row.is_single:
            return row, row.size_bytes
        key, stored = row.parts()
        columns = self._selected(stored) if self._is_partial else stored
        limit = self._limit
        fits = row.is_single or all(len(versions) <= limit for versions in columns.values())
        kept = columns if fits else {name: versions[:limit] for name, versions in columns.items()}
        part = row if kept is stored else make_row(self._table.key_names, key, kept, row.written_millis)
        passes = self._judge is None or self._judge(key, columns)
        is_returned = passes and (not self._needs_a_column or bool(kept))
        return (part if is_returned else None), part.size_bytes

    def _selected(self, columns: Columns) -> Columns:
        selection = self._selection
        selected: dict[str, tuple[Version, ...]] = {}
        for name in self._names_of(columns):
            versions = columns[name]
            if selection.time_range is not None:
                versions = selection.time_range.versions(versions)
            if versions:
                selected[name] = versions
        if selection.pagination is not None:
            window = selection.pagination
            kept = list(selected)[window.offset : window.offset + window.limit]
            selected = {name: selected[name] for name in kept}
        return selected

    def _names_of(self, columns: Columns) -> list[str]:
        """Return the names in ``columns`` that the request selects, by a list or a range of names; ordered by name."""
        selection = self._selection
        names = sorted(selection.columns_to_get & columns.keys() if selection.columns_to_get else columns)
        start = 0 if selection.start_column is None else bisect_left(names, selection.start_column)
        end = len(names) if selection.end_column is None else bisect_left(names, selection.end_column)
        return names[start:end]


def find_row(table: Table, rows: Rows, key: Key, now_micros: int) -> StoredRow | None:
    """Return the row with the whole key ``key``, without expired versions.

    Return ``None`` if the row is absent or has expired completely.
    """
    encoded = encode_key(cast(KeyValue, value) for _, value in key)
    return alive(rows.get(encoded), table.key_names, table.expired_before_millis(now_micros))


def read_found(table: Table, row: StoredRow | None, selection: Selection) -> tuple[bytes, int]:
    """Return the selected part of a row as a PlainBuffer row, and the read units that the read costs.

    The PlainBuffer row has no bytes if ``row`` is ``None`` or the selection omits the row.
    """
    if row is None:
        return b"", 1
    part, size_bytes = RowReader(table, selection).read(row)
    return (b"" if part is None else HEADER + part.body(table.key_names)), units(size_bytes)
