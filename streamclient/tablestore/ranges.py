"""The reading of rows in ranges of keys, page by page. A page that does not advance in the range is refused.

``scan`` reads rows of a status table or a parking store, as objects of the SDK. ``TableScan`` reads rows of any other
table, with every column name exactly as the service stores it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeAlias, TypeVar, cast

import tablestore
from attrs import field, frozen
from tablestore import INF_MAX, INF_MIN

from streamclient.base import checks
from streamclient.base.kept_formats import parse_json
from streamclient.errors import CodecError, DependencyException, StreamClientException
from streamclient.records import ColumnOperation, ColumnValue, KeyValue, RecordColumn, RecordType, StreamRecord
from streamclient.tablestore.read_retry import ReadRetry, Repeater
from streamclient.tablestore.signed_calls import SignedCalls
from streamclient.wire import schema
from streamclient.wire.plainbuffer import Row, decode_row, decode_rows, encode_row
from streamclient.wire.rows import KeyBound
from streamclient.wire.service_errors import classify

MOST_PAGES = 100_000
"""The largest number of pages that ``scan`` reads. A page holds up to 5,000 rows, and every status table or parking
store has fewer than 5,000 times ``MOST_PAGES`` rows. So a scan with more pages will never end."""

Call = Callable[[Callable[[], Any]], Any]
"""A function that calls its argument and returns the result. It may translate the errors of the call."""

Bounds: TypeAlias = tuple[tuple[str, KeyValue | KeyBound], ...]
"""A key, or a position between keys: for each key column its name, and its value or a bound."""

Bound: TypeAlias = Sequence[KeyValue | KeyBound] | None
"""The beginning or the end of a range of keys: the values of all key columns, or of the first ones. ``None`` is the
beginning or the end of the table."""

Page: TypeAlias = tuple[tuple[KeyValue, ...] | None, list[Row]]
"""The key at which the next page begins (``None`` at the end of the range), and the rows of this page."""

_Start = TypeVar("_Start")
_Rows = TypeVar("_Rows", bound=Sequence[Any])


def pages(
    read: Callable[[_Start, int | None], tuple[_Start | None, _Rows]], start: _Start, limit: int | None
) -> Iterator[tuple[_Start | None, _Rows]]:
    """Read and yield page after page from ``start`` to the end, or until ``limit`` rows were read.

    ``read`` takes the start of a page, and the number of rows that are still wanted (``None`` for all). It returns the
    page: the start of the next page, and the rows.
    """
    while True:
        following, rows = read(start, limit)
        limit = None if limit is None else limit - len(rows)
        yield following, rows
        if not following or (limit is not None and limit <= 0):
            return
        start = following


@frozen(kw_only=True)
class TableScan:
    """A reader of a table's rows in the order of their keys. ``repeater`` repeats a failed call for a page."""

    calls: SignedCalls
    table: str
    key: Sequence[str]
    """The names of the key columns."""
    max_versions: int = 1
    """The largest number of versions to read of each column."""
    columns: Sequence[str] = ()
    """The columns to read; empty for all. The service leaves out a row that has none of these columns."""
    row_filter: bytes | None = None
    repeater: Repeater = field(factory=lambda: Repeater(ReadRetry()))

    def pages(self, start: Bound = None, end: Bound = None, *, limit: int | None = None) -> Iterator[Page]:
        """Read and yield the pages of rows from ``start`` on and before ``end``, with at most ``limit`` rows in all.

        Raises:
            StreamClientError: a call failed even after its repetitions, or a page does not advance.
        """

        def read(begin: Bound, left: int | None) -> Page:
            return self.repeater.call("GetRange", partial(self.page, begin, end, limit=left))

        return cast(Iterator[Page], pages(read, start, limit))

    def rows(self, start: Bound = None, end: Bound = None, *, limit: int | None = None) -> Iterator[Row]:
        """Read the pages as ``pages`` does, and yield each of their rows."""
        return chain.from_iterable(rows for _, rows in self.pages(start, end, limit=limit))

    def page(self, start: Bound = None, end: Bound = None, *, limit: int | None = None) -> Page:
        """Read the first page of rows from ``start`` on and before ``end``, with one call.

        Raises:
            StreamClientError: the call failed, or the page does not advance.
        """
        first = _bound(self.key, start, KeyBound.INF_MIN)
        last = _bound(self.key, end, KeyBound.INF_MAX if end is None else KeyBound.INF_MIN)
        request = schema.GetRangeRequest(
            table_name=self.table,
            direction=schema.Direction.FORWARD,
            max_versions=self.max_versions,
            limit=limit,
            columns_to_get=self.columns,
            filter=self.row_filter,
            inclusive_start_primary_key=encode_row(Row(first)),
            exclusive_end_primary_key=encode_row(Row(last)),
        )
        decode = partial(_page_of, self.table, first)
        try:
            return self.calls.read("GetRange", request.SerializeToString(), decode, is_repeatable=True)
        except Exception as error:
            raise classify(error, write=False, client=self.calls.client) from error


def _page_of(table: str, start: Bounds, body: bytes) -> Page:
    answer = schema.parse(schema.GetRangeResponse, body)
    rows = decode_rows(answer.rows)
    if not answer.next_start_primary_key:
        require_progress(table, start, rows, None)
        return None, rows
    following = decode_row(answer.next_start_primary_key)
    require_progress(table, start, rows, following.primary_key)
    return key_of(following), rows


def _bound(names: Sequence[str], key: Bound, rest: KeyBound) -> Bounds:
    values = [*(key or ()), *[rest] * (len(names) - len(key or ()))]
    return tuple(zip(names, values, strict=True))


def scan(
    client: Any,
    table: str,
    start: Sequence[tuple[str, Any]],
    end: Sequence[tuple[str, Any]],
    *,
    is_backward: bool = False,
    columns: list[str] | None = None,
    limit: int | None = None,
    call: Call = lambda read: read(),
) -> Iterator[Any]:
    """Read at most ``limit`` rows from ``start`` on and before ``end``; yield them as objects of the SDK.

    ``call`` makes the request for each page. An error that ``call`` raises is passed on unchanged.

    Raises:
        DependencyException: a page does not advance. The caller may repeat the scan.
        StreamClientException: the pages do not end.
    """

    def read(begin: Any, left: int | None) -> tuple[Any, Sequence[Any]]:
        direction = tablestore.Direction.BACKWARD if is_backward else tablestore.Direction.FORWARD
        _, following, rows, _ = client.get_range(
            table, direction, begin, end, columns_to_get=columns, max_version=1, limit=left
        )
        require_progress(table, begin, rows, following, is_backward=is_backward)
        return following, rows

    scanned = pages(lambda begin, left: call(partial(read, begin, left)), start, limit)
    for number, (_, rows) in enumerate(scanned, 1):
        if number > MOST_PAGES:
            raise StreamClientException(f"the scan of table {table!r} did not end after {MOST_PAGES} pages")
        yield from rows


def require_progress(
    table: str,
    start: Sequence[tuple[str, Any]],
    rows: Sequence[Any],
    following: Sequence[tuple[str, Any]] | None,
    *,
    is_backward: bool = False,
) -> None:
    """Refuse a page whose rows begin before ``start``, or whose next key ``following`` is not after its rows.

    Otherwise a page that the service repeats would make the caller read and copy forever. The check costs at most two
    comparisons per page.

    Raises:
        DependencyException: the page does not advance. No part of it may be used. The call may be repeated.
    """
    if rows:
        first, last = rows[0].primary_key, rows[-1].primary_key
        if _is_before(first, start, is_backward):
            raise _refused(table, start, f"it has a row at {_shown(first)}, which is before the start")
        if following and not _is_before(last, following, is_backward):
            where = f"it goes on at {_shown(following)}, which is not after its last row, {_shown(last)}"
            raise _refused(table, start, where)
    elif following and not _is_before(start, following, is_backward):
        raise _refused(table, start, f"it goes on at {_shown(following)}, which is not after the start")


def key_order(key: Iterable[Any]) -> list[tuple[int, Any]]:
    """Return ``key`` in a form that sorts as in Tablestore. Bounds sort before or after all values."""
    return [_comparable(value) for value in key]


_BELOW, _INTEGER, _TEXT, _BINARY, _ABOVE = range(5)


def _comparable(value: Any) -> tuple[int, Any]:
    if isinstance(value, str):
        return _TEXT, value.encode("utf-8", "surrogatepass")
    if isinstance(value, int):
        return _INTEGER, value
    if isinstance(value, bytes | bytearray):
        return _BINARY, bytes(value)
    return (_BELOW if value is INF_MIN or value is KeyBound.INF_MIN else _ABOVE), b""


def _is_before(key: Sequence[tuple[str, Any]], other: Sequence[tuple[str, Any]], is_backward: bool) -> bool:
    left, right = key_order(value for _, value in key), key_order(value for _, value in other)
    return left > right if is_backward else left < right


def _refused(table: str, start: Sequence[tuple[str, Any]], problem: str) -> DependencyException:
    return DependencyException(
        f"GetRange of table {table!r} does not move on: asked from {_shown(start)}, {problem}; the service, or a "
        "system on the way to it, is at fault, and no part of the page was used"
    )


def _shown(key: Sequence[tuple[str, Any]]) -> str:
    names = {INF_MIN: "INF_MIN", INF_MAX: "INF_MAX"}
    return "(" + ", ".join(_name(value, names) for _, value in key) + ")"


def _name(value: Any, names: dict[Any, str]) -> str:
    if isinstance(value, KeyBound):
        return value.name
    return next((name for bound, name in names.items() if value is bound), None) or checks.shown(value)


def record_of(row: Row) -> StreamRecord:
    """Return a row as a record of type PUT, with all versions of the row, and without a position in a stream."""
    columns = tuple(
        RecordColumn(cell.name, ColumnOperation.PUT, cast(ColumnValue, cell.value), cell.timestamp_millis)
        for cell in row.cells
    )
    names = [name for name, _ in row.primary_key]
    return StreamRecord(RecordType.PUT, tuple(zip(names, key_of(row), strict=True)), columns)


def key_text(key: tuple[KeyValue, ...] | None) -> str:
    """Return ``key`` as a text that ``key_from`` reads; empty for ``None``."""
    if key is None:
        return ""
    return json.dumps([{"hex": bytes(value).hex()} if isinstance(value, bytes | bytearray) else value for value in key])


def key_from(text: str) -> tuple[KeyValue, ...] | None:
    """Return the key that ``key_text`` wrote as ``text``.

    Raises:
        StreamClientException: ``text`` is damaged.
    """
    if not text:
        return None
    try:
        values = parse_json(text)
        return tuple(bytes.fromhex(value["hex"]) if isinstance(value, dict) else value for value in values)
    except (ValueError, TypeError, KeyError) as error:
        raise StreamClientException(f"the stored position of the full copy is damaged: {text!r}") from error


def key_of(row: Row) -> tuple[KeyValue, ...]:
    """Return the values of a row's key columns.

    Raises:
        CodecError: a key column is a bound, such as ``INF_MIN``, which a stored row never has.
    """
    values = []
    for name, value in row.primary_key:
        if isinstance(value, KeyBound):
            raise CodecError(f"the key column {name!r} of a stored row is {value.name}, expected a value")
        values.append(value)
    return tuple(values)
