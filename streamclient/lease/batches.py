"""Sending many rows in one request, and what the service said about each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tablestore import BatchWriteRowRequest, OTSClient, OTSServiceError, TableInBatchWriteRowItem

from streamclient.core.rows import WriteOutcome
from streamclient.errors import DependencyException, ErrorKind, StreamClientError
from streamclient.lease.store import WriteAnswer
from streamclient.wire.service_errors import CONDITION_CHECK_FAIL, classify

ROWS_PER_BATCH = 200
"""The service takes at most this many rows in one BatchWriteRow."""


def send_rows(client: OTSClient, table_name: str, items: Sequence[Any]) -> list[WriteAnswer]:
    """Send the items of one BatchWriteRow, once; one answer per item, in order. Never raises."""
    request = BatchWriteRowRequest()
    request.add(TableInBatchWriteRowItem(table_name, items))
    try:
        response = client.batch_write_row(request)
    except Exception as error:
        return [WriteAnswer(WriteOutcome.UNCERTAIN, translated(error, write=True))] * len(items)
    results = _results_by_index(response, table_name)
    return [_row_answer(results.get(index)) for index in range(len(items))]


def translated(error: Exception, *, write: bool) -> StreamClientError:
    """The package's exception for an error of the SDK, which stays its cause."""
    failure = classify(error, write=write)
    if failure is not error:
        failure.__cause__ = error
    return failure


def row_error(code: str, message: str, *, write: bool) -> StreamClientError:
    """The package's exception for one failed row; its batch was answered with 200, so it has no HTTP status."""
    return classify(OTSServiceError(None, code, message), write=write)


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
    return WriteAnswer(WriteOutcome.UNCERTAIN, row_error(result.error_code, result.error_message, write=True))
