"""The writer of a replication's rows to the destination table. It checks the service's result for each single row.

Cells keep their versions from the source table. So a repeated write of changes ends with the same rows, if no change
deletes a single version. ``ReplicationProcessors`` writes whole rows in place of such changes.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType

from attrs import define, evolve, field

from streamclient.base import logs
from streamclient.base.backoff import doubling_millis, with_jitter
from streamclient.base.outages import OutageLog
from streamclient.base.reasons import counted
from streamclient.base.times import now_micros
from streamclient.destinations.folding.row_changes import CLOCKS_MARGIN_MICROS
from streamclient.errors import ShutdownException, StreamClientError, StreamClientException
from streamclient.records import ColumnOperation, PrimaryKey, RecordColumn, RecordType, StreamRecord
from streamclient.tablestore.row_batches import BYTES_PER_BATCH, Attempt, EncodedRow, attempts, batches
from streamclient.tablestore.signed_calls import SignedCalls
from streamclient.wire.plainbuffer import may_delete_one_version
from streamclient.wire.record_decoding import writes_of
from streamclient.wire.schema import OperationType
from streamclient.worker.health import CallWatchdog

_log = logs.logger(__name__)
_outages = OutageLog(_log)

SHORTEST_PAUSE_MILLIS = 100
LONGEST_PAUSE_MILLIS = 10_000
"""The longest pause, in milliseconds, before the writer repeats a failed write. The writer never gives up, because
otherwise rows would be lost."""

MOST_CELLS = 1_024
"""The largest number of cells in one write of a row. A row may have more cells, after several writes."""

MOST_ROW_BYTES = 4 * 1024 * 1024
"""The largest number of bytes of an encoded change that is written at once. The service accepts at least these changes,
because it counts less than the encoded bytes. A row may be larger, after several writes."""

_CELL_BYTES = 10
"""The encoded bytes of a cell, without its value, are at least this many."""

_CELL_ROOM = 64
"""The encoded bytes of a cell, without its name and a text or binary value, are at most this many."""

_KINDS: Mapping[RecordType, OperationType] = MappingProxyType(
    {
        RecordType.PUT: OperationType.PUT,
        RecordType.UPDATE: OperationType.UPDATE,
        RecordType.DELETE: OperationType.DELETE,
    }
)


class RowChange:
    """One change of one row of the destination table: a record of the source, encoded for a write.

    A record object is made only when a caller reads ``record``, ``key`` or ``columns``.
    """

    __slots__ = ("_index", "_records", "identity", "is_refused", "kind", "row", "whole")

    def __init__(
        self, kind: RecordType, identity: bytes, row: bytes, records: Sequence[StreamRecord], index: int
    ) -> None:
        self.kind: RecordType = kind
        """The kind of the change: PUT, UPDATE or DELETE."""
        self.identity: bytes = identity
        """The primary key of the row, encoded as bytes. Different keys have different bytes."""
        self.row: bytes = row
        """The change of the row as it is encoded in the request, with its cells in the order of the stream. The request
        has no condition for the row, because the writer keeps the changes of a row in order."""
        self.whole: RowChange | None = None
        """The change of which this change is a part; ``None`` if it is not a part."""
        self.is_refused: bool = False
        """Whether the destination has refused this change, or a part of it, for good."""
        self._records = records
        self._index = index

    @property
    def record(self) -> StreamRecord:
        """The record of the source that makes this change."""
        return self._records[self._index]

    @property
    def key(self) -> PrimaryKey:
        """The primary key of the row."""
        return self.record.primary_key

    @property
    def columns(self) -> tuple[RecordColumn, ...]:
        """The changes to the columns of the row."""
        return self.record.columns

    @property
    def deletes_one_version(self) -> bool:
        """Whether the change deletes a single version of a column."""
        return may_delete_one_version(self.row) and any(
            column.operation is ColumnOperation.DELETE_ONE_VERSION for column in self.columns
        )

    def __repr__(self) -> str:
        return f"<{self.kind.value} of row {self.key!r}>"


def changes_of(records: Sequence[StreamRecord]) -> list[RowChange]:
    """Return the changes that ``records`` make, in order. Leave out updates that change no column.

    Raises:
        CodecError: a record cannot be encoded. This occurs only for records that were not read from a stream.
    """
    return [
        RowChange(kind, identity, row, records, index)
        for index, (kind, identity, row) in enumerate(writes_of(records))
        if row
    ]


def parts_of(change: RowChange) -> Iterator[RowChange]:
    """Yield ``change`` in parts that the service accepts: usually only ``change`` itself.

    A PUT becomes a PUT of its first cells and UPDATEs with the others. If all parts are written in order, the row is
    the same as after the whole change. A part has at least one cell, also if this cell is too large.
    """
    size = len(change.row)
    has_few_cells = size <= MOST_CELLS * _CELL_BYTES or len(change.columns) <= MOST_CELLS
    if has_few_cells and size <= MOST_ROW_BYTES:
        yield change
        return
    kind = change.kind
    for part in _cut(change.columns):
        (made,) = changes_of([evolve(change.record, record_type=kind, columns=tuple(part))])
        made.whole = change
        yield made
        kind = RecordType.UPDATE


def _cut(columns: Sequence[RecordColumn]) -> Iterator[Sequence[RecordColumn]]:
    part: list[RecordColumn] = []
    size = 0
    for column in columns:
        bytes_of_column = _CELL_ROOM + _length(column.name) + _length(column.value)
        if part and (len(part) >= MOST_CELLS or size + bytes_of_column > BYTES_PER_BATCH):
            yield part
            part, size = [], 0
        part.append(column)
        size += bytes_of_column
    yield part


def _length(value: object) -> int:
    return len(value.encode()) if isinstance(value, str) else len(value) if isinstance(value, bytes | bytearray) else 0


def without_expired(change: RowChange, before_millis: int) -> list[RowChange] | None:
    """Return ``change`` without the cells whose versions are older than ``before_millis``; ``None`` if it has none.

    If no cell of a PUT is left, the row has expired, and the result is a DELETE. If no cell of an UPDATE is left, the
    result is empty.
    """
    columns = change.columns
    left = tuple(
        column
        for column in columns
        if column.operation is not ColumnOperation.PUT
        or column.timestamp_millis is None
        or column.timestamp_millis >= before_millis
    )
    if len(left) == len(columns):
        return None
    kind = RecordType.DELETE if change.kind is RecordType.PUT and not left else change.kind
    return changes_of([evolve(change.record, record_type=kind, columns=left)])


class RefusedRowError(StreamClientException):
    """The destination refuses a row for good. The replication stores no checkpoint that is past this row."""


@define
class WriteCounts:
    """The numbers of rows and requests that a writer has sent. The writer changes them while it holds its lock.

    A row that is written in parts counts once for each part.
    """

    rows: int = 0
    requests: int = 0
    retried_rows: int = 0
    refused_rows: int = 0


def _never() -> bool:
    return False


@define(eq=False)
class DestinationWriter:
    """Writes rows to one table. Several threads may write at the same time, if the keys of their rows differ.

    ``write`` returns once all changes are in the table. After a transient error, the writer repeats only the failed
    rows, before any later change of the same rows. A refused access key counts as a transient error, too. The
    repetitions end early only if ``stop`` is set or the lease is lost. If the service refuses a row for good, the
    writer passes the row to ``poison``. Without ``poison``, the writer raises an error.

    The service also refuses a cell that is older than the table's time to live. The source has lost such a cell, too.
    So the writer writes a refused change again without these cells, before any later change of the same row.

    If a row is too wide or too large for one write, the writer writes its change in parts, one after the other. Until
    the last part is written, readers see an incomplete row. If the service refuses a part, the whole change counts as
    refused, and its later parts are not written.
    """

    calls: SignedCalls
    table_name: str
    batch_rows: int
    poison: Callable[[RowChange, StreamClientError], None] | None = None
    """A function that stores a refused row durably, so that the replication goes on. Several threads may call it. With
    ``None``, a refused row ends the replication. The function gets the change with all its cells, also with those that
    have expired."""
    stop: threading.Event = field(factory=threading.Event)
    """An event that ends the pauses between attempts when a thread sets it. ``write`` then raises an error."""
    counts: WriteCounts = field(factory=WriteCounts)
    dice: random.Random = field(factory=random.Random)
    clock: Callable[[], float] = time.monotonic
    time_to_live_millis: int | None = None
    """The time to live of the destination table, in milliseconds; ``None`` keeps data forever."""
    micros: Callable[[], int] = now_micros
    """A function that returns the present time in microseconds since 1970."""
    _lock: threading.Lock = field(factory=threading.Lock)
    _writes: CallWatchdog = field(factory=lambda: CallWatchdog("no rows were written"))

    def write(self, changes: Iterable[RowChange], is_lost: Callable[[], bool] = _never) -> None:
        """Write ``changes`` in order. If ``is_lost`` returns ``True``, the lease is lost: stop with an error.

        Raises:
            RefusedRowError: the destination refuses a row for good, and ``poison`` is ``None``.
            DependencyException: ``stop`` was set while rows could not be written. Some changes may be written.
            ShutdownException: the lease is lost. Some changes may be written.
        """
        parts = (part for change in changes for part in parts_of(change))
        for batch in batches(parts, _IDENTITY, _size_of, most_rows=self.batch_rows):
            left = [part for part in batch if part.whole is None or not part.whole.is_refused]
            self._send(left, is_lost, {})

    def trouble(self, limit_seconds: float) -> str:
        """Return in words why writes have failed for longer than ``limit_seconds``; an empty text if they have not.

        Any thread may call this method.
        """
        return self._writes.trouble(self.clock(), limit_seconds)

    def _send(
        self, batch: Sequence[RowChange], is_lost: Callable[[], bool], complete: Mapping[bytes, RowChange]
    ) -> None:
        """Write ``batch``, changes of different rows, until each change is written or refused.

        If expired cells were left out of the changes, ``complete`` has the changes with all their cells, by row.
        """
        _require_lease(is_lost)
        for number, attempt in enumerate(attempts(self.calls, self.table_name, batch, _encoded)):
            self._count(attempt, is_retry=number > 0)
            again: list[RowChange] = []
            for change, error in attempt.refused:
                living = None if complete else self._living(change)
                if living is None:
                    self._refuse(complete.get(change.identity, change), error)
                else:
                    again += living
            if again:
                self._send(again, is_lost, {change.identity: change for change, _ in attempt.refused})
            if attempt.left:
                self._pause(attempt)
                _require_lease(is_lost)

    def _living(self, change: RowChange) -> list[RowChange] | None:
        """Return ``change`` without expired cells; ``None`` if no cell has expired.

        The clock of the service may be ahead of this machine's clock, and the service then refuses a cell earlier. So
        cells that expire within the margin of clocks count as expired.
        """
        if self.time_to_live_millis is None:
            return None
        return without_expired(change, (self.micros() + CLOCKS_MARGIN_MICROS) // 1_000 - self.time_to_live_millis)

    def _refuse(self, change: RowChange, error: StreamClientError) -> None:
        change = change.whole or change
        change.is_refused = True
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
    """Raise an error if the lease is lost, because the shard's next owner may already have written later changes."""
    if is_lost():
        raise ShutdownException("the lease was lost while rows were written; the shard's next owner writes them")


_IDENTITY = attrgetter("identity")


def _size_of(change: RowChange) -> int:
    return len(change.row)


def _encoded(change: RowChange) -> EncodedRow:
    return _KINDS[change.kind], change.row
