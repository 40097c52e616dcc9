"""Request counters of one server."""

from __future__ import annotations

import threading

from attrs import astuple, define, frozen

from streamclient.server.capacity import NO_UNITS, Units

MOST_TALLIES = 4_096
"""The largest number of pairs of operation and table that have their own counts. The number is limited because a client
can send any name, and the server keeps each pair."""

LONGEST_NAME = 255
"""The largest number of characters of a name that are kept: as many as a table name may have. If a request names
several tables, the names are joined, and the limit holds for the joined text."""

OTHERS = "(others)"
"""The name for all names beyond ``MOST_TALLIES``."""


@frozen
class RequestCount:
    """The requests of one operation on one table since the start or the last reset.

    Only authenticated requests count. ``table`` is empty for a request that names no table; the names of several tables
    are joined by commas. Names are cut at 255 characters. Names beyond the first 4,096 pairs of operation and table
    count together as ``(others)``.
    """

    operation: str
    table: str
    requests: int
    errors: int
    """The number of requests that got an error answer, including injected errors. Errors of single rows in a batch do
    not count."""
    rows_read: int
    """The number of rows or stream records in answers."""
    rows_written: int
    """The number of rows that accepted requests asked to write. Rows that were refused one by one in a batch count,
    too."""
    read_units: int
    """The capacity units for reads that the answers state."""
    write_units: int
    """The capacity units for writes that the answers state."""


@define
class _Tally:
    requests: int = 0
    errors: int = 0
    rows_read: int = 0
    rows_written: int = 0
    read_units: int = 0
    write_units: int = 0


class RequestCounters:
    """Counts by operation and table. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tallies: dict[tuple[str, str], _Tally] = {}

    def add(
        self,
        operation: str,
        tables: tuple[str, ...],
        *,
        failed: bool = False,
        rows_read: int = 0,
        rows_written: int = 0,
        units: Units = NO_UNITS,
    ) -> None:
        """Count one request."""
        key = (_cut(operation), _cut(tables[0] if len(tables) == 1 else ",".join(tables)))
        with self._lock:
            tally = self._tallies.get(key)
            if tally is None and len(self._tallies) >= MOST_TALLIES:
                key = (OTHERS, OTHERS)
                tally = self._tallies.get(key)
            if tally is None:
                tally = self._tallies[key] = _Tally()
            tally.requests += 1
            tally.errors += failed
            tally.rows_read += rows_read
            tally.rows_written += rows_written
            tally.read_units += units.read
            tally.write_units += units.write

    def counts(self) -> tuple[RequestCount, ...]:
        """Return all counts, ordered by operation and table."""
        with self._lock:
            return tuple(
                RequestCount(operation, table, *astuple(tally))
                for (operation, table), tally in sorted(self._tallies.items())
            )

    def reset(self) -> None:
        """Start again from zero."""
        with self._lock:
            self._tallies.clear()


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
