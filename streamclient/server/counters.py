"""The counters of a server's requests, by operation and table."""

from __future__ import annotations

import threading

from attrs import astuple, define, frozen

from streamclient.server.capacity import NO_UNITS, Units

MOST_TALLIES = 4_096
"""The largest number of pairs of an operation and a table that the server counts separately. Without this limit, a
client that invents names could fill the server's memory."""

LONGEST_NAME = 255
"""The largest number of characters that the counters keep of a name: as many as a table name may have. If a request
names several tables, the limit holds for the joined names."""

OTHERS = "(others)"
"""The name under which the server counts all pairs of operation and table after the first ``MOST_TALLIES``."""


@frozen
class RequestCount:
    """The counters of one operation on one table since the server's start or the last reset of the counters.

    Only authenticated requests count. ``table`` is empty for requests that name no table. If a request names several
    tables, ``table`` has their names joined by commas. The server truncates names after 255 characters. All pairs of
    operation and table after the first 4,096 pairs count together as ``(others)``.
    """

    operation: str
    table: str
    requests: int
    errors: int
    """The number of requests that got an error answer, including injected errors. Errors of single rows in a batch do
    not count."""
    rows_read: int
    """The number of rows or stream records that the answers contained."""
    rows_written: int
    """The number of rows in the write requests that the server accepted. This number includes rows that the server
    refused singly within an accepted batch."""
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
    """The request counts by operation and table. Thread-safe."""

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
        """Count one request of ``operation`` that names ``tables``."""
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
        """Return the counters of each pair of operation and table, ordered by operation and table."""
        with self._lock:
            return tuple(
                RequestCount(operation, table, *astuple(tally))
                for (operation, table), tally in sorted(self._tallies.items())
            )

    def reset(self) -> None:
        """Set all counts to zero."""
        with self._lock:
            self._tallies.clear()


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
