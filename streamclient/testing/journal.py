"""The requests to write into a status table of the local Tablestore: their callers and their results.

This is the judge of fencing on the server's side. Give each worker a client with a security token of its own
(``local.client(sts_token="worker-1, second life")``), and let a ``LeaseJournal`` observe the server. Afterwards
``judge_leases`` names every accepted write from a worker that had lost the lease, and every such write that was
refused.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import define, field, frozen

from streamclient.model import CheckpointPosition
from streamclient.records import ColumnValue
from streamclient.server import Exchange
from streamclient.wire import schema
from streamclient.wire.plainbuffer import CellOperation, Row, decode_row
from streamclient.wire.schema import OperationType
from streamclient.wire.service_errors import CONDITION_CHECK_FAIL
from streamclient.worker.lease.lease_rows import (
    CHECKPOINT,
    COUNTER,
    LEASE_STATUS_TYPE,
    OWNER,
    STATUS_TYPE,
    STATUS_VALUE,
    STEALER,
)

NOBODY = ""
"""The holder of a lease that is free, gone, or handed over and not yet picked up."""

_SINGLE_WRITES = {
    "PutRow": (OperationType.PUT, "row"),
    "UpdateRow": (OperationType.UPDATE, "row_change"),
    "DeleteRow": (OperationType.DELETE, "primary_key"),
}
"""The operations on one row: for each, its kind and the field of the request that holds the row."""


@frozen
class LeaseWriting:
    """One write of a lease row that reached the table."""

    at_nanos: int
    """Monotonic nanoseconds of this machine at the time of the answer."""
    caller: str
    """The security token of the client that sent the write."""
    lease_key: str
    operation: OperationType
    columns: Mapping[str, ColumnValue]
    """The columns that the write puts; columns that it deletes are left out."""
    error_code: str = ""
    """The reason why the write was not applied; empty if it was applied."""

    @property
    def is_accepted(self) -> bool:
        """Whether the row was changed."""
        return not self.error_code

    @property
    def is_mark(self) -> bool:
        """Whether the write only requests the lease.

        Such a write leaves the counter unchanged, and any worker may send it.
        """
        return COUNTER not in self.columns and self.operation is not OperationType.DELETE

    @property
    def is_take(self) -> bool:
        """Whether the caller becomes the owner by this write."""
        return bool(self.columns.get(OWNER)) and not self.columns.get(STEALER)

    def __str__(self) -> str:
        columns = ", ".join(f"{name}={value!r}" for name, value in sorted(self.columns.items()))
        verdict = self.error_code or "accepted"
        return (
            f"{self.operation.name} of {self.lease_key} by {self.caller or 'an unknown caller'}, {verdict}: {columns}"
        )


class LeaseJournal:
    """Observes a ``LocalTablestore`` and keeps the writes of lease rows in one status table. Thread-safe."""

    def __init__(self, status_table: str) -> None:
        self._status_table = status_table
        self._lock = threading.Lock()
        self._writings: list[LeaseWriting] = []

    def __call__(self, exchange: Exchange) -> None:
        """Record the lease writes of an exchange, if there are any."""
        if self._status_table in exchange.tables:
            written = list(_writings(exchange, self._status_table))
            with self._lock:
                self._writings += written

    @property
    def writings(self) -> Sequence[LeaseWriting]:
        """All writes so far, in the order in which they took effect."""
        with self._lock:
            return list(self._writings)


def _writings(exchange: Exchange, table_name: str) -> Iterator[LeaseWriting]:
    at_nanos = time.monotonic_ns()
    for operation, data, error_code in _rows(exchange, table_name):
        row = decode_row(data)
        key = dict(row.primary_key)
        if key.get(STATUS_TYPE) == LEASE_STATUS_TYPE:
            columns = _put_columns(row)
            yield LeaseWriting(at_nanos, exchange.caller, str(key[STATUS_VALUE]), operation, columns, error_code)


def _put_columns(row: Row) -> dict[str, ColumnValue]:
    return {
        cell.name: cell.value
        for cell in row.cells
        if cell.operation is CellOperation.PUT and isinstance(cell.value, int | float | str | bytes)
    }


def _rows(exchange: Exchange, table_name: str) -> Iterator[tuple[OperationType, bytes, str]]:
    """Yield each row of a writing request: the operation, the row as it is stored, and the error code."""
    refused = "" if exchange.http_status == 200 else schema.parse(schema.Error, exchange.answer).code
    if exchange.operation == "BatchWriteRow":
        messages = schema.OPERATIONS[exchange.operation]
        request = schema.parse(messages.request, exchange.request)
        answers = {} if refused else _answers(schema.parse(messages.response, exchange.answer))
        for table in request.tables:
            codes = answers.get(table.table_name, [refused] * len(table.rows))
            for row, code in zip(table.rows, codes, strict=True):
                if table.table_name == table_name:
                    yield OperationType(row.type), row.row_change, code
    elif exchange.operation in _SINGLE_WRITES:
        kind, name = _SINGLE_WRITES[exchange.operation]
        request = schema.parse(schema.OPERATIONS[exchange.operation].request, exchange.request)
        yield kind, getattr(request, name), refused


def _answers(response: Any) -> dict[str, list[str]]:
    return {table.table_name: [_code(row) for row in table.rows] for table in response.tables}


def _code(row: Any) -> str:
    return "" if row.is_ok else str(row.error.code)


@define
class LeaseHistory:
    """The result of judging a journal."""

    fenced_writes: list[str] = field(factory=list)
    """The accepted writes of a caller that did not hold the lease. Correct fencing leaves this list empty."""
    refused_writes: list[str] = field(factory=list)
    """Writes of a caller that had lost the lease, refused by their condition."""
    takes: list[LeaseWriting] = field(factory=list)
    """Accepted writes by which a caller became the owner."""
    moves: int = 0
    """The number of takes of a lease that another caller had before."""
    holders: dict[str, str] = field(factory=dict)
    """The final holder of each lease: ``NOBODY`` if it is free, the last holder if its shard has ended."""


def judge_leases(
    writings: Iterable[LeaseWriting], *, worker_of: Callable[[str], str] = lambda caller: caller
) -> LeaseHistory:
    """Replay the writes of a journal, and find the writes of workers that did not hold the lease.

    Two laws decide that:

    * between two changes of ownership only the owner's process renews, checkpoints, and so on;
    * every write of the row increments its counter by exactly one, so each writer knew the present row. A worker that
      knows the row, and saw it unchanged for a lease duration, may take the lease, or hand it over to another worker.

    Callers are processes; ``worker_of`` returns the worker of a process. A process that was restarted under its name
    usually takes its leases anew. If the last write of the dead process looks like the new one's own take, the new
    process may go on with the lease: a later process counts as the heir of an earlier one.
    """
    replay = _Replay(worker_of)
    for writing in writings:
        replay.add(writing)
    replay.history.holders = {key: held.holder for key, held in replay.rows.items()}
    return replay.history


@define
class _Held:
    """The allowed writers of one row, according to its accepted writes."""

    holder: str = NOBODY
    """The process that took the lease last and still has it."""
    counter: int | None = None
    takers: list[str] = field(factory=list)
    """Every process that ever took the lease, in order."""


@define
class _Replay:
    worker_of: Callable[[str], str]
    history: LeaseHistory = field(factory=LeaseHistory)
    rows: dict[str, _Held] = field(factory=lambda: defaultdict(_Held))
    places: dict[str, int] = field(factory=dict)
    """For each process, its place in the order in which the processes first wrote."""

    def add(self, writing: LeaseWriting) -> None:
        """Judge the next write by the present holder, and update the holder."""
        self.places.setdefault(writing.caller, len(self.places))
        held = self.rows[writing.lease_key]
        if writing.is_mark:
            return
        if not writing.is_accepted:
            self._refused(held, writing)
        elif writing.operation is OperationType.UPDATE:
            self._written(held, writing)
        else:
            held.holder = writing.caller if writing.is_take else NOBODY
            held.counter = _counter(writing)

    def _refused(self, held: _Held, writing: LeaseWriting) -> None:
        is_late = writing.caller != held.holder and writing.caller in held.takers and not writing.is_take
        if is_late and writing.error_code == CONDITION_CHECK_FAIL:
            self.history.refused_writes.append(str(writing))

    def _written(self, held: _Held, writing: LeaseWriting) -> None:
        caller, counter = writing.caller, _counter(writing)
        if held.counter is not None and counter != held.counter + 1:
            self.history.fenced_writes.append(f"{writing}; the counter was {held.counter}")
        held.counter = counter
        if writing.is_take:
            self.history.moves += held.takers[-1:] not in ([], [caller])
            self.history.takes.append(writing)
            held.takers.append(caller)
            held.holder = caller
        elif OWNER in writing.columns:
            held.holder = NOBODY
        elif caller == held.holder or self._is_heir(caller, held.holder):
            held.holder = caller
        else:
            self.history.fenced_writes.append(f"{writing}; the lease was held by {held.holder or 'no caller'}")

    def _is_heir(self, caller: str, holder: str) -> bool:
        if holder == NOBODY:
            return False
        return self.worker_of(caller) == self.worker_of(holder) and self.places[caller] > self.places[holder]


def _counter(writing: LeaseWriting) -> int | None:
    counter = writing.columns.get(COUNTER)
    return counter if isinstance(counter, int) else None


def recoveries(writings: Sequence[LeaseWriting], caller: str, lost_at_nanos: int) -> dict[str, float]:
    """Return, by lease key, the seconds for which each lease of a caller stayed without an owner.

    ``caller`` died or froze at ``lost_at_nanos``, and held these leases at that time. A lease that was never taken
    afterwards is left out: its shard had ended, or its holder woke up in time.
    """
    held: set[str] = set()
    found: dict[str, float] = {}
    for writing in writings:
        key = writing.lease_key
        if not writing.is_accepted or writing.is_mark:
            continue
        if writing.at_nanos < lost_at_nanos:
            if writing.is_take and writing.caller == caller:
                held.add(key)
            elif OWNER in writing.columns or _ends(writing) or writing.operation is OperationType.DELETE:
                held.discard(key)
        elif writing.is_take and key in held and key not in found:
            found[key] = (writing.at_nanos - lost_at_nanos) / 1e9
    return found


def _ends(writing: LeaseWriting) -> bool:
    return writing.columns.get(CHECKPOINT) == CheckpointPosition.SHARD_END
