"""Writes records to a destination table, and believes only the answer for each single row.

Cells keep the versions of the source, so that writing them again changes nothing.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType

from attrs import define, field

from streamclient.base import logs
from streamclient.base.backoff import doubling_millis, with_jitter
from streamclient.base.outages import OutageLog
from streamclient.base.reasons import counted
from streamclient.errors import ShutdownException, StreamClientError, StreamClientException
from streamclient.records import PrimaryKey, RecordColumn, RecordType, StreamRecord
from streamclient.tablestore.row_batches import Attempt, EncodedRow, attempts, batches
from streamclient.tablestore.signed_calls import SignedCalls
from streamclient.wire.record_decoding import writes_of
from streamclient.wire.schema import OperationType
from streamclient.worker.health import CallWatchdog

_log = logs.logger(__name__)
_outages = OutageLog(_log)

SHORTEST_PAUSE_MILLIS = 100
LONGEST_PAUSE_MILLIS = 10_000
"""The longest pause before rows are written again. Attempts go on without end, because giving up would lose the
rows."""

_KINDS: Mapping[RecordType, OperationType] = MappingProxyType(
    {
        RecordType.PUT: OperationType.PUT,
        RecordType.UPDATE: OperationType.UPDATE,
        RecordType.DELETE: OperationType.DELETE,
    }
)


class RowChange:
    """One change of one row of the destination: a record of the source, as the bytes that write it.

    The record object is made only if its key or its columns are asked for.
    """

    __slots__ = ("_index", "_records", "identity", "kind", "row")

    def __init__(
        self, kind: RecordType, identity: bytes, row: bytes, records: Sequence[StreamRecord], index: int
    ) -> None:
        self.kind: RecordType = kind
        """PUT, UPDATE or DELETE of the row."""
        self.identity: bytes = identity
        """Bytes that are equal only for equal keys."""
        self.row: bytes = row
        """The row as the request takes it, with its cells in the order of the log. It has no condition, because the
        order of writing decides."""
        self._records = records
        self._index = index

    @property
    def key(self) -> PrimaryKey:
        """The key of the row."""
        return self._records[self._index].primary_key

    @property
    def columns(self) -> tuple[RecordColumn, ...]:
        """The changes to its columns."""
        return self._records[self._index].columns

    def __repr__(self) -> str:
        return f"<{self.kind.value} of row {self.key!r}>"


def changes_of(records: Sequence[StreamRecord]) -> list[RowChange]:
    """Return the changes that records make, in order. Updates without columns change nothing, and are left out.

    Raises:
        CodecError: a record was made by hand and cannot be encoded.
    """
    return [
        RowChange(kind, identity, row, records, index)
        for index, (kind, identity, row) in enumerate(writes_of(records))
        if row
    ]


class RefusedRowError(StreamClientException):
    """The destination refuses a row for good. No position after the row is stored."""


@define
class WriteCounts:
    """The numbers of rows and requests so far. Changed under the writer's lock."""

    rows: int = 0
    requests: int = 0
    retried_rows: int = 0
    refused_rows: int = 0


def _never() -> bool:
    return False


@define(eq=False)
class DestinationWriter:
    """Writes to one table. Thread-safe: channels write side by side, each its own keys in order.

    ``write`` returns once every change is in the destination. Rows that failed for a passing reason are written again,
    alone, and no later change of their keys is written before them. A row that is refused for good goes to ``poison``
    or raises.
    """

    calls: SignedCalls
    table_name: str
    batch_rows: int
    poison: Callable[[RowChange, StreamClientError], None] | None = None
    """A function that keeps a refused row, instead of ending the replication. The row is stored durably when the
    function returns. Any thread may call it."""
    stop: threading.Event = field(factory=threading.Event)
    """Once set, ends waiting: ``write`` then raises."""
    counts: WriteCounts = field(factory=WriteCounts)
    dice: random.Random = field(factory=random.Random)
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(factory=threading.Lock)
    _writes: CallWatchdog = field(factory=lambda: CallWatchdog("no rows were written"))

    def write(self, changes: Iterable[RowChange], is_lost: Callable[[], bool] = _never) -> None:
        """Write changes in order, until ``is_lost`` says that another process writes these keys.

        Raises:
            RefusedRowError: the destination refuses a row for good, and there is no ``poison``.
            DependencyException: the destination cannot be written, or ``stop`` was set; some changes may be written.
            ShutdownException: the lease was lost; some changes may be written.
        """
        for batch in batches(changes, _IDENTITY, _size_of, most_rows=self.batch_rows):
            _require_lease(is_lost)
            for number, attempt in enumerate(attempts(self.calls, self.table_name, batch, _encoded)):
                self._count(attempt, is_retry=number > 0)
                for change, error in attempt.refused:
                    self._refuse(change, error)
                if attempt.left:
                    self._pause(attempt)
                    _require_lease(is_lost)

    def trouble(self, limit_seconds: float) -> str:
        """Return why no rows were written for longer than ``limit_seconds``; empty if some were.

        Any thread may call this.
        """
        return self._writes.trouble(self.clock(), limit_seconds)

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
        text = "%s of %s not written yet, again in %.1f s: %s"
        kind = (self.table_name, type(error), getattr(error, "code", None))
        _outages.log(logging.WARNING, kind, text, counted(len(attempt.left), "row"), self.table_name, pause, error)
        if self.stop.wait(pause):
            raise error

    def _count(self, attempt: Attempt[RowChange], *, is_retry: bool) -> None:
        written = attempt.sent - len(attempt.left) - len(attempt.refused)
        with self._lock:
            self.counts.requests += 1
            self.counts.rows += written
            self.counts.retried_rows += attempt.sent if is_retry else 0
            if attempt.left and not written:
                self._writes.failed(attempt.left[0][1], self.clock())
            else:
                self._writes.succeeded(self.clock())


def _require_lease(is_lost: Callable[[], bool]) -> None:
    """Refuse to write for a lost lease, because its next owner may have followed later changes of the same keys."""
    if is_lost():
        raise ShutdownException("the lease was lost while rows were written; its next owner writes them")


_IDENTITY = attrgetter("identity")


def _size_of(change: RowChange) -> int:
    return len(change.row)


def _encoded(change: RowChange) -> EncodedRow:
    return _KINDS[change.kind], change.row
