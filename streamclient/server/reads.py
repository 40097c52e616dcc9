"""What a read returns of a row: which columns, which versions, and whether the row at all."""

from __future__ import annotations

from attrs import frozen

from streamclient.server.filters import ColumnPagination, RowFilter, matches
from streamclient.server.rows import Columns, KeyNames, StoredRow, Version, make_row
from streamclient.server.tables import Table


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
    def selects_columns(self) -> bool:
        """Whether a row can be left out for having none of the selected columns or versions."""
        return bool(
            self.columns_to_get
            or self.time_range
            or self.pagination
            or self.start_column is not None
            or self.end_column is not None
        )


@frozen
class ReadRow:
    """A row as it is returned."""

    body: bytes
    """As a PlainBuffer row without header."""
    size_bytes: int


def read_row(table: Table, row: StoredRow | None, selection: Selection) -> ReadRow | None:
    """The selected part of a live row; ``None`` if it is absent, filtered out, or has nothing of what was selected.

    A request for key columns only gets the key of every row that exists.
    """
    if row is None or (selection.row_filter is not None and not matches(selection.row_filter, row.columns)):
        return None
    names = table.key_names
    limit = table.definition.options.max_versions
    if selection.max_versions is not None:
        limit = min(limit, selection.max_versions)
    if not selection.selects_columns and all(len(versions) <= limit for versions in row.columns.values()):
        return ReadRow(row.body(names), row.size_bytes)
    columns = _selected(row.columns, selection, limit)
    if not columns and selection.selects_columns and not _asks_for_key_only(names, selection):
        return None
    part = make_row(names, row.key, columns, row.written_millis)
    return ReadRow(part.body(names), part.size_bytes)


def _asks_for_key_only(names: KeyNames, selection: Selection) -> bool:
    return bool(selection.columns_to_get) and selection.columns_to_get <= frozenset(names)


def _selected(columns: Columns, selection: Selection, limit: int) -> Columns:
    selected: dict[str, tuple[Version, ...]] = {}
    for name in sorted(columns):
        if not _is_wanted(name, selection):
            continue
        versions = _versions(columns[name], selection.time_range)[:limit]
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
