"""Compares two tables row by row, and names each difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import cast

from attrs import frozen
from tablestore import OTSClient

from streamclient.copying.target_table import described, shown_key
from streamclient.errors import ConfigurationError
from streamclient.records import ColumnValue, KeyValue
from streamclient.tablestore.ranges import TableScan, key_of
from streamclient.tablestore.signed_calls import SignedCalls
from streamclient.tablestore.stream_operations import TablestoreStreamApi
from streamclient.wire.plainbuffer import Row

Versions = Sequence[tuple[int, ColumnValue]]
"""Versions of one column as (timestamp in milliseconds, value), newest first."""


class DifferenceKind(Enum):
    """How a row differs."""

    MISSING = "missing in the destination"
    EXTRA = "only in the destination"
    COLUMN = "differs"


@frozen
class Difference:
    """One difference: a whole row, or one column of it."""

    kind: DifferenceKind
    key: tuple[KeyValue, ...]
    column: str = ""
    source: Versions | None = None
    destination: Versions | None = None

    def __str__(self) -> str:
        key = ", ".join(repr(value) for value in self.key)
        if not self.column:
            return f"row ({key}) is {self.kind.value}"
        return (
            f"row ({key}) column {self.column!r}: source {_shown(self.source)}, destination {_shown(self.destination)}"
        )


@frozen
class TableRow:
    """A row as a scan reads it."""

    key: tuple[KeyValue, ...]
    columns: Mapping[str, Versions]


def compare_tables(
    source: OTSClient,
    source_table: str,
    destination: OTSClient,
    table: str,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Difference]:
    """Differences in key order. ``progress`` is told how many rows were compared, with each that either table has.

    Both tables are read while they may change: compare when nothing is written, or expect the latest changes here.
    Values are equal if their types are, too: 1, 1.0 and true are different, and so are 0.0 and -0.0.

    Raises:
        ConfigurationError: the tables have different keys.
        StreamClientException: one of them is not there.
    """
    wanted, found = described(source, source_table, "source"), described(destination, table, "destination")
    key, other = wanted.definition.primary_key, found.definition.primary_key
    if key != other:
        raise ConfigurationError(
            f"the key of the source table {source_table!r} is {shown_key(key)}, that of the destination {table!r} "
            f"{shown_key(other)}: their rows cannot be compared"
        )
    versions = wanted.options.max_versions or 1
    yield from compare_rows(
        scan(source, source_table, versions), scan(destination, table, versions), progress or _no_progress
    )


def compare_rows(
    source: Iterator[TableRow], destination: Iterator[TableRow], progress: Callable[[int], None]
) -> Iterator[Difference]:
    """Differences of two sequences of rows, both in ascending order of keys."""
    other = next(destination, None)
    compared = 0
    for row in source:
        while other is not None and other.key < row.key:
            progress(compared := compared + 1)
            yield Difference(DifferenceKind.EXTRA, other.key)
            other = next(destination, None)
        progress(compared := compared + 1)
        if other is None or other.key != row.key:
            yield Difference(DifferenceKind.MISSING, row.key)
            continue
        yield from _column_differences(row, other)
        other = next(destination, None)
    while other is not None:
        progress(compared := compared + 1)
        yield Difference(DifferenceKind.EXTRA, other.key)
        other = next(destination, None)


def _column_differences(row: TableRow, other: TableRow) -> Iterator[Difference]:
    for name in sorted(row.columns.keys() | other.columns.keys()):
        here, there = row.columns.get(name), other.columns.get(name)
        if not _are_equal(here, there):
            yield Difference(DifferenceKind.COLUMN, row.key, name, here, there)


def _are_equal(here: Versions | None, there: Versions | None) -> bool:
    """Whether they are the same versions; by ``==`` alone 1, 1.0 and true were, and 0.0 and -0.0."""
    return here == there and _exact(here or ()) == _exact(there or ())


def _exact(versions: Versions) -> list[tuple[type, object]]:
    return [(type(value), value.hex() if isinstance(value, float) else value) for _, value in versions]


def scan(client: OTSClient, table: str, max_versions: int) -> Iterator[TableRow]:
    """Every row of a table in key order, with so many versions; pages are read as they are needed."""
    names = [name for name, _ in TablestoreStreamApi(client).describe_table(table).definition.primary_key]
    found = TableScan(calls=SignedCalls(client), table=table, key=names, max_versions=max_versions)
    return map(_row, found.rows())


def _row(row: Row) -> TableRow:
    columns: dict[str, list[tuple[int, ColumnValue]]] = {}
    for cell in row.cells:
        columns.setdefault(cell.name, []).append((cast(int, cell.timestamp_millis), cast(ColumnValue, cell.value)))
    return TableRow(
        key_of(row),
        {name: tuple(sorted(versions, key=lambda each: -each[0])) for name, versions in columns.items()},
    )


def _shown(versions: Versions | None) -> str:
    if not versions:
        return "has none"
    return ", ".join(f"{value!r}@{timestamp}" for timestamp, value in versions)


def _no_progress(count: int) -> None:
    """Nobody asked."""
