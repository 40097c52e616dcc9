"""Capacity units: the consumption that an answer states.

They are for information; the server refuses no request for them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from streamclient.wire import schema

_UNIT_BYTES = 4096


class Units(NamedTuple):
    """The capacity units that an answer states."""

    read: int
    write: int


NO_UNITS = Units(0, 0)


def units(size_bytes: int) -> int:
    """Return the capacity units for ``size_bytes``: one unit for each 4 KB begun, and at least one."""
    return max(1, -(-size_bytes // _UNIT_BYTES))


@lru_cache(maxsize=1024)
def consumed(*, read: int = 0, write: int = 0) -> Any:
    """Return the message of consumed capacity that answers carry; copy the message and never change it.

    Both numbers are always set, because the Go SDK reads them without a check.
    """
    return schema.ConsumedCapacity(capacity_unit=schema.CapacityUnit(read=read, write=write))


def units_of(answer: Any) -> Units:
    """Return the units that an answer states for the whole request."""
    cost = answer.consumed.capacity_unit
    return Units(cost.read, cost.write)


def units_of_rows(answer: Any) -> Units:
    """Return the sum of the units that the answer to a batch states for its rows."""
    costs = [row.consumed.capacity_unit for table in answer.tables for row in table.rows]
    return Units(sum(cost.read for cost in costs), sum(cost.write for cost in costs))
