"""Rows of two tables, walked in the order of their keys, and the differences between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import TypeVar

from attrs import frozen

from streamclient.records import ColumnValue, KeyValue

Key = tuple[KeyValue, ...]
Cells = Mapping[str, Mapping[int, ColumnValue]]
"""Versions of each column, by their times in milliseconds."""

_Here = TypeVar("_Here")
_There = TypeVar("_There")


class DifferenceKind(Enum):
    """How a row differs; the texts complete "row (KEY) is ..."."""

    MISSING = "missing in the {copy}"
    EXTRA = "only in the {copy}"
    REPEATED = "in the {copy} more than once"
    COLUMN = "different"


@frozen
class Sides:
    """Names of the two tables."""

    source: str = "source"
    copy: str = "destination"


@frozen
class Difference:
    """One difference: a whole row, or one column of it."""

    kind: DifferenceKind
    key: Key
    column: str = ""
    """Empty for a whole row."""
    source: Mapping[int, ColumnValue] | None = None
    """Versions of the column in the source; ``None`` if it has none."""
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
    """Yield the differences of a row; ``None`` stands for a row that is not there."""
    if source is None or copy is None:
        if source is not copy:
            yield Difference(DifferenceKind.EXTRA if source is None else DifferenceKind.MISSING, key, sides=sides)
        return
    for name in sorted(source.keys() | copy.keys()):
        here, there = source.get(name), copy.get(name)
        if _exact(here or {}) != _exact(there or {}):
            yield Difference(DifferenceKind.COLUMN, key, name, here, there, sides)


def _exact(versions: Mapping[int, ColumnValue]) -> dict[int, tuple[type, object]]:
    """Return the versions with their types: by ``==`` alone 1, 1.0 and true are equal, and so are 0.0 and -0.0."""
    return {
        version: (type(value), value.hex() if isinstance(value, float) else value)
        for version, value in versions.items()
    }


def paired(
    source: Iterable[tuple[Key, _Here]], copy: Iterable[tuple[Key, _There]]
) -> Iterator[tuple[Key, _Here | None, _There | None]]:
    """Yield each key of two iterables in ascending order with what stands there, ``None`` where it is missing."""
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
    """Return what keys are sorted by: their values, and their types first, as damaged rows may have others."""
    return [(type(value).__name__, value) for value in key]
