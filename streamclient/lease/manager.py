"""Leases in a Tablestore status table, shared with workers in other processes and with the Java stream client."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from tablestore import BatchWriteRowRequest, Direction, OTSServiceError, TableInBatchWriteRowItem

from streamclient.config import ClientConfig
from streamclient.core.leases import LeaseWrite, WriteKind, WriteOutcome
from streamclient.core.retry import LeaseRetryStrategy
from streamclient.errors import (
    ConfigurationError,
    DependencyException,
    ErrorKind,
    StreamClientError,
    StreamClientException,
)
from streamclient.interfaces import RetryableAction
from streamclient.lease.connection import check_client, for_lease_calls, without_retries
from streamclient.lease.rows import UnreadableRow, end_key, first_key, key_of, parse_row, row_item
from streamclient.lease.store import WriteAnswer
from streamclient.lease.table import StatusTable
from streamclient.lease.verbs import WritingLeaseManager, check_write
from streamclient.model import Lease
from streamclient.wire.service_errors import CONDITION_CHECK_FAIL, classify

_log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

ROWS_PER_BATCH = 200
"""The service takes at most this many rows in one BatchWriteRow."""

BYTES_PER_BATCH = 1024 * 1024
"""The service takes 4 MB; a lease row is a few hundred bytes, so a quarter leaves room for every overhead."""

ROW_OVERHEAD_BYTES = 512
"""Column names, tags, checksums and conditions of one row in a request; measured below 400."""

PAGES_PER_SCAN = 10_000
"""A page holds up to 5000 rows or 4 MB and at least one row; more pages than this mean a service that never ends."""

RETRIES_AT_MOST = 100
"""Bound for retry strategies that never say no."""


class LeaseManager(WritingLeaseManager):
    """Keeps the leases of one stream in a status table. Thread-safe.

    ``client`` is used as it is configured (endpoint, credentials, signing), but through connections and a retry policy
    of our own; the client itself is not changed. Reads are retried as
    ``client_config.lease_manager_retry_strategy`` says. Writes are sent once: after anything but a clear answer they
    are UNCERTAIN, and reading the row back tells what happened.

    Args:
        client: a ``tablestore.OTSClient``.
        status_table_name: the table; see ``create_lease_table_if_not_exists``.
        stream_id: the stream whose leases these are. One table may hold the leases of several streams.
        client_config: lease duration (for the time-out of calls), capacity and waiting times of the table.
        clock: monotonic seconds.
        sleep: waits between retries.
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
    ) -> None:
        for name, text in (("status_table_name", status_table_name), ("stream_id", stream_id)):
            if not isinstance(text, str) or not text:
                raise ConfigurationError(f"{name} must be a non-empty string, not {text!r}")
        given = check_client(client)
        self._table_name = status_table_name
        self._stream_id = stream_id
        self._config = client_config if client_config is not None else ClientConfig()
        self._client = for_lease_calls(given, self._config)
        self._table = StatusTable(without_retries(given), status_table_name, self._config, clock, sleep)
        self._retry = self._config.lease_manager_retry_strategy or LeaseRetryStrategy()
        self._sleep = sleep
        # Replaced whole by each scan, so that readers in other threads need no lock.
        self._unreadable: Mapping[str, UnreadableRow] = {}

    def create_lease_table_if_not_exists(self) -> bool:
        """Create the status table, or check the one that exists; returns whether this call created it.

        Raises:
            ConfigurationError: a table of that name exists but has another key, forgets rows or forbids updates.
            DependencyException: the service refused or did not answer.
        """
        action = RetryableAction.LEASE_ACTION_CREATE_TABLE_IF_NOT_EXISTS
        return self._retried(action, self._table.create_if_absent)

    def wait_until_lease_table_ready(self) -> bool:
        """Wait until the table answers reads; returns whether it did within ``max_wait_table_ready_time_millis``."""
        return self._table.wait_until_ready(self._stream_id)

    def list_leases(self) -> Sequence[Lease]:
        """All leases of the stream, by lease key: every page, latest versions. Not a snapshot.

        Rows that are no leases are left out, and logged when first seen.
        """
        rows = self._retried(RetryableAction.LEASE_ACTION_LIST_LEASES, lambda: list(self._scan()))
        parsed = [parse_row(row) for row in rows]
        self._quarantine({row.lease_key: row for row in parsed if isinstance(row, UnreadableRow)})
        return [lease for lease in parsed if isinstance(lease, Lease)]

    def get_lease(self, lease_key: str) -> Lease | None:
        """The lease, or ``None`` if there is no such row or it is no lease."""
        row = self._retried(RetryableAction.LEASE_ACTION_GET_LEASE, lambda: self._read(lease_key))
        parsed = parse_row(row) if row is not None and row.primary_key else None
        others = {key: other for key, other in self._unreadable.items() if key != lease_key}
        if isinstance(parsed, Lease) or parsed is None:
            self._quarantine(others)
            return parsed
        self._quarantine({**others, lease_key: parsed})
        return None

    def write_many(self, writes: Sequence[LeaseWrite]) -> Sequence[WriteAnswer]:
        """Send writes in batches of up to 200 rows, each row with its own condition; one answer per write, in order.

        The writes are independent: one that fails does not hinder the others. An invalid write is not sent and
        answered with ``ConfigurationError``. Writes to the same row are carried out one after the other.
        """
        answers: dict[int, WriteAnswer] = {}
        valid: list[tuple[int, LeaseWrite]] = []
        for index, write in enumerate(writes):
            try:
                check_write(write, self._stream_id)
                valid.append((index, write))
            except ConfigurationError as error:
                answers[index] = WriteAnswer(WriteOutcome.UNCERTAIN, error)
        for batch in _batches(valid):
            sent = self._send([write for _, write in batch])
            answers.update(zip((index for index, _ in batch), sent, strict=True))
        return [answers[index] for index in range(len(writes))]

    def _send(self, writes: Sequence[LeaseWrite]) -> Sequence[WriteAnswer]:
        items = [row_item(write, remnant=self._remnant_for(write)) for write in writes]
        request = BatchWriteRowRequest()
        request.add(TableInBatchWriteRowItem(self._table_name, items))
        try:
            response = self._client.batch_write_row(request)
        except Exception as error:
            return [WriteAnswer(WriteOutcome.UNCERTAIN, _translated(error, write=True))] * len(writes)
        results = _results_by_index(response, self._table_name)
        return [_row_answer(results.get(index)) for index in range(len(writes))]

    def _remnant_for(self, write: LeaseWrite) -> UnreadableRow | None:
        return self._unreadable.get(write.lease_key) if write.kind is WriteKind.CREATE else None

    def _scan(self) -> Iterator[Any]:
        start: Any = first_key(self._stream_id)
        for _ in range(PAGES_PER_SCAN):
            _, start, rows, _ = self._client.get_range(
                self._table_name, Direction.FORWARD, start, end_key(self._stream_id), max_version=1
            )
            yield from rows
            if not start:
                return
        raise StreamClientException(
            f"the scan of status table {self._table_name!r} did not end after {PAGES_PER_SCAN} pages"
        )

    def _read(self, lease_key: str) -> Any:
        _, row, _ = self._client.get_row(self._table_name, key_of(self._stream_id, lease_key), max_version=1)
        return row

    def _quarantine(self, unreadable: Mapping[str, UnreadableRow]) -> None:
        known, self._unreadable = self._unreadable, unreadable
        for lease_key, row in unreadable.items():
            if known.get(lease_key) != row:
                _log.warning(
                    "row %s of status table %s is no lease and is left out: %s; repair or delete it",
                    lease_key,
                    self._table_name,
                    row.problem,
                )

    def _retried(self, action: RetryableAction, call: Callable[[], Answer]) -> Answer:
        for retries in range(RETRIES_AT_MOST + 1):
            try:
                return call()
            except Exception as error:
                failure = _translated(error, write=False)
                if not self._may_retry(action, failure, retries):
                    raise failure from failure.__cause__
                self._sleep(self._retry.backoff_millis(action, failure, retries) / 1000)
        raise StreamClientException(
            f"{action.value} was retried {RETRIES_AT_MOST} times; its retry strategy has no end"
        )

    def _may_retry(self, action: RetryableAction, failure: Exception, retries: int) -> bool:
        return (
            isinstance(failure, DependencyException)
            and failure.retriable
            and retries < RETRIES_AT_MOST
            and self._retry.should_retry(action, failure, retries)
        )

    def __repr__(self) -> str:
        return f"LeaseManager({self._table_name}, {self._stream_id})"


def _translated(error: Exception, *, write: bool) -> StreamClientError:
    """The package's exception for an error of the SDK, which stays its cause."""
    failure = classify(error, write=write)
    if failure is not error:
        failure.__cause__ = error
    return failure


def _batches(writes: Sequence[tuple[int, LeaseWrite]]) -> Iterator[list[tuple[int, LeaseWrite]]]:
    """Cut into requests that the service takes: few enough rows and bytes, and no row twice."""
    batch: list[tuple[int, LeaseWrite]] = []
    keys: set[str] = set()
    size_bytes = 0
    for index, write in writes:
        weight_bytes = _weight_bytes(write)
        full = len(batch) >= ROWS_PER_BATCH or size_bytes + weight_bytes > BYTES_PER_BATCH
        if batch and (full or write.lease_key in keys):
            yield batch
            batch, keys, size_bytes = [], set(), 0
        batch.append((index, write))
        keys.add(write.lease_key)
        size_bytes += weight_bytes
    if batch:
        yield batch


def _weight_bytes(write: LeaseWrite) -> int:
    """Upper bound of what a row adds: its texts occur in the key, the condition and the columns."""
    texts = [write.lease_key, write.seen.stream_id, write.seen.owner, write.seen.stealer]
    if write.result is not None:
        texts += [write.result.owner, write.result.stealer, write.result.checkpoint, *write.result.parent_shard_ids]
    return ROW_OVERHEAD_BYTES + sum(len(text.encode()) for text in texts)


def _results_by_index(response: Any, table_name: str) -> dict[int, Any]:
    tables = (response.table_of_put, response.table_of_update, response.table_of_delete)
    return {result.index: result for table in tables for result in table.get(table_name, ())}


def _row_answer(result: Any) -> WriteAnswer:
    if result is None:
        missing = DependencyException("the answer to BatchWriteRow lacks this row", kind=ErrorKind.AMBIGUOUS)
        return WriteAnswer(WriteOutcome.UNCERTAIN, missing)
    if result.is_ok:
        return WriteAnswer(WriteOutcome.ACCEPTED)
    if result.error_code == CONDITION_CHECK_FAIL:
        return WriteAnswer(WriteOutcome.REFUSED)
    # A row's error has no HTTP status of its own; the batch around it was answered with 200.
    error = OTSServiceError(None, result.error_code, result.error_message)
    return WriteAnswer(WriteOutcome.UNCERTAIN, classify(error, write=True))
