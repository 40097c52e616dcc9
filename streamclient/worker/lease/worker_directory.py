"""Rows of workers in the status table: the stored form of a session, and the condition of a ``WorkerWrite``.

These rows are in the same table as the leases, with another status type, so that Java workers never read them. Laws:

* a row is written whole once, by the write that expects it to be absent; every other write is refused if the row is
  absent, so that a late beat or wake never brings back a deleted row;
* a wake lets the service increase the column ``Wake``, without a condition on its value, so simultaneous wakes all
  count;
* a row that cannot be read is left out, and never fails a read. The worker then counts as a worker without a session,
  so its leases expire only by the lease duration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

from tablestore import (
    INF_MAX,
    INF_MIN,
    Condition,
    OTSClient,
    Row,
    RowExistenceExpectation,
    UpdateRowItem,
)

from streamclient.base import logs
from streamclient.base.kept_formats import FORMAT_COLUMN, KeptFormat
from streamclient.core.membership import SessionState, WorkerRow, WorkerWrite
from streamclient.core.write_rules import WriteOutcome
from streamclient.errors import StreamClientError
from streamclient.tablestore.ranges import scan
from streamclient.tablestore.row_batches import ROWS_PER_BATCH, ROWS_PER_READ, read_rows
from streamclient.worker.lease.lease_batches import send_rows
from streamclient.worker.lease.lease_rows import STATUS_VALUE, STREAM_ID, Cells, item_of, key_of

_log = logs.logger(__name__)

WORKER_STATUS_TYPE = "Worker"

NONCE = "Nonce"
BEAT = "Beat"
STATE = "State"
WAKE = "Wake"
INFO = "Info"
BALANCE_BY = "BalanceBy"

SIGNALS = (FORMAT_COLUMN, NONCE, BEAT, STATE, WAKE, BALANCE_BY)
"""The columns on which the decisions of workers depend."""

WORKER_FORMAT = KeptFormat("the worker row")
"""The format version of a worker row. Members are added to the JSON in ``Info`` without a new version."""

CELLS: Cells[WorkerRow] = {
    "nonce": lambda row: {NONCE: row.nonce},
    "beat": lambda row: {BEAT: row.beat},
    "state": lambda row: {STATE: row.state.value},
    "wake": lambda row: {WAKE: row.wake},
    "balance_by": lambda row: {BALANCE_BY: row.balance_by},
    "info": lambda row: {INFO: row.info},
}
"""The functions that return the columns of a worker row, one function for each field. The keys are the fields'
names."""

COLUMN_TYPES: Mapping[str, type] = {NONCE: str, BEAT: int, STATE: str, WAKE: int}

MOST_REPORTED = 1_000
"""The largest number of unreadable rows that are remembered, so that each row is logged once. With more rows, the
oldest may be logged again."""


class WorkerRows:
    """The worker rows of one stream. Thread-safe; no call is repeated."""

    def __init__(self, client: OTSClient, table_name: str, stream_id: str) -> None:
        self._client = client
        self._table_name = table_name
        self._stream_id = stream_id
        self._lock = Lock()
        self._reported: dict[str, None] = {}

    def read_all(self, *, with_info: bool) -> Sequence[WorkerRow]:
        """Return all rows, sorted by worker. The result is not a snapshot. Raises the errors of the SDK."""
        columns = [*SIGNALS, INFO] if with_info else list(SIGNALS)
        rows = list(scan(self._client, self._table_name, self._key(INF_MIN), self._key(INF_MAX), columns=columns))
        return [row for row in map(self._parsed, rows) if row is not None]

    def read(self, names: Sequence[str]) -> Sequence[WorkerRow]:
        """Return the rows of the workers ``names``, without ``info``, in any order; absent rows are left out.

        Raises:
            StreamClientError: a request failed, or a row could not be read.
        """
        read: list[WorkerRow | None] = []
        for start in range(0, len(names), ROWS_PER_READ):
            keys = [self._key(name) for name in names[start : start + ROWS_PER_READ]]
            rows = read_rows(self._client, self._table_name, keys, SIGNALS)
            if errors := [row for row in rows if isinstance(row, StreamClientError)]:
                raise errors[0]
            read += map(self._parsed, rows)
        return [row for row in read if row is not None]

    def wake(self, names: Sequence[str]) -> None:
        """Wake the workers ``names``, which must all be different; skip workers that have no row.

        Raises:
            DependencyException: it is uncertain whether all workers were woken.
        """
        for start in range(0, len(names), ROWS_PER_BATCH):
            items = [self._wake_item(name) for name in names[start : start + ROWS_PER_BATCH]]
            for answer in send_rows(self._client, self._table_name, items):
                if answer.outcome is WriteOutcome.UNCERTAIN and answer.error is not None:
                    raise answer.error

    def item(self, write: WorkerWrite) -> Any:
        """Return the write as one row of a BatchWriteRow request."""
        return item_of(write, self._key(write.worker_id), CELLS)

    def _wake_item(self, name: str) -> Any:
        row = Row(self._key(name), {"INCREMENT": [(WAKE, 1)]})
        return UpdateRowItem(row, Condition(RowExistenceExpectation.EXPECT_EXIST))

    def _parsed(self, row: Any) -> WorkerRow | None:
        if row is None:
            return None
        parsed = parse_worker(row)
        if isinstance(parsed, WorkerRow):
            return parsed
        with self._lock:
            is_news = parsed not in self._reported
            self._reported[parsed] = None
            if len(self._reported) > MOST_REPORTED:
                del self._reported[next(iter(self._reported))]
        if is_news:
            _log.warning("a row of status table %s is left out: %s", self._table_name, parsed)
        return None

    def _key(self, name: object) -> list[tuple[str, object]]:
        return key_of(self._stream_id, name, WORKER_STATUS_TYPE)


def parse_worker(row: Any) -> WorkerRow | str:
    """Return the worker's session that ``row`` holds, or a text that says why the row cannot be read."""
    key = {name: value for name, value, *_ in row.primary_key}
    cells = {name: value for name, value, *_ in row.attribute_columns or ()}
    name = key[STATUS_VALUE]
    if problem := WORKER_FORMAT.problem(cells.get(FORMAT_COLUMN)):
        return f"worker row {name}: {problem}"
    for column, expected in COLUMN_TYPES.items():
        if type(cells.get(column)) is not expected:
            return (
                f"column {column} of worker row {name} holds {cells.get(column)!r}, which is not of type "
                f"{expected.__name__}; delete the row"
            )
    states = {state.value: state for state in SessionState}
    if cells[STATE] not in states:
        return (
            f"column {STATE} of worker row {name} holds {cells[STATE]!r}, which is not one of {', '.join(states)}; "
            "delete the row"
        )
    info, balance_by = cells.get(INFO), cells.get(BALANCE_BY)
    return WorkerRow(
        worker_id=name,
        stream_id=key[STREAM_ID],
        nonce=cells[NONCE],
        beat=cells[BEAT],
        state=states[cells[STATE]],
        wake=cells[WAKE],
        info=info if isinstance(info, str) else "",
        balance_by=balance_by if isinstance(balance_by, str) else "",
    )
