"""What a read returns of a row: which columns, which versions, and whether the row at all."""

from __future__ import annotations

from typing import cast

from attrs import frozen

from streamclient.records import KeyValue
from streamclient.server.capacity import units
from streamclient.server.filters import ColumnPagination, RowFilter, Visible, matches
from streamclient.server.keys import encode_key
from streamclient.server.rows import Columns, KeyNames, Rows, StoredRow, Version, alive, make_row
from streamclient.server.tables import Key, Table
from streamclient.wire.plainbuffer import HEADER


@frozen
class TimeRange:
    """Versions with start <= timestamp < end, in milliseconds."""

    start_millis: int
    end_millis: int

    @property
    def is_single(self) -> bool:
        """Whether it holds one timestamp only."""
        return self.end_millis - self.start_millis == 1


@frozen
class Selection:
    """The reading half of GetRow, GetRange and BatchGetRow."""

    columns_to_get: frozenset[str] = frozenset()
    """Empty for all."""
    max_versions: int | None = None
    """``None`` for as many as the table keeps."""
    time_range: TimeRange | None = None
    row_filter: RowFilter | None = None
    pagination: ColumnPagination | None = None
    start_column: str | None = None
    """Columns with start <= name < end."""
    end_column: str | None = None

    @property
    def fits_matrix(self) -> bool:
        """Whether rows can be returned as a matrix: named columns, one version of each."""
        return bool(self.columns_to_get) and self.max_versions == 1

    @property
    def is_partial(self) -> bool:
        """Whether it leaves out columns, or versions by their time."""
        return bool(
            self.columns_to_get
            or self.time_range
            or self.pagination
            or self.start_column is not None
            or self.end_column is not None
        )


@frozen
class ReadRow:
    """What a read makes of one row that is there."""

    row: StoredRow | None
    """The selected part; ``None`` if it is left out."""
    size_bytes: int
    """What the read is charged for it: the key and the selected columns, also of a row that is left out."""


def read_row(table: Table, row: StoredRow, selection: Selection) -> ReadRow:
    """The selected part of a live row.

    A row is left out if the filter does not let it pass, which sees the key and the selected columns with all their
    versions of the selected time; or if columns are named and it has none of them. A request for key columns only gets
    the key of every row.
    """
    names = table.key_names
    columns = _selected(row.columns, selection) if selection.is_partial else row.columns
    limit = table.definition.options.max_versions
    if selection.max_versions is not None:
        limit = min(limit, selection.max_versions)
    part = _with_newest(names, row, columns, limit)
    is_returned = (
        selection.row_filter is None or matches(selection.row_filter, Visible(names, row, columns))
    ) and bool(part.columns or not selection.columns_to_get or _asks_for_key_only(names, selection))
    return ReadRow(part if is_returned else None, table.size_of(part))


def _with_newest(names: KeyNames, row: StoredRow, columns: Columns, limit: int) -> StoredRow:
    """The row with these columns, and at most so many versions of each."""
    fits = all(len(versions) <= limit for versions in columns.values())
    if fits and columns is row.columns:
        return row
    if not fits:
        columns = {name: versions[:limit] for name, versions in columns.items()}
    return make_row(names, row.key, columns, row.written_millis)


def _asks_for_key_only(names: KeyNames, selection: Selection) -> bool:
    return bool(selection.columns_to_get) and selection.columns_to_get <= frozenset(names)


def _selected(columns: Columns, selection: Selection) -> Columns:
    selected: dict[str, tuple[Version, ...]] = {}
    for name in sorted(columns):
        versions = _versions(columns[name], selection.time_range) if _is_wanted(name, selection) else ()
        if versions:
            selected[name] = versions
    if selection.pagination is not None:
        window = selection.pagination
        kept = list(selected)[window.offset : window.offset + window.limit]
        selected = {name: selected[name] for name in kept}
    return selected


def _is_wanted(name: str, selection: Selection) -> bool:
    if selection.columns_to_get and name not in selection.columns_to_get:
        return False
    if selection.start_column is not None and name < selection.start_column:
        return False
    return selection.end_column is None or name < selection.end_column


def _versions(versions: tuple[Version, ...], time_range: TimeRange | None) -> tuple[Version, ...]:
    if time_range is None:
        return versions
    return tuple(version for version in versions if time_range.start_millis <= version[0] < time_range.end_millis)


def read_one(table: Table, rows: Rows, key: Key, selection: Selection, now_micros: int) -> tuple[bytes, int]:
    """The selected part of a row as a PlainBuffer frame, empty for none, and the read capacity it cost."""
    encoded = encode_key(cast(KeyValue, value) for _, value in key)
    row = alive(rows.get(encoded), table.key_names, table.expired_before_millis(now_micros))
    if row is None:
        return b"", 1
    found = read_row(table, row, selection)
    return (b"" if found.row is None else HEADER + found.row.body(table.key_names)), units(found.size_bytes)
