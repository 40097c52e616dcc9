"""Injected failures of single rows in a batch: execute the other rows, and answer with an error for each failed row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from attrs import frozen

from streamclient.server.fault_rules import FailRows
from streamclient.server.server_limits import MESSAGE_FIELDS
from streamclient.wire import bounded, schema

_ROW_FIELDS = {"BatchWriteRow": ("rows",), "BatchGetRow": ("primary_key", "token")}
"""The fields of a table in a batch request that have one element for each row. The keys are the names of the
operations. The optional field ``token`` may have fewer elements."""


@frozen
class _Table:
    """One table of a batch request. ``fails`` says for each row whether the row is to fail."""

    message: Any
    fails: tuple[bool, ...]


def execute_partially(
    operation: str, body: bytes, harm: FailRows, message: str, execute: Callable[[str, bytes], bytes]
) -> bytes:
    """Execute a batch without the rows that are to fail; return an answer with errors at the positions of these rows.

    ``message`` is the text of these errors. If a row of an atomic batch is to fail, all its rows fail. If all rows
    fail, do not call ``execute``. Pass a malformed body to ``execute``, which refuses it. Raise the errors of
    ``execute`` unchanged.
    """
    messages = schema.OPERATIONS[operation]
    try:
        request = schema.complete(bounded.read(messages.request, body, MESSAGE_FIELDS))
    except ValueError:  # a CodecError; the engine refuses the body in its own words
        return execute(operation, body)
    tables = list(_marked(operation, request, harm))
    if operation == "BatchWriteRow" and request.is_atomic and any(any(table.fails) for table in tables):
        tables = [_Table(table.message, (True,) * len(table.fails)) for table in tables]
    kept = _without_failing(operation, request, tables)
    answer = messages.response()
    if kept.tables:
        answer = schema.parse(messages.response, execute(operation, kept.SerializeToString()))
    merged: bytes = _merged(messages.response(), tables, iter(answer.tables), harm.code, message).SerializeToString()
    return merged


def _marked(operation: str, request: Any, harm: FailRows) -> Iterator[_Table]:
    position = count()
    for table in request.tables:
        rows = getattr(table, _ROW_FIELDS[operation][0])
        yield _Table(table, tuple(harm.harms(next(position)) for _ in rows))


def _without_failing(operation: str, request: Any, tables: list[_Table]) -> Any:
    kept = type(request)()
    kept.CopyFrom(request)
    del kept.tables[:]
    for table in tables:
        if all(table.fails) and table.fails:
            continue
        copy = kept.tables.add()
        copy.CopyFrom(table.message)
        for name in _ROW_FIELDS[operation]:
            elements = list(getattr(table.message, name))
            copy.ClearField(name)
            getattr(copy, name).extend(row for row, fails in zip(elements, table.fails, strict=False) if not fails)
    return kept


def _merged(answer: Any, tables: list[_Table], executed: Iterator[Any], code: str, message: str) -> Any:
    for table in tables:
        rows = iter(()) if all(table.fails) and table.fails else iter(next(executed).rows)
        merged = answer.tables.add(table_name=table.message.table_name)
        for fails in table.fails:
            row = merged.rows.add()
            if fails:
                row.is_ok = False
                row.error.code, row.error.message = code, message
            else:
                row.CopyFrom(next(rows))
    return answer
