"""Sending many rows in one request, and what was said about each. Every checkpoint and every heartbeat is one.

The SDK's encoder writes byte by byte, and its HTTP client makes objects of headers that nobody reads: together half of
what a worker spends on a page of a thousand records. The requests here are the same, down to each field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any

import tablestore
from tablestore import (
    BatchWriteRowRequest,
    CompositeColumnCondition,
    OTSClient,
    OTSServiceError,
    TableInBatchWriteRowItem,
)
from tablestore.metadata import BatchWriteRowResponseItem

from streamclient.core.rows import WriteOutcome
from streamclient.errors import DependencyException, ErrorKind, StreamClientError
from streamclient.lease.store import WriteAnswer
from streamclient.tablestore.call import SignedCalls
from streamclient.wire import schema
from streamclient.wire._tags import HEADER
from streamclient.wire._writer import CellParts, value_bytes, write_row
from streamclient.wire.rows import CellOperation
from streamclient.wire.service_errors import CONDITION_CHECK_FAIL, classify

OPERATION = "BatchWriteRow"

_EXISTENCE = {getattr(tablestore.RowExistenceExpectation, each.name): each for each in schema.RowExistenceExpectation}
_CHANGES = {
    "PUT": CellOperation.PUT,
    "DELETE_ALL": CellOperation.DELETE_ALL_VERSIONS,
    "INCREMENT": CellOperation.INCREMENT,
}
"""What the rows of a lease do to a cell, by the SDK's names; it knows more, which lease rows have no use for."""

_TYPES = {"put": schema.OperationType.PUT, "update": schema.OperationType.UPDATE, "delete": schema.OperationType.DELETE}


def with_own_batches(client: OTSClient) -> OTSClient:
    """A client like the given one, whose BatchWriteRow goes another way to the same service; the client stays as it is.

    Sent once, whatever the client's retry policy. Errors and answers are those of the SDK.
    """
    own = copy(client)
    own._request_helper = _sending(SignedCalls(client), client._request_helper)
    return own


def _sending(calls: SignedCalls, others: Callable[..., Any]) -> Callable[..., Any]:
    def send(operation: str, *arguments: Any, **keywords: Any) -> Any:
        if operation != OPERATION:
            return others(operation, *arguments, **keywords)
        return _results(calls.ask(OPERATION, batch_message(arguments[0]), is_repeatable=False))

    return send


def batch_message(request: BatchWriteRowRequest) -> Any:
    """The message of a request of the SDK, of rows as ``lease.rows`` makes them."""
    message = schema.BatchWriteRowRequest()
    for name, table in request.items.items():
        in_table = message.tables.add(table_name=name)
        for item in table.row_items:
            row = in_table.rows.add(type=_TYPES[item.type], row_change=_row_bytes(item))
            row.condition.row_existence = _EXISTENCE[item.condition.row_existence_expectation]
            if item.condition.column_condition is not None:
                row.condition.column_condition = _filter(item.condition.column_condition).SerializeToString()
    return message


def _row_bytes(item: Any) -> bytes:
    parts = [HEADER]
    is_deletion = item.type == "delete"
    cells = () if is_deletion else _cells(item.row.attribute_columns)
    write_row(parts, item.row.primary_key, cells, is_deletion, None)
    return b"".join(parts)


def _cells(columns: Any) -> Iterator[CellParts]:
    """Of a row that is put, or of the changes of one that is updated."""
    changes = columns if isinstance(columns, Mapping) else {"PUT": columns}
    for change, cells in changes.items():
        operation = _CHANGES[change]
        for cell in cells:
            name, value = (cell, None) if isinstance(cell, str) else cell
            yield name, value, int(operation), None


def _filter(condition: Any) -> Any:
    if isinstance(condition, CompositeColumnCondition):
        composite = schema.CompositeColumnValueFilter(combinator=_OPERATORS[condition.combinator])
        composite.sub_filters.extend(_filter(part) for part in condition.sub_conditions)
        kind, content = schema.FilterType.COMPOSITE_COLUMN_VALUE, composite
    else:
        kind = schema.FilterType.SINGLE_COLUMN_VALUE
        content = schema.SingleColumnValueFilter(
            comparator=_COMPARATORS[condition.get_comparator()],
            column_name=condition.get_column_name(),
            column_value=value_bytes(condition.get_column_value()),
            filter_if_missing=not condition.get_pass_if_missing(),
            latest_version_only=condition.get_latest_version_only(),
        )
    return schema.Filter(type=kind, filter=content.SerializeToString())


_OPERATORS = {getattr(tablestore.LogicalOperator, each.name): each for each in schema.LogicalOperator}
_COMPARATORS = {
    getattr(tablestore.ComparatorType, each.name): each
    for each in schema.ComparatorType
    if hasattr(tablestore.ComparatorType, each.name)
}


def _results(response: Any) -> dict[str, list[Any]]:
    """As the SDK's decoder gives them, for its ``BatchWriteRowResponse``."""
    return {
        table.table_name: [
            BatchWriteRowResponseItem(row.is_ok, row.error.code, row.error.message, None, None) for row in table.rows
        ]
        for table in response.tables
    }


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
