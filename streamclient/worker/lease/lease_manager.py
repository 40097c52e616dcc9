"""Leases in a Tablestore status table, shared with workers in other processes and with the Java stream client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from streamclient.base import checks, logs
from streamclient.base.backoff import LeaseRetryStrategy, decision_of
from streamclient.config import ClientConfig
from streamclient.core.events import NoteOrder
from streamclient.core.leases import LeaseWrite
from streamclient.core.membership import WorkerRow, WorkerWrite
from streamclient.core.write_rules import WriteKind, WriteOutcome
from streamclient.errors import ConfigurationError, DependencyException, StreamClientException
from streamclient.interfaces import IMetrics, RetryableAction
from streamclient.model import Lease
from streamclient.tablestore.own_table import OwnTable
from streamclient.tablestore.ranges import scan
from streamclient.tablestore.row_batches import batches, translated
from streamclient.worker.lease.audit_rows import put_note
from streamclient.worker.lease.lease_batches import send_rows
from streamclient.worker.lease.lease_epochs import EpochRows
from streamclient.worker.lease.lease_metering import metered
from streamclient.worker.lease.lease_rows import (
    READY_PROBE_KEY,
    STATUS_TABLE,
    UnreadableRow,
    end_key,
    first_key,
    key_of,
    own_problems,
    parse_row,
    row_item,
    written_columns,
)
from streamclient.worker.lease.lease_store import WriteAnswer
from streamclient.worker.lease.lease_verbs import WritingLeaseManager, check_worker_write, check_write
from streamclient.worker.lease.own_columns import OWN_COLUMNS
from streamclient.worker.lease.status_connection import check_client, for_lease_calls, without_retries
from streamclient.worker.lease.worker_directory import WorkerRows

_log = logs.logger(__name__)

Answer = TypeVar("Answer")

BYTES_PER_BATCH = 1024 * 1024
"""The largest number of bytes in one request. The service accepts 4 MB. A quarter of that leaves room for every
overhead, and a lease row has only a few hundred bytes."""

ROW_OVERHEAD_BYTES = 512
"""An upper bound of the bytes for column names, tags, checksums and conditions of one row in a request. The measured
bytes were below 400."""

OWN_CELL_BYTES = 64
"""An upper bound of the bytes for the name, tags and checksums of one of this package's own columns, and for its value
if the value is a number. Names have at most 17 letters."""

RETRIES_AT_MOST = 100
"""The largest number of retries of one call, for retry strategies that never give up."""


@checks.explains_names
class LeaseManager(WritingLeaseManager):
    """A lease manager that keeps the leases of one stream in a status table. Thread-safe.

    The manager uses the endpoint, credentials and signing of ``client``, but its own connections and retry policy. The
    client itself is not changed. ``client_config.lease_manager_retry_strategy`` decides about retries of reads, and of
    the table's creation. Writes of rows are sent once. Without a clear answer their outcome is UNCERTAIN; the caller
    reads the row back to find the outcome.

    Args:
        client: a ``tablestore.OTSClient``.
        status_table_name: the name of the table; see ``create_lease_table_if_not_exists``.
        stream_id: the stream to which the leases belong. One table may hold the leases of several streams.
        client_config: the settings, such as the capacity of the table and the lease duration. The lease duration limits
            the time-out of calls.
        clock: returns monotonic seconds.
        sleep: waits a number of seconds, between retries.
        metrics: counts requests and rows; ``streamclient.metrics.labelled`` adds labels.
    """

    def __init__(
        self,
        client: Any,
        status_table_name: str,
        stream_id: str,
        client_config: ClientConfig | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        metrics: IMetrics | None = None,
    ) -> None:
        checks.identifier.require("status_table_name", status_table_name)
        checks.identifier.require("stream_id", stream_id)
        checks.optional(checks.instance(ClientConfig)).require("client_config", client_config)
        checks.function("without arguments").require("clock", clock)
        checks.function("with a number of seconds").require("sleep", sleep)
        checks.optional(checks.implementation(IMetrics)).require("metrics", metrics)
        given = check_client(client)
        self._table_name = status_table_name
        self._stream_id = stream_id
        self._config = client_config if client_config is not None else ClientConfig()
        self._client = metered(for_lease_calls(given, self._config), metrics)
        table_client = metered(without_retries(given), metrics)
        self._table = OwnTable(
            table_client,
            status_table_name,
            STATUS_TABLE,
            clock,
            sleep,
            (self._config.status_table_read_capacity, self._config.status_table_write_capacity),
            self._config.max_wait_table_ready_time_millis,
            self._config.check_table_ready_interval_millis,
        )
        self._epochs = EpochRows(self._client, status_table_name, stream_id)
        self._workers = WorkerRows(self._client, status_table_name, stream_id)
        self._retry = self._config.lease_manager_retry_strategy or LeaseRetryStrategy()
        self._sleep = sleep
        # Each scan replaces these mappings as a whole, so that other threads can read them without a lock.
        self._unreadable: Mapping[str, UnreadableRow] = {}
        self._damaged: Mapping[str, str] = {}

    def create_lease_table_if_not_exists(self) -> bool:
        """Create the status table, or check the existing one; return whether this call created it.

        Raises:
            ConfigurationError: a table of that name exists, but has another key, lets rows expire, or forbids updates.
            DependencyException: the service refused or did not answer.
        """
        action = RetryableAction.LEASE_ACTION_CREATE_TABLE_IF_NOT_EXISTS
        return self._retried(action, self._table.create_if_absent)

    def wait_until_lease_table_ready(self) -> bool:
        """Wait until the table answers reads; return ``False`` after ``max_wait_table_ready_time_millis``."""
        return self._table.wait_until_ready(key_of(self._stream_id, READY_PROBE_KEY)) is None

    @property
    def table_problem(self) -> Exception | None:
        """The last error while the table was created or awaited; ``None`` after success. Usable from any thread."""
        return self._table.problem

    def list_leases(self) -> Sequence[Lease]:
        """Return all leases of the stream, sorted by lease key. The result is not an atomic snapshot.

        All pages are read, with the latest version of each column. Rows that are not leases are left out, and logged
        when they are first seen.
        """
        rows = self._retried(RetryableAction.LEASE_ACTION_LIST_LEASES, lambda: list(self._scan()))
        parsed = [parse_row(row) for row in rows]
        self._quarantine({row.lease_key: row for row in parsed if isinstance(row, UnreadableRow)})
        leases = [lease for lease in parsed if isinstance(lease, Lease)]
        self._report_damage(dict(zip((entry.lease_key for entry in parsed), map(own_problems, rows), strict=True)))
        return leases

    def get_lease(self, lease_key: str) -> Lease | None:
        """Return the lease, or ``None`` if the row does not exist or is not a lease."""
        row = self._retried(RetryableAction.LEASE_ACTION_GET_LEASE, lambda: self._read(lease_key))
        parsed = parse_row(row) if row is not None and row.primary_key else None
        others = {key: other for key, other in self._unreadable.items() if key != lease_key}
        if isinstance(parsed, Lease) or parsed is None:
            self._quarantine(others)
            return parsed
        self._quarantine({**others, lease_key: parsed})
        return None

    def write_many(self, writes: Sequence[LeaseWrite | WorkerWrite]) -> Sequence[WriteAnswer]:
        """Send writes in batches of up to 200 rows, each row with its own condition.

        Return one answer per write, in order. The writes are independent: if one fails, the others are still made. An
        invalid write is not sent; its answer has a ``ConfigurationError``. Writes to the same row are made one after
        the other.
        """
        answers: dict[int, WriteAnswer] = {}
        valid: list[tuple[int, LeaseWrite | WorkerWrite]] = []
        for index, write in enumerate(writes):
            try:
                _check(write, self._stream_id)
                valid.append((index, write))
            except ConfigurationError as error:
                answers[index] = WriteAnswer(WriteOutcome.UNCERTAIN, error)
        # Most checkpoints are sent alone, and the size of a single write need not be computed.
        cut = [valid] if len(valid) == 1 else batches(valid, _key, _weight_bytes, most_bytes=BYTES_PER_BATCH)
        for batch in cut:
            sent = self._send([write for _, write in batch])
            answers.update(zip((index for index, _ in batch), sent, strict=True))
        return [answers[index] for index in range(len(writes))]

    def draw_epochs(self, lease_keys: Sequence[str]) -> Sequence[int | Exception]:
        """Draw an epoch for each of ``lease_keys``, which must all be different.

        Return an epoch or an error per key, in order.
        """
        return self._epochs.draw(lease_keys)

    def forget_epochs(self, lease_keys: Sequence[str]) -> None:
        """Delete the epoch rows of shards that have left the stream."""
        for key, error in self._epochs.forget(lease_keys).items():
            _log.warning("the epoch row of shard %s, which has left the stream, was not deleted: %s", key, error)

    def note_order(self, note: NoteOrder) -> None:
        """Store, in one attempt, an audit row that says how an operator's order to park or skip records ended.

        If the method returns, the row is certainly stored. Otherwise it raises ``StreamClientError``.
        """
        put_note(self._client, self._table_name, self._stream_id, note)

    def list_workers(self, *, with_info: bool = False) -> Sequence[WorkerRow]:
        """Return all worker rows of the stream, sorted by worker; ``info`` is read only with ``with_info``.

        The result is not an atomic snapshot.
        """
        action = RetryableAction.LEASE_ACTION_LIST_LEASES
        return self._retried(action, lambda: self._workers.read_all(with_info=with_info))

    def read_workers(self, worker_ids: Sequence[str]) -> Sequence[WorkerRow]:
        """Return the rows of ``worker_ids``, which must all be different, without ``info``. No request is repeated."""
        try:
            return self._workers.read(worker_ids)
        except Exception as error:
            failure = translated(error, write=False, client=self._client)
            raise failure from failure.__cause__

    def wake(self, worker_ids: Sequence[str]) -> None:
        """Wake the workers ``worker_ids``, which must all be different. No request is repeated."""
        self._workers.wake(worker_ids)

    def _send(self, writes: Sequence[LeaseWrite | WorkerWrite]) -> Sequence[WriteAnswer]:
        return send_rows(self._client, self._table_name, [self._item(write) for write in writes])

    def _item(self, write: LeaseWrite | WorkerWrite) -> Any:
        if isinstance(write, WorkerWrite):
            return self._workers.item(write)
        return row_item(write, remnant=self._remnant_for(write))

    def _remnant_for(self, write: LeaseWrite) -> UnreadableRow | None:
        return self._unreadable.get(write.lease_key) if write.kind is WriteKind.CREATE else None

    def _scan(self) -> Iterator[Any]:
        return scan(self._client, self._table_name, first_key(self._stream_id), end_key(self._stream_id))

    def _read(self, lease_key: str) -> Any:
        _, row, _ = self._client.get_row(self._table_name, key_of(self._stream_id, lease_key), max_version=1)
        return row

    def _quarantine(self, unreadable: Mapping[str, UnreadableRow]) -> None:
        known, self._unreadable = self._unreadable, unreadable
        for lease_key, row in unreadable.items():
            if known.get(lease_key) == row:
                continue
            problem = row.problem if row.is_of_unknown_version else f"not a lease: {row.problem}; repair or delete it"
            _log.warning("row %s of status table %s is left out: %s", lease_key, self._table_name, problem)

    def _report_damage(self, problems: Mapping[str, str]) -> None:
        """Log each row in which this package's own columns cannot be read, once for each problem."""
        known, self._damaged = self._damaged, {key: problem for key, problem in problems.items() if problem}
        for lease_key, problem in self._damaged.items():
            if known.get(lease_key) != problem:
                _log.warning(
                    "row %s of status table %s has columns of streamclient that cannot be read and count as absent: %s",
                    lease_key,
                    self._table_name,
                    problem,
                )

    def _retried(self, action: RetryableAction, call: Callable[[], Answer]) -> Answer:
        for retries in range(RETRIES_AT_MOST + 1):
            try:
                return call()
            except Exception as error:
                failure = translated(error, write=False, client=self._client)
                pause_seconds = self._pause_before_retry(action, failure, retries)
                if pause_seconds is None:
                    raise failure from failure.__cause__
                self._sleep(pause_seconds)
        raise StreamClientException(
            f"{action.value} was retried {RETRIES_AT_MOST} times; its retry strategy never gives up"
        )

    def _pause_before_retry(self, action: RetryableAction, failure: Exception, retries: int) -> float | None:
        """Return the pause that the retry strategy wants before the next attempt, in seconds; ``None`` for no retry.

        If the strategy itself raises an error, the call is not retried either.
        """
        if not isinstance(failure, DependencyException) or not failure.retriable or retries >= RETRIES_AT_MOST:
            return None
        try:
            return decision_of(self._retry, action, failure, retries)
        except Exception as problem:
            _log.error("the retry strategy failed, so %s is not repeated: %s", action.value, problem, exc_info=problem)
            return None

    def __repr__(self) -> str:
        return f"LeaseManager({self._table_name}, {self._stream_id})"


def _check(write: LeaseWrite | WorkerWrite, stream_id: str) -> None:
    if isinstance(write, WorkerWrite):
        check_worker_write(write, stream_id)
    else:
        check_write(write, stream_id)


def _key(numbered: tuple[int, LeaseWrite | WorkerWrite]) -> tuple[type, str]:
    _, write = numbered
    return type(write), write.worker_id if isinstance(write, WorkerWrite) else write.lease_key


def _weight_bytes(numbered: tuple[int, LeaseWrite | WorkerWrite]) -> int:
    """Return an upper bound of the bytes that a write adds to a request, for key, condition and columns of its row."""
    _, write = numbered
    if isinstance(write, WorkerWrite):
        info = write.result.info if write.result is not None else ""
        return 2 * ROW_OVERHEAD_BYTES + len(write.worker_id.encode()) + len(info.encode())
    texts = [write.lease_key, write.seen.stream_id, write.seen.owner, write.seen.stealer]
    if write.result is not None:
        texts += [write.result.owner, write.result.stealer, write.result.checkpoint, *write.result.parent_shard_ids]
    return ROW_OVERHEAD_BYTES + sum(len(text.encode()) for text in texts) + _own_bytes(write)


def _own_bytes(write: LeaseWrite) -> int:
    """Return an upper bound of the bytes that this package's own columns add. A character has at most four bytes."""
    own = [value for name, value in written_columns(write).items() if name in OWN_COLUMNS]
    return sum(OWN_CELL_BYTES + (4 * len(value) if isinstance(value, str | bytearray) else 0) for value in own)
