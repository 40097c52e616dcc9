"""Writes and reads of many rows, in requests of a size that the service accepts, with a result for each row.

Laws:

* No request has two changes of one row. So the rows that failed may be sent again in any order, and the changes of each
  row keep their order.
* A row for which the response has no result may have been written. It does not count as a success.
* One bad row can make the service refuse a whole request. So after a permanent refusal, the rows are sent in halves,
  until the refused rows are known.
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
from streamclient.wire.service_errors import AUTH_FAILED, classify, from_answer

ROWS_PER_BATCH = 200
"""The largest number of rows that the service accepts in one BatchWriteRow."""

ROWS_PER_READ = 100
"""The largest number of rows that the service returns for one BatchGetRow."""

BYTES_PER_BATCH = 3 * 1024 * 1024
"""The largest number of bytes of encoded rows in a request. The service accepts 4 MB, which leaves room for the other
bytes of the request."""

EncodedRow: TypeAlias = tuple[OperationType, bytes]
"""The operation (put, update or delete), and the row as bytes for BatchWriteRow. The write has no condition."""

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
    """Cut ``rows`` into batches, in order, so that no batch has two rows with one ``key``.

    A row larger than ``most_bytes`` has a batch of its own.

    Worked example: with room for ten rows, rows with the keys a, b, a and c give the batches [a b] and [a c].
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
    """Send ``items``, which are row changes of the SDK, in a single BatchWriteRow, without repetition.

    Return one result for each item, in the order of ``items``: ``None`` if the service wrote the item, otherwise the
    error. The function never raises.
    """
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
    """Read at most ``ROWS_PER_READ`` rows with different ``keys`` by a single BatchGetRow, without repetition.

    Return one result for each key, in the order of ``keys``: the row as an object of the SDK, ``None`` if the row does
    not exist, or the error of the row.

    Raises:
        StreamClientError: the request failed, or the response has more or fewer results than ``keys``.
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
    """Return this package's exception for ``error`` of the SDK, with ``error`` as the exception's cause."""
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


KEY_REFUSALS = frozenset({AUTH_FAILED, "OTSSTSTokenExpired", "OTSInvalidSTSToken"})
"""The service's error codes for an access key or token that it does not accept, whatever the request asks for."""


@frozen
class Attempt(Generic[_Row]):
    """The result of one attempt to write rows; ``sent`` is the number of rows in the attempt."""

    sent: int
    refused: Sequence[tuple[_Row, StreamClientError]]
    """The rows that the service refused permanently, each with its error."""
    left: Sequence[tuple[_Row, StreamClientError]]
    """The rows with a transient error, each with this error. The next attempt sends these rows."""
    failures: int
    """The number of attempts since a row was last written or refused; 0 if this attempt wrote or refused a row."""


def attempts(
    calls: SignedCalls, table: str, rows: Sequence[_Row], encoded: Callable[[_Row], EncodedRow]
) -> Iterator[Attempt[_Row]]:
    """Write rows with different keys. Each step of the iterator is one attempt, until every row is written or refused.

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
    """Return whether ``error`` may pass, so that the row may be sent again.

    A row whose response was lost may be sent again, too. These writes have no condition, so a second write of the row
    does no harm. A refused access key says nothing of the row: the key may be valid again later, or be replaced.
    """
    return isinstance(error, DependencyException) and (error.retriable or error.code in KEY_REFUSALS)


def send_encoded(calls: SignedCalls, table: str, rows: Sequence[EncodedRow]) -> list[StreamClientError | None]:
    """Send ``rows`` in one request; if the service refuses the request permanently, send each half alone.

    Return one result for each row, in the order of ``rows``: ``None`` if the service wrote the row, otherwise the
    error.
    """
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
