"""A table's rows page by page, in the order of their keys, with every name as it is stored."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TypeAlias, cast

from streamclient.errors import CodecError, StreamClientException
from streamclient.records import ColumnOperation, ColumnValue, KeyValue, RecordColumn, RecordType, StreamRecord
from streamclient.tablestore.ranges import require_progress
from streamclient.tablestore.signed_calls import SignedCalls
from streamclient.wire import schema
from streamclient.wire.plainbuffer import KeyBound, Row, decode_row, decode_rows, encode_row
from streamclient.wire.schema import Direction
from streamclient.wire.service_errors import classify

Bounds: TypeAlias = tuple[tuple[str, KeyValue | KeyBound], ...]
"""A key, or a place between keys, by columns."""


def read_page(
    calls: SignedCalls,
    table: str,
    key_names: Sequence[str],
    bounds: tuple[Sequence[KeyValue | KeyBound] | None, Sequence[KeyValue | KeyBound] | None],
    max_versions: int,
    *,
    limit: int | None = None,
    columns: Iterable[str] = (),
    row_filter: bytes | None = None,
) -> tuple[tuple[KeyValue, ...] | None, list[Row]]:
    """A page of rows from one key on and below another; and the key to go on from, ``None`` at the end.

    At most ``limit`` rows with ``max_versions`` of each of ``columns``, or of all, which ``row_filter`` lets through. A
    bound may have the first key columns only; ``None`` is that of the table.

    Raises:
        StreamClientError: the call failed, or its page does not move on; it was made once.
    """
    start, end = bounds
    first = _bound(key_names, start, KeyBound.INF_MIN)
    last = _bound(key_names, end, KeyBound.INF_MAX if end is None else KeyBound.INF_MIN)
    request = schema.GetRangeRequest(
        table_name=table,
        direction=Direction.FORWARD,
        max_versions=max_versions,
        limit=limit,
        columns_to_get=columns,
        filter=row_filter,
        inclusive_start_primary_key=encode_row(Row(first)),
        exclusive_end_primary_key=encode_row(Row(last)),
    )
    decode = partial(_page_of, table, first)
    try:
        return calls.read("GetRange", request.SerializeToString(), decode, is_repeatable=True)
    except Exception as error:
        raise classify(error, write=False, client=calls.client) from error


def _page_of(table: str, start: Bounds, body: bytes) -> tuple[tuple[KeyValue, ...] | None, list[Row]]:
    answer = schema.parse(schema.GetRangeResponse, body)
    rows = decode_rows(answer.rows)
    if not answer.next_start_primary_key:
        require_progress(table, start, rows, None)
        return None, rows
    following = decode_row(answer.next_start_primary_key)
    require_progress(table, start, rows, following.primary_key)
    return key_of(following), rows


def _bound(names: Sequence[str], key: Sequence[KeyValue | KeyBound] | None, rest: KeyBound) -> Bounds:
    values = [*(key or ()), *[rest] * (len(names) - len(key or ()))]
    return tuple(zip(names, values, strict=True))


def record_of(row: Row) -> StreamRecord:
    """A row as a record: a put with the row's own versions, without a place in the log."""
    columns = tuple(
        RecordColumn(cell.name, ColumnOperation.PUT, cast(ColumnValue, cell.value), cell.timestamp_millis)
        for cell in row.cells
    )
    names = [name for name, _ in row.primary_key]
    return StreamRecord(RecordType.PUT, tuple(zip(names, key_of(row), strict=True)), columns)


def key_text(key: tuple[KeyValue, ...] | None) -> str:
    """A key as text that ``key_from`` reads; empty for none."""
    if key is None:
        return ""
    return json.dumps([{"hex": bytes(value).hex()} if isinstance(value, bytes | bytearray) else value for value in key])


def key_from(text: str) -> tuple[KeyValue, ...] | None:
    """The key that ``key_text`` wrote.

    Raises:
        StreamClientException: it wrote another text.
    """
    if not text:
        return None
    try:
        values = json.loads(text)
    except ValueError as error:
        raise StreamClientException(f"the stored place of the full copy is damaged: {text!r}") from error
    return tuple(bytes.fromhex(value["hex"]) if isinstance(value, dict) else value for value in values)


def key_of(row: Row) -> tuple[KeyValue, ...]:
    """The key of a stored row, whose columns are never bounds.

    Raises:
        CodecError: one is.
    """
    values = []
    for name, value in row.primary_key:
        if isinstance(value, KeyBound):
            raise CodecError(f"the key column {name!r} of a stored row is {value.name}")
        values.append(value)
    return tuple(values)
