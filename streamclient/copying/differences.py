"""Differences between two tables, row by row: of a mirror and its table, and of two tables of Tablestore."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, TypeVar, cast

from attrs import frozen

from streamclient.copying.target_table import described, shown_key
from streamclient.errors import ConfigurationError
from streamclient.records import ColumnValue, KeyValue
from streamclient.tablestore.ranges import TableScan, key_of
from streamclient.tablestore.signed_calls import SignedCalls
from streamclient.tablestore.stream_operations import TablestoreStreamApi
from streamclient.wire.plainbuffer import Row

if TYPE_CHECKING:
    from tablestore import OTSClient

Key = tuple[KeyValue, ...]
Cells = Mapping[str, Mapping[int, ColumnValue]]
"""The versions of each column, by their time stamps in milliseconds."""

_Here = TypeVar("_Here")
_There = TypeVar("_There")


class DifferenceKind(Enum):
    """The kinds of differences; the texts complete "row (KEY) is ..."."""

    MISSING = "missing in the {copy}"
    EXTRA = "only in the {copy}"
    REPEATED = "in the {copy} more than once"
    COLUMN = "different"


@frozen
class Sides:
    """The names of the two compared tables."""

    source: str = "source"
    copy: str = "destination"


@frozen
class Difference:
    """One difference: a whole row, or one column of it."""

    kind: DifferenceKind
    key: Key
    column: str = ""
    """The column that differs; empty for a whole row."""
    source: Mapping[int, ColumnValue] | None = None
    """The versions of the column in the source; ``None`` if the source has none."""
    copy: Mapping[int, ColumnValue] | None = None
    sides: Sides = Sides()

    def __str__(self) -> str:
        key = ", ".join(map(repr, self.key))
        if not self.column:
            return f"row ({key}) is {self.kind.value.format(copy=self.sides.copy)}"
        here, there = _shown(self.source), _shown(self.copy)
        return f"row ({key}) column {self.column!r}: {self.sides.source} {here}, {self.sides.copy} {there}"


def _shown(versions: Mapping[int, ColumnValue] | None) -> str:
    if not versions:
        return "has none"
    return ", ".join(f"{value!r}@{version}" for version, value in sorted(versions.items(), reverse=True))


def row_differences(key: Key, source: Cells | None, copy: Cells | None, sides: Sides) -> Iterator[Difference]:
    """Yield the differences of a row between its cells in both tables; ``None`` stands for a missing row."""
    if source is None or copy is None:
        if source is not copy:
            yield Difference(DifferenceKind.EXTRA if source is None else DifferenceKind.MISSING, key, sides=sides)
        return
    for name in sorted(source.keys() | copy.keys()):
        here, there = source.get(name), copy.get(name)
        if _exact(here or {}) != _exact(there or {}):
            yield Difference(DifferenceKind.COLUMN, key, name, here, there, sides)


def _exact(versions: Mapping[int, ColumnValue]) -> dict[int, tuple[type, object]]:
    """Return the versions with their types.

    By ``==`` alone 1, 1.0 and true would be equal, and so would 0.0 and -0.0.
    """
    return {
        version: (type(value), value.hex() if isinstance(value, float) else value)
        for version, value in versions.items()
    }


def paired(
    source: Iterable[tuple[Key, _Here]], copy: Iterable[tuple[Key, _There]]
) -> Iterator[tuple[Key, _Here | None, _There | None]]:
    """Yield each key of two ascending iterables, in ascending order, with both values; ``None`` for a missing value."""
    others = iter(copy)
    other = next(others, None)
    for key, here in source:
        while other is not None and key_order(other[0]) < key_order(key):
            yield other[0], None, other[1]
            other = next(others, None)
        if other is not None and other[0] == key:
            yield key, here, other[1]
            other = next(others, None)
        else:
            yield key, here, None
    while other is not None:
        yield other[0], None, other[1]
        other = next(others, None)


def key_order(key: Key) -> list[tuple[str, KeyValue]]:
    """Return a sortable form of the key: its values, each after its type. Damaged rows may have other types."""
    return [(type(value).__name__, value) for value in key]


# --- two tables of Tablestore -----------------------------------------------------------------------------------------


def compare_tables(
    source: OTSClient,
    source_table: str,
    destination: OTSClient,
    table: str,
    progress: Callable[[int], object] = lambda rows: None,
) -> Iterator[Difference]:
    """Yield differences in key order. ``progress`` receives the number of compared rows, with each row of either table.

    Both tables are read while they may change: compare when nothing is written, or expect the latest changes here.
    Values are equal only if their types are: 1, 1.0 and true are different, and so are 0.0 and -0.0.

    Raises:
        ConfigurationError: the tables have different keys.
        StreamClientException: a table does not exist.
    """
    wanted, copied = described(source, source_table, "source"), described(destination, table, "destination")
    key, other = wanted.definition.primary_key, copied.definition.primary_key
    if key != other:
        raise ConfigurationError(
            f"the key of the source table {source_table!r} is {shown_key(key)}, the key of the destination {table!r} "
            f"{shown_key(other)}: their rows cannot be compared"
        )
    versions = wanted.options.max_versions or 1
    yield from compare_rows(scan(source, source_table, versions), scan(destination, table, versions), progress)


def compare_rows(
    source: Iterator[tuple[Key, Cells]], destination: Iterator[tuple[Key, Cells]], progress: Callable[[int], object]
) -> Iterator[Difference]:
    """Yield the differences of two sequences of rows, both in ascending order of keys."""
    sides = Sides()
    for compared, (key, here, there) in enumerate(paired(source, destination), 1):
        progress(compared)
        yield from row_differences(key, here, there, sides)


def scan(client: OTSClient, table: str, max_versions: int) -> Iterator[tuple[Key, Cells]]:
    """Yield every row of a table in key order, with at most ``max_versions`` versions.

    Pages are read as they are needed.
    """
    names = [name for name, _ in TablestoreStreamApi(client).describe_table(table).definition.primary_key]
    rows = TableScan(calls=SignedCalls(client), table=table, key=names, max_versions=max_versions).rows()
    return ((key_of(row), _cells(row)) for row in rows)


def _cells(row: Row) -> Cells:
    columns: dict[str, dict[int, ColumnValue]] = {}
    for cell in row.cells:
        columns.setdefault(cell.name, {})[cast(int, cell.timestamp_millis)] = cast(ColumnValue, cell.value)
    return columns
