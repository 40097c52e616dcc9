"""Rows written and read in batches: cut into requests that the service accepts, with an answer for each row.

Laws:

* no request names a row twice. So single rows of a request may be repeated in any order, and the changes of one key
  keep their order;
* a row without an answer may have been written, and does not count as a success;
* one bad row can make the service refuse a whole request, so a permanent refusal is traced to the rows that cause it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, Generic, TypeAlias, TypeVar

from attrs import frozen
from tablestore import (
    BatchGetRowRequest,
    BatchWriteRowRequest,
    OTSClient,
    TableInBatchGetRowItem,
    TableInBatchWriteRowItem,
)

from streamclient.base.reasons import counted
from streamclient.errors import DependencyException, ErrorKind, StreamClientError, StreamClientException
from streamclient.tablestore.signed_calls import SignedCalls
from streamclient.wire import schema
from streamclient.wire.schema import OperationType, RowExistenceExpectation
from streamclient.wire.service_errors import classify, from_answer

ROWS_PER_BATCH = 200
"""The largest number of rows that the service accepts in one BatchWriteRow."""

ROWS_PER_READ = 100
"""The largest number of rows that the service returns for one BatchGetRow."""

BYTES_PER_BATCH = 3 * 1024 * 1024
"""The largest number of bytes of encoded rows in a request. The service accepts 4 MB, so the bytes around the rows also
fit."""

EncodedRow: TypeAlias = tuple[OperationType, bytes]
"""The operation, and the row as the request encodes it. The row is written without a condition."""

_IGNORE = schema.Condition(row_existence=RowExistenceExpectation.IGNORE)

_Row = TypeVar("_Row")


def batches(
    rows: Iterable[_Row],
    key: Callable[[_Row], Hashable],
    size: Callable[[_Row], int],
    *,
    most_rows: int = ROWS_PER_BATCH,
    most_bytes: int = BYTES_PER_BATCH,
) -> Iterator[list[_Row]]:
    """Cut ``rows`` into batches, in order. A second row of a key begins a new batch; a large row has its own batch.

    Worked example: rows of the keys a b a c with room for ten rows give [a b] and [a c].
    """
    batch: list[_Row] = []
    keys: set[Hashable] = set()
    total = 0
    for row in rows:
        name, weight = key(row), size(row)
        if batch and (len(batch) >= most_rows or total + weight > most_bytes or name in keys):
            yield batch
            batch, keys, total = [], set(), 0
        batch.append(row)
        keys.add(name)
        total += weight
    if batch:
        yield batch


def send_items(client: OTSClient, table: str, items: Sequence[Any]) -> list[StreamClientError | None]:
    """Send the SDK's ``items`` once, in one request. Return each item's error or ``None``, in order; never raise."""
    request = BatchWriteRowRequest()
    request.add(TableInBatchWriteRowItem(table, list(items)))
    try:
        response = client.batch_write_row(request)
    except Exception as error:
        return [translated(error, write=True, client=client)] * len(items)
    tables = (response.table_of_put, response.table_of_update, response.table_of_delete)
    results = {result.index: result for answers in tables for result in answers.get(table, ())}
    return [_item_error(results.get(index)) for index in range(len(items))]


def read_rows(
    client: OTSClient, table: str, keys: Sequence[Any], columns: Sequence[str] | None = None
) -> list[Any | StreamClientError]:
    """Read the rows with some different ``keys``, at most ``ROWS_PER_READ``, with one BatchGetRow that is sent once.

    The result has for each key, in order, the row as the SDK decodes it, or ``None`` if the row does not exist, or the
    row's error.

    Raises:
        StreamClientError: the request failed, or its answers do not fit the keys.
    """
    request = BatchGetRowRequest()
    request.add(TableInBatchGetRowItem(table, list(keys), columns_to_get=columns and list(columns), max_version=1))
    try:
        results = client.batch_get_row(request).get_result_by_table(table) or []
    except Exception as error:
        raise translated(error, write=False, client=client) from error
    if len(results) != len(keys):
        raise StreamClientException(f"BatchGetRow gave {counted(len(results), 'row')} for {counted(len(keys), 'key')}")
    return [
        (result.row if result.row is not None and result.row.primary_key else None)
        if result.is_ok
        else from_answer(result.error_code, result.error_message, write=False)
        for result in results
    ]


def translated(error: Exception, *, write: bool, client: OTSClient) -> StreamClientError:
    """Return the package's exception for an error of the SDK; that error stays the exception's cause."""
    failure = classify(error, write=write, client=client)
    if failure is not error:
        failure.__cause__ = error
    return failure


def _item_error(result: Any) -> StreamClientError | None:
    if result is None:
        return _unanswered()
    return None if result.is_ok else from_answer(result.error_code, result.error_message, write=True)


def _unanswered() -> StreamClientError:
    return DependencyException("the answer to BatchWriteRow lacks this row", kind=ErrorKind.AMBIGUOUS)


@frozen
class Attempt(Generic[_Row]):
    """The outcome of one attempt to write rows."""

    sent: int
    refused: Sequence[tuple[_Row, StreamClientError]]
    """The rows that the service refused permanently."""
    left: Sequence[tuple[_Row, StreamClientError]]
    """The rows that failed for a passing reason; the next attempt sends them."""
    failures: int
    """The number of consecutive attempts, up to this one, that settled no row; 0 if this attempt settled a row."""


def attempts(
    calls: SignedCalls, table: str, rows: Sequence[_Row], encoded: Callable[[_Row], EncodedRow]
) -> Iterator[Attempt[_Row]]:
    """Write rows of different keys. The iterator makes one attempt at each step, until no row is left.

    The caller pauses between attempts. To give up, the caller stops iterating.
    """
    failures = 0
    while rows:
        answers = zip(rows, send_encoded(calls, table, [encoded(row) for row in rows]), strict=True)
        failed = [(row, error) for row, error in answers if error is not None]
        left = [failure for failure in failed if is_passing(failure[1])]
        refused = [failure for failure in failed if not is_passing(failure[1])]
        failures = 0 if len(left) < len(rows) else failures + 1
        yield Attempt(len(rows), refused, left, failures)
        rows = [row for row, _ in left]


def is_passing(error: StreamClientError) -> bool:
    """Return whether the next request may succeed in writing the same row.

    An answer that never came counts, too: these writes have no condition, so the second one changes nothing.
    """
    return isinstance(error, DependencyException) and error.retriable


def send_encoded(calls: SignedCalls, table: str, rows: Sequence[EncodedRow]) -> list[StreamClientError | None]:
    """Send ``rows`` once. Return each row's error or ``None``, in order; never raise."""
    messages = [schema.RowInBatchWriteRowRequest(type=kind, row_change=row, condition=_IGNORE) for kind, row in rows]
    request = schema.BatchWriteRowRequest(tables=[schema.TableInBatchWriteRowRequest(table_name=table, rows=messages)])
    try:
        response = calls.ask("BatchWriteRow", request, is_repeatable=False)
    except Exception as error:
        failure = classify(error, write=True, client=calls.client)
        if is_passing(failure) or len(rows) == 1:
            return [failure] * len(rows)
        middle = len(rows) // 2
        return [*send_encoded(calls, table, rows[:middle]), *send_encoded(calls, table, rows[middle:])]
    results = [result for answer in response.tables for result in answer.rows]
    return [_encoded_error(result) for _, result in zip_longest(rows, results[: len(rows)])]


def _encoded_error(result: Any) -> StreamClientError | None:
    if result is None:
        return _unanswered()
    return None if result.is_ok else from_answer(result.error.code, result.error.message, write=True)
