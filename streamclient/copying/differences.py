"""The differences between the rows of two tables: a table and its mirror, or two tables of Tablestore."""

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
"""The values of a row's cells, by the name of the column and the cell's version, a timestamp in milliseconds."""

_Here = TypeVar("_Here")
_There = TypeVar("_There")


class DifferenceKind(Enum):
    """The kinds of differences between two tables. The value of each kind completes the sentence "row (KEY) is ..."."""

    MISSING = "missing in the {copy}"
    EXTRA = "only in the {copy}"
    REPEATED = "in the {copy} more than once"
    COLUMN = "different"


@frozen
class Sides:
    """The nouns for the two compared tables in messages."""

    source: str = "source"
    copy: str = "destination"


@frozen
class Difference:
    """One difference between two tables, in a whole row or in one column of a row."""

    kind: DifferenceKind
    key: Key
    column: str = ""
    """The name of the column that differs; empty if the whole row is missing, extra or repeated."""
    source: Mapping[int, ColumnValue] | None = None
    """The column's values in the source, by version; ``None`` if the row has no such column in the source."""
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
    """Yield the differences between a row's cells in the ``source`` and in its ``copy``. ``None`` is a missing row."""
    if source is None or copy is None:
        if source is not copy:
            yield Difference(DifferenceKind.EXTRA if source is None else DifferenceKind.MISSING, key, sides=sides)
        return
    for name in sorted(source.keys() | copy.keys()):
        here, there = source.get(name), copy.get(name)
        if _exact(here or {}) != _exact(there or {}):
            yield Difference(DifferenceKind.COLUMN, key, name, here, there, sides)


def _exact(versions: Mapping[int, ColumnValue]) -> dict[int, tuple[type, object]]:
    """Return ``versions`` in a form that compares the types of the values, too.

    By ``==`` alone, the values 1, 1.0 and ``True`` would be equal, and 0.0 and -0.0 would be equal.
    """
    return {
        version: (type(value), value.hex() if isinstance(value, float) else value)
        for version, value in versions.items()
    }


def paired(
    source: Iterable[tuple[Key, _Here]], copy: Iterable[tuple[Key, _There]]
) -> Iterator[tuple[Key, _Here | None, _There | None]]:
    """Merge two iterables by their keys. Yield each key with its two values, or ``None`` for a missing value.

    Both iterables must be in ascending order of their keys.
    """
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
    """Return a sort key for the primary key ``key``, which compares the types of values before the values.

    In damaged rows, a key column may have values of several types, which Python cannot compare.
    """
    return [(type(value).__name__, value) for value in key]


# --- the comparison of two Tablestore tables --------------------------------------------------------------------------


def compare_tables(
    source: OTSClient,
    source_table: str,
    destination: OTSClient,
    table: str,
    progress: Callable[[int], object] = lambda rows: None,
) -> Iterator[Difference]:
    """Yield the differences between two tables of Tablestore, in the order of the key.

    The function calls ``progress`` for each compared row, with the number of rows so far. Compare tables while no
    program writes to them. Otherwise, changed rows may appear as differences. Values of different types count as
    different, for example 1, 1.0 and true. 0.0 and -0.0 count as different, too.

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
    """Yield the differences between two iterators of rows, both in ascending order of their keys."""
    sides = Sides()
    for compared, (key, here, there) in enumerate(paired(source, destination), 1):
        progress(compared)
        yield from row_differences(key, here, there, sides)


def scan(client: OTSClient, table: str, max_versions: int) -> Iterator[tuple[Key, Cells]]:
    """Return an iterator of a table's rows in the order of the key, with at most ``max_versions`` versions per column.

    The iterator requests a page of the table only when it needs the page's first row.
    """
    names = [name for name, _ in TablestoreStreamApi(client).describe_table(table).definition.primary_key]
    rows = TableScan(calls=SignedCalls(client), table=table, key=names, max_versions=max_versions).rows()
    return ((key_of(row), _cells(row)) for row in rows)


def _cells(row: Row) -> Cells:
    columns: dict[str, dict[int, ColumnValue]] = {}
    for cell in row.cells:
        columns.setdefault(cell.name, {})[cast(int, cell.timestamp_millis)] = cast(ColumnValue, cell.value)
    return columns
