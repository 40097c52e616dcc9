"""Compares two tables row by row, and names each difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

from tablestore import OTSClient

from streamclient.copying.differences import Cells, Difference, Key, Sides, paired, row_differences
from streamclient.copying.target_table import described, shown_key
from streamclient.errors import ConfigurationError
from streamclient.records import ColumnValue
from streamclient.tablestore.ranges import TableScan, key_of
from streamclient.tablestore.signed_calls import SignedCalls
from streamclient.tablestore.stream_operations import TablestoreStreamApi
from streamclient.wire.plainbuffer import Row


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
    here, there = scan(source, source_table, versions), scan(destination, table, versions)
    yield from compare_rows(here, there, progress or _no_progress)


def compare_rows(
    source: Iterator[tuple[Key, Cells]], destination: Iterator[tuple[Key, Cells]], progress: Callable[[int], None]
) -> Iterator[Difference]:
    """Yield the differences of two sequences of rows, both in ascending order of keys."""
    sides = Sides()
    for compared, (key, here, there) in enumerate(paired(source, destination), 1):
        progress(compared)
        yield from row_differences(key, here, there, sides)


def scan(client: OTSClient, table: str, max_versions: int) -> Iterator[tuple[Key, Cells]]:
    """Yield every row of a table in key order with at most `max_versions` versions; read pages as they are needed."""
    names = [name for name, _ in TablestoreStreamApi(client).describe_table(table).definition.primary_key]
    found = TableScan(calls=SignedCalls(client), table=table, key=names, max_versions=max_versions)
    return ((key_of(row), _cells(row)) for row in found.rows())


def _cells(row: Row) -> Cells:
    columns: dict[str, dict[int, ColumnValue]] = {}
    for cell in row.cells:
        columns.setdefault(cell.name, {})[cast(int, cell.timestamp_millis)] = cast(ColumnValue, cell.value)
    return columns


def _no_progress(count: int) -> None:
    """Nobody asked."""
