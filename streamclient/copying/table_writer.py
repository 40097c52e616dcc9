"""Writes row changes to the destination, and believes only what every single row was answered."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from types import MappingProxyType

from attrs import define, field

from streamclient.base import logs
from streamclient.base.backoff import doubling_millis, with_jitter
from streamclient.base.outages import OutageLog
from streamclient.copying.table_changes import RowChange
from streamclient.errors import StreamClientError, StreamClientException
from streamclient.records import RecordType
from streamclient.tablestore.row_batches import Attempt, EncodedRow, attempts, batches
from streamclient.tablestore.signed_calls import SignedCalls
from streamclient.wire.schema import OperationType

_log = logs.logger(__name__)
_outages = OutageLog(_log)

SHORTEST_PAUSE_MILLIS = 100
LONGEST_PAUSE_MILLIS = 10_000
"""Pauses before rows are written again; without end, because giving up would lose them."""

_KINDS: Mapping[RecordType, OperationType] = MappingProxyType(
    {
        RecordType.PUT: OperationType.PUT,
        RecordType.UPDATE: OperationType.UPDATE,
        RecordType.DELETE: OperationType.DELETE,
    }
)


class RefusedRowError(StreamClientException):
    """The destination refuses a row for good. Nothing behind it is stored as done."""


@define
class WriteCounts:
    """What was written so far. Changed under the writer's lock."""

    rows: int = 0
    requests: int = 0
    retried_rows: int = 0
    refused_rows: int = 0


@define(eq=False)
class DestinationWriter:
    """Writes to one table. Thread-safe: channels write side by side, each its own keys in order.

    ``write`` returns once every change is in the destination. Rows that failed for a passing reason are written again,
    alone, and no later change of their keys before; a row that is refused for good goes to ``poison`` or raises.
    """

    calls: SignedCalls
    table_name: str
    batch_rows: int
    poison: Callable[[RowChange, StreamClientError], None] | None = None
    """Keeps a refused row, durably when it returns, instead of ending the replication. Any thread."""
    stop: threading.Event = field(factory=threading.Event)
    """Ends waiting: what was not written then raises."""
    counts: WriteCounts = field(factory=WriteCounts)
    dice: random.Random = field(factory=random.Random)
    _lock: threading.Lock = field(factory=threading.Lock)

    def write(self, changes: Iterable[RowChange]) -> None:
        """Write changes in order.

        Raises:
            RefusedRowError: the destination refuses a row for good, and there is no ``poison``.
            DependencyException: the destination cannot be written, or ``stop`` was set; some changes may be written.
        """
        for batch in batches(changes, _IDENTITY, _size_of, most_rows=self.batch_rows):
            for number, attempt in enumerate(attempts(self.calls, self.table_name, batch, _encoded)):
                self._count(attempt, is_retry=number > 0)
                for change, error in attempt.refused:
                    self._refuse(change, error)
                if attempt.left:
                    self._pause(attempt)

    def _refuse(self, change: RowChange, error: StreamClientError) -> None:
        if self.poison is None:
            text = f"{change.kind.value.lower()} of row {dict(change.key)}"
            raise RefusedRowError(f"table {self.table_name!r} refuses {text}: {error}")
        self.poison(change, error)
        with self._lock:
            self.counts.refused_rows += 1

    def _pause(self, attempt: Attempt[RowChange]) -> None:
        _, error = attempt.left[0]
        millis = doubling_millis(max(1, attempt.failures), SHORTEST_PAUSE_MILLIS, LONGEST_PAUSE_MILLIS)
        pause = with_jitter(millis, self.dice) / 1_000
        text = "%s rows of %s not written yet, again in %.1f s: %s"
        kind = (self.table_name, type(error), getattr(error, "code", None))
        _outages.log(logging.WARNING, kind, text, len(attempt.left), self.table_name, pause, error)
        if self.stop.wait(pause):
            raise error

    def _count(self, attempt: Attempt[RowChange], *, is_retry: bool) -> None:
        with self._lock:
            self.counts.requests += 1
            self.counts.rows += attempt.sent - len(attempt.left) - len(attempt.refused)
            self.counts.retried_rows += attempt.sent if is_retry else 0


_IDENTITY = attrgetter("identity")


def _size_of(change: RowChange) -> int:
    return len(change.row)


def _encoded(change: RowChange) -> EncodedRow:
    return _KINDS[change.kind], change.row
