"""Writes row changes to the destination, and believes only what every single row was answered."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType
from typing import Any, Protocol

from attrs import define, field, frozen

from streamclient.base import logs
from streamclient.base.backoff import doubling_millis, with_jitter
from streamclient.base.outages import OutageLog
from streamclient.copying.table_changes import RowChange, batches
from streamclient.errors import DependencyException, StreamClientError, StreamClientException
from streamclient.records import RecordType
from streamclient.tablestore.signed_calls import SignedCalls
from streamclient.wire import schema
from streamclient.wire.schema import OperationType, RowExistenceExpectation
from streamclient.wire.service_errors import classify, from_answer

_log = logs.logger(__name__)
_outages = OutageLog(_log)

SHORTEST_PAUSE_MILLIS = 100
LONGEST_PAUSE_MILLIS = 10_000
"""Pauses before rows are written again; without end, because giving up would lose them."""

_IGNORE = schema.Condition(row_existence=RowExistenceExpectation.IGNORE)

_KINDS: Mapping[RecordType, OperationType] = MappingProxyType(
    {
        RecordType.PUT: OperationType.PUT,
        RecordType.UPDATE: OperationType.UPDATE,
        RecordType.DELETE: OperationType.DELETE,
    }
)


class RefusedRowError(StreamClientException):
    """The destination refuses a row for good. Nothing behind it is stored as done."""


class PoisonSink(Protocol):
    """Where refused rows go instead of ending the replication."""

    def take(self, change: RowChange, error: StreamClientError) -> None:
        """Keep the change; it must be durable when this returns. Any thread."""


@frozen
class RowFailure:
    """What the destination said about one row that it did not write."""

    change: RowChange
    error: StreamClientError


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
    poison: PoisonSink | None = None
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
        for batch in batches(changes, self.batch_rows):
            self._write_batch(batch)

    def _write_batch(self, batch: Sequence[RowChange]) -> None:
        """Keys are different within a batch, so its failed rows can be repeated alone and in any order."""
        left = list(batch)
        failures = 0
        while left:
            failed = self._send(left)
            self._count(len(left), len(failed), is_retry=failures > 0)
            left = [failure.change for failure in failed if self._is_left(failure)]
            if left:
                failures += 1
                self._pause(failures, left, failed[0].error)

    def _is_left(self, failure: RowFailure) -> bool:
        """Whether the row has to be written again."""
        change, error = failure.change, failure.error
        if isinstance(error, DependencyException) and error.retriable:
            return True
        if self.poison is None:
            text = f"{change.kind.value.lower()} of row {dict(change.key)}"
            raise RefusedRowError(f"table {self.table_name!r} refuses {text}: {error}")
        self.poison.take(change, error)
        with self._lock:
            self.counts.refused_rows += 1
        return False

    def _pause(self, failures: int, left: Sequence[RowChange], error: StreamClientError) -> None:
        pause = with_jitter(doubling_millis(failures, SHORTEST_PAUSE_MILLIS, LONGEST_PAUSE_MILLIS), self.dice) / 1_000
        text = "%s rows of %s not written yet, again in %.1f s: %s"
        kind = (self.table_name, type(error), getattr(error, "code", None))
        _outages.log(logging.WARNING, kind, text, len(left), self.table_name, pause, error)
        if self.stop.wait(pause):
            raise error

    def _send(self, changes: Sequence[RowChange]) -> list[RowFailure]:
        """Send them once; those that were not written, in order."""
        rows = [
            schema.RowInBatchWriteRowRequest(type=_KINDS[each.kind], row_change=each.row, condition=_IGNORE)
            for each in changes
        ]
        table = schema.TableInBatchWriteRowRequest(table_name=self.table_name, rows=rows)
        try:
            response = self.calls.ask("BatchWriteRow", schema.BatchWriteRowRequest(tables=[table]), is_repeatable=False)
        except Exception as error:
            return self._failed(changes, classify(error, write=True, client=self.calls.client))
        results = [row for table in response.tables for row in table.rows]
        answered = zip_longest(changes, results[: len(changes)])
        return [
            RowFailure(change, _error_of(result)) for change, result in answered if result is None or not result.is_ok
        ]

    def _failed(self, changes: Sequence[RowChange], error: StreamClientError) -> list[RowFailure]:
        """The request as a whole was refused. One bad row can do that, so a refusal for good is narrowed down."""
        is_final = not (isinstance(error, DependencyException) and error.retriable)
        if not is_final or len(changes) == 1:
            return [RowFailure(change, error) for change in changes]
        middle = len(changes) // 2
        return [*self._send(changes[:middle]), *self._send(changes[middle:])]

    def _count(self, rows: int, failed: int, *, is_retry: bool) -> None:
        with self._lock:
            self.counts.requests += 1
            self.counts.rows += rows - failed
            self.counts.retried_rows += rows if is_retry else 0


def _error_of(result: Any) -> StreamClientError:
    if result is None:
        return from_answer("OTSInternalServerError", "the answer lacks this row", write=True)
    return from_answer(result.error.code, result.error.message, write=True)
