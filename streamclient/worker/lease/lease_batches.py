"""Writes of many rows in one request. Every checkpoint and every heartbeat is one of these writes.

The SDK's encoder writes byte by byte, and its HTTP client makes header objects that no caller reads. Together they
take half of a worker's processor time for a page of a thousand records. So this module encodes the requests itself.
These requests equal the SDK's requests in every field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import lru_cache
from typing import Any

import tablestore
from tablestore import BatchWriteRowRequest, CapacityUnit, CompositeColumnCondition, OTSClient
from tablestore.metadata import BatchWriteRowResponseItem

from streamclient.core.write_rules import WriteOutcome
from streamclient.errors import DependencyException, StreamClientError
from streamclient.tablestore.row_batches import send_items
from streamclient.tablestore.signed_calls import SignedCalls
from streamclient.wire import schema
from streamclient.wire._tags import HEADER
from streamclient.wire._writer import CellParts, value_bytes, write_row
from streamclient.wire.rows import CellOperation
from streamclient.wire.service_errors import CONDITION_CHECK_FAIL
from streamclient.worker.lease.lease_store import WriteAnswer

OPERATION = "BatchWriteRow"

CACHED_ANSWERS = 8
"""The largest number of decoded responses that are cached. Most responses are equal to an earlier response, because
they say only that all rows of the request were written."""


def _number(field: int, value: int) -> bytes:
    """Encode a field of a message that holds a number below 128, such as an enumeration or a boolean."""
    return bytes((field << 3, value))


# The encoded fields that hold enumerations and booleans. The keys are the SDK's values.

_EXISTENCE = {
    getattr(tablestore.RowExistenceExpectation, member.name): _number(1, member)
    for member in schema.RowExistenceExpectation
}
_CHANGES = {
    "PUT": CellOperation.PUT,
    "DELETE_ALL": CellOperation.DELETE_ALL_VERSIONS,
    "INCREMENT": CellOperation.INCREMENT,
}
"""The kinds of changes of a cell that lease rows use. The keys are the SDK's names of these changes."""

_TYPES = {kind.name.lower(): _number(1, kind) for kind in schema.OperationType}


def with_own_batches(client: OTSClient) -> OTSClient:
    """Return a copy of ``client`` that sends BatchWriteRow with this module. The given client is not changed.

    A request is sent once, regardless of the client's retry policy. Errors and answers are the same as with the SDK.
    """
    own = copy(client)
    own._request_helper = _sending(SignedCalls(client), client._request_helper)
    return own


def _sending(calls: SignedCalls, others: Callable[..., Any]) -> Callable[..., Any]:
    def send(operation: str, *arguments: Any, **keywords: Any) -> Any:
        if operation != OPERATION:
            return others(operation, *arguments, **keywords)
        return calls.read(OPERATION, batch_message(arguments[0]), _results, is_repeatable=False)

    return send


def batch_message(request: BatchWriteRowRequest) -> bytes:
    """Encode a request of the SDK, whose rows come from the module ``lease_rows``.

    The function encodes by hand, because a library takes three times as long for such nested messages.
    """
    tables = []
    for name, table in request.items.items():
        rows = [_part(2, _row_message(item)) for item in table.row_items]
        tables.append(_part(1, _part(1, name.encode()) + b"".join(rows)))
    return b"".join(tables)


def _row_message(item: Any) -> bytes:
    condition = _EXISTENCE[item.condition.row_existence_expectation]
    if item.condition.column_condition is not None:
        condition += _part(2, _filter(item.condition.column_condition))
    return _TYPES[item.type] + _part(2, _row_bytes(item)) + _part(3, condition)


def _part(field: int, content: bytes) -> bytes:
    """Encode a field of a message that holds bytes, a text or another message."""
    size = len(content)
    if size < 0x80:
        return bytes((field << 3 | 2, size)) + content
    if size < 0x4000:
        return bytes((field << 3 | 2, size & 0x7F | 0x80, size >> 7)) + content
    head = bytearray((field << 3 | 2,))
    while size >= 0x80:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + content


def _row_bytes(item: Any) -> bytes:
    parts = [HEADER]
    is_deletion = item.type == "delete"
    cells = () if is_deletion else _cells(item.row.attribute_columns)
    write_row(parts, item.row.primary_key, cells, is_deletion, None)
    return b"".join(parts)


def _cells(columns: Any) -> Iterator[CellParts]:
    """Yield the cells of a PutRow item, or the changes of an UpdateRow item."""
    changes = columns if isinstance(columns, Mapping) else {"PUT": columns}
    for change, cells in changes.items():
        operation = _CHANGES[change]
        for cell in cells:
            name, value = (cell, None) if isinstance(cell, str) else cell
            yield name, value, int(operation), None


def _filter(condition: Any) -> bytes:
    if isinstance(condition, CompositeColumnCondition):
        parts = [_part(2, _filter(part)) for part in condition.sub_conditions]
        return _COMPOSITE + _part(2, _OPERATORS[condition.combinator] + b"".join(parts))
    column = _part(2, condition.column_name.encode()) + _part(3, value_bytes(condition.column_value))
    flags = _FILTERS_MISSING[not condition.pass_if_missing] + _LATEST_ONLY[condition.latest_version_only]
    return _SINGLE + _part(2, _COMPARATORS[condition.comparator] + column + flags)


_COMPOSITE = _number(1, schema.FilterType.COMPOSITE_COLUMN_VALUE)
_SINGLE = _number(1, schema.FilterType.SINGLE_COLUMN_VALUE)
_OPERATORS = {getattr(tablestore.LogicalOperator, member.name): _number(1, member) for member in schema.LogicalOperator}
_COMPARATORS = {
    getattr(tablestore.ComparatorType, member.name): _number(1, member)
    for member in schema.ComparatorType
    if hasattr(tablestore.ComparatorType, member.name)
}
_FILTERS_MISSING = {flag: _number(4, flag) for flag in (False, True)}
_LATEST_ONLY = {flag: _number(5, flag) for flag in (False, True)}


def _results(answer: bytes) -> dict[str, list[Any]]:
    """Return the results of each table in the form that the SDK's ``BatchWriteRowResponse`` takes."""
    return {name: [BatchWriteRowResponseItem(*row, None) for row in rows] for name, rows in _tables_in(answer).items()}


@lru_cache(maxsize=CACHED_ANSWERS)
def _tables_in(answer: bytes) -> Mapping[str, tuple[tuple[bool, str, str, CapacityUnit | None], ...]]:
    """Return for each table one tuple per row: whether the write succeeded, its error's code and text, and its cost."""
    message = schema.parse(schema.BatchWriteRowResponse, answer)
    return {
        table.table_name: tuple((row.is_ok, row.error.code, row.error.message, _cost(row)) for row in table.rows)
        for table in message.tables
    }


def _cost(row: Any) -> CapacityUnit | None:
    if not row.HasField("consumed"):
        return None
    units = row.consumed.capacity_unit
    return CapacityUnit(units.read, units.write)


def send_rows(client: OTSClient, table_name: str, items: Sequence[Any]) -> list[WriteAnswer]:
    """Send the items of one BatchWriteRow, once; return one answer per item, in order. Never raises."""
    return [_ACCEPTED if error is None else _answer(error) for error in send_items(client, table_name, items)]


_ACCEPTED = WriteAnswer(WriteOutcome.ACCEPTED)


def _answer(error: StreamClientError) -> WriteAnswer:
    if isinstance(error, DependencyException) and error.code == CONDITION_CHECK_FAIL and error.http_status is None:
        return WriteAnswer(WriteOutcome.REFUSED)
    return WriteAnswer(WriteOutcome.UNCERTAIN, error)
