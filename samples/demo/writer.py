"""The writer of the orders: it writes at a steady rate, and counts the acknowledged changes."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from streamclient.tablestore import StreamSpecification, TablestoreStreamApi
from tablestore import (
    BatchWriteRowRequest,
    CapacityUnit,
    Condition,
    DeleteRowItem,
    OTSClient,
    PutRowItem,
    ReservedThroughput,
    Row,
    RowExistenceExpectation,
    TableInBatchWriteRowItem,
    TableMeta,
    TableOptions,
    UpdateRowItem,
)

from samples.demo.orders import Change, Key, Kind, changes

TABLE = "orders"
BATCH_ROWS = 50
"""The number of rows in a BatchWriteRow: a quarter of the service's limit. Small batches let splits and merges happen
in the middle of the writes."""


def make_table(client: OTSClient) -> None:
    """Create the orders table with its stream on."""
    TablestoreStreamApi(client).create_table(
        TableMeta(TABLE, [("customer", "STRING"), ("order_id", "INTEGER")]),
        TableOptions(),
        ReservedThroughput(CapacityUnit(0, 0)),
        stream=StreamSpecification(enable_stream=True, expiration_time_hours=24),
    )


class Writer:
    """A thread that writes all changes in about ``seconds`` seconds. If a write fails, ``join`` raises the error."""

    def __init__(self, client: OTSClient, *, seed: int, count: int, seconds: float) -> None:
        self.acknowledged = 0
        self._client = client
        self._batches = list(_batches(changes(seed, count)))
        self._pause = threading.Event()
        self._interval = seconds / max(1, len(self._batches))
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def start(self) -> None:
        """Begin to write in a separate thread, and return immediately."""
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether the thread has ended, with or without an error."""
        return not self._thread.is_alive()

    def join(self) -> None:
        """Wait until the thread has ended. If an error ended it, raise that error."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            for batch in self._batches:
                self._write(batch)
                self._pause.wait(self._interval)
        except Exception as error:  # ``join`` raises the error in the caller's thread
            self._error = error

    def _write(self, batch: list[Change]) -> None:
        request = BatchWriteRowRequest()
        request.add(TableInBatchWriteRowItem(TABLE, [_item(change) for change in batch]))
        response = self._client.batch_write_row(request)
        if not response.is_all_succeed():
            failed = response.get_failed_of_put() + response.get_failed_of_update() + response.get_failed_of_delete()
            raise RuntimeError(f"the server refused a row: {failed[0].error_code} {failed[0].error_message}")
        self.acknowledged += len(batch)


def _batches(source: Iterator[Change]) -> Iterator[list[Change]]:
    """Cut ``source`` into batches in which no key is repeated: the server decides the order within a batch."""
    batch: list[Change] = []
    keys: set[Key] = set()
    for change in source:
        if change.key in keys or len(batch) == BATCH_ROWS:
            yield batch
            batch, keys = [], set()
        batch.append(change)
        keys.add(change.key)
    if batch:
        yield batch


def _item(change: Change) -> PutRowItem | UpdateRowItem | DeleteRowItem:
    condition = Condition(RowExistenceExpectation.IGNORE)
    key = list(change.key)
    if change.kind is Kind.PUT:
        return PutRowItem(Row(key, list(change.put_columns)), condition)
    if change.kind is Kind.DELETE:
        return DeleteRowItem(Row(key), condition)
    columns: dict[str, list[object]] = {"put": list(change.put_columns)}
    if change.deleted_columns:
        columns["delete_all"] = list(change.deleted_columns)
    return UpdateRowItem(Row(key, columns), condition)
