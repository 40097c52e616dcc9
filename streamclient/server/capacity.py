"""Capacity units: the measure of reads and writes that Tablestore states in each answer.

The local server states them for information only. It never refuses a request because of its units.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from streamclient.wire import schema

_UNIT_BYTES = 4096


class Units(NamedTuple):
    """The capacity units for reads and for writes that an answer states."""

    read: int
    write: int


NO_UNITS = Units(0, 0)


def units(size_bytes: int) -> int:
    """Return the capacity units for ``size_bytes``: one for each 4 KB or part of 4 KB, and at least one."""
    return max(1, -(-size_bytes // _UNIT_BYTES))


@lru_cache(maxsize=1024)
def consumed(*, read: int = 0, write: int = 0) -> Any:
    """Return a ``ConsumedCapacity`` message for an answer. The result is cached and shared, so never change it.

    Both numbers are always set, because the Go SDK reads them without a check.
    """
    return schema.ConsumedCapacity(capacity_unit=schema.CapacityUnit(read=read, write=write))


def units_of(answer: Any) -> Units:
    """Return the capacity units that an answer states for the whole request."""
    cost = answer.consumed.capacity_unit
    return Units(cost.read, cost.write)


def units_of_rows(answer: Any) -> Units:
    """Return the sum of the capacity units that the answer to a batch request states for its rows."""
    costs = [row.consumed.capacity_unit for table in answer.tables for row in table.rows]
    return Units(sum(cost.read for cost in costs), sum(cost.write for cost in costs))
