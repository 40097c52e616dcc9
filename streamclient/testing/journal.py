"""The writes that reach a status table of the local Tablestore, with their callers and results.

These writes show on the server's side whether fencing works. Give each worker a client with a security token of its own
(``local.client(sts_token="worker-1, second life")``), and let a ``LeaseJournal`` observe the server. Afterwards
``judge_leases`` lists the accepted writes, and the refused writes, of workers that had lost the lease.
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
"""The holder of a lease that is free, deleted, or handed over but not yet taken by its new owner."""

_SINGLE_WRITES = {
    "PutRow": (OperationType.PUT, "row"),
    "UpdateRow": (OperationType.UPDATE, "row_change"),
    "DeleteRow": (OperationType.DELETE, "primary_key"),
}
"""For each operation on one row, by its name: the kind of write, and the request's field with the encoded row."""


@frozen
class LeaseWriting:
    """One write of a lease row that reached the table, accepted or refused."""

    at_nanos: int
    """The time of the server's response, in monotonic nanoseconds of this machine."""
    caller: str
    """The security token of the client that sent the write."""
    lease_key: str
    operation: OperationType
    columns: Mapping[str, ColumnValue]
    """The values of the columns that the write sets, without the columns that it deletes."""
    error_code: str = ""
    """The error code with which the server refused the write; empty if the server accepted the write."""

    @property
    def is_accepted(self) -> bool:
        """Whether the server accepted the write."""
        return not self.error_code

    @property
    def is_mark(self) -> bool:
        """Whether the write is a mark, which only asks the owner for the lease.

        A mark leaves the counter unchanged, and any worker may send it.
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
    """An observer of a ``LocalTablestore`` that collects all writes of lease rows in one status table. Thread-safe."""

    def __init__(self, status_table: str) -> None:
        self._status_table = status_table
        self._lock = threading.Lock()
        self._writings: list[LeaseWriting] = []

    def __call__(self, exchange: Exchange) -> None:
        """Record the writes of lease rows in ``exchange``, which is one request with its response."""
        if self._status_table in exchange.tables:
            written = list(_writings(exchange, self._status_table))
            with self._lock:
                self._writings += written

    @property
    def writings(self) -> Sequence[LeaseWriting]:
        """All recorded writes, in the order in which the server handled them."""
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
    """Yield the operation, the encoded row and the error code of each row that a request writes to ``table_name``."""
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
    """The result of ``judge_leases``: forbidden writes, refused writes, and moves of leases between workers."""

    fenced_writes: list[str] = field(factory=list)
    """The accepted writes that a law of ``judge_leases`` forbids. Correct fencing leaves this list empty."""
    refused_writes: list[str] = field(factory=list)
    """The writes of callers that had lost the lease, refused because their condition failed."""
    takes: list[LeaseWriting] = field(factory=list)
    """The accepted writes by which a caller became the owner."""
    moves: int = 0
    """The number of takes of a lease whose previous taker was another caller."""
    holders: dict[str, str] = field(factory=dict)
    """The holder of each lease after the last write, by lease key. A free lease has the holder ``NOBODY``. The lease of
    an ended shard keeps its last holder."""


def judge_leases(
    writings: Iterable[LeaseWriting], *, worker_of: Callable[[str], str] = lambda caller: caller
) -> LeaseHistory:
    """Replay the writes of a journal, and find the writes of callers that did not hold the lease.

    Marks are always allowed. Two laws decide which other writes are allowed:

    * Between two changes of ownership, only the owner's process writes the row.
    * Each write increments the row's counter by exactly one, which shows that the writer knew the present row.

    Any worker that keeps the second law may take a lease, or hand a lease over to another worker.

    A caller is one process of a worker; ``worker_of`` returns the name of the worker. A process that restarts under the
    name of a dead process may continue with the dead process's leases. So a later process of a worker is allowed to
    write where an earlier process of the same worker was the owner.
    """
    replay = _Replay(worker_of)
    for writing in writings:
        replay.add(writing)
    replay.history.holders = {key: held.holder for key, held in replay.rows.items()}
    return replay.history


@define
class _Held:
    """The state of one lease row after the writes that were replayed so far."""

    holder: str = NOBODY
    """The process that owns the lease, or ``NOBODY``."""
    counter: int | None = None
    takers: list[str] = field(factory=list)
    """The processes that took the lease, in the order of their takes."""


@define
class _Replay:
    worker_of: Callable[[str], str]
    history: LeaseHistory = field(factory=LeaseHistory)
    rows: dict[str, _Held] = field(factory=lambda: defaultdict(_Held))
    places: dict[str, int] = field(factory=dict)
    """The rank of each process, counted from 0 in the order of the processes' first writes."""

    def add(self, writing: LeaseWriting) -> None:
        """Judge the next write of the journal, and update the state of its row."""
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
    """Return the seconds from the loss of ``caller`` to the next take of each of its leases, by lease key.

    ``caller`` died or froze at ``lost_at_nanos``. A lease without a later take is left out, because its shard had ended
    or ``caller`` woke up and kept the lease.
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
