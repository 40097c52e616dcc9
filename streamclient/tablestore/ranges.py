"""Ranges of rows, page by page, for everything that reads them; a page that does not move on is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from tablestore import INF_MAX, INF_MIN, Direction

from streamclient.base import checks
from streamclient.errors import DependencyException, StreamClientException
from streamclient.wire.rows import KeyBound

MOST_PAGES = 100_000
"""A page of a status table or a parking store holds up to 5,000 rows; more pages than this mean rows without end."""

Call = Callable[[Callable[[], Any]], Any]
"""Makes one call: as it is, or with its errors translated."""


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
    """Rows from ``start`` on and before ``end``, as the SDK gives them, at most ``limit`` in a page.

    Raises what ``call`` raises, and:

    Raises:
        DependencyException: a page does not move on; it may be asked for again.
        StreamClientException: the pages do not end.
    """
    following: Any = start
    for _ in range(MOST_PAGES):
        read = partial(_page, client, table, following, end, is_backward=is_backward, columns=columns, limit=limit)
        following, rows = call(read)
        yield from rows
        if not following:
            return
    raise StreamClientException(f"the scan of table {table!r} did not end after {MOST_PAGES} pages")


def _page(
    client: Any, table: str, start: Any, end: Any, *, is_backward: bool, columns: list[str] | None, limit: int | None
) -> tuple[Any, Sequence[Any]]:
    direction = Direction.BACKWARD if is_backward else Direction.FORWARD
    _, following, rows, _ = client.get_range(
        table, direction, start, end, columns_to_get=columns, max_version=1, limit=limit
    )
    require_progress(table, start, rows, following, is_backward=is_backward)
    return following, rows


def require_progress(
    table: str,
    start: Sequence[tuple[str, Any]],
    rows: Sequence[Any],
    following: Sequence[tuple[str, Any]] | None,
    *,
    is_backward: bool = False,
) -> None:
    """Refuse a page whose rows begin before its start, or which is not followed by a key after all of it.

    It costs three comparisons a page. Without it a service that repeats a page is read, and copied, for ever.

    Raises:
        DependencyException: the page does not move on; nothing of it may be used, and it may be asked for again.
    """
    if rows:
        first, last = rows[0].primary_key, rows[-1].primary_key
        if _is_before(first, start, is_backward):
            raise _refused(table, start, f"it has a row at {_shown(first)}, which is before that")
        if following and not _is_before(last, following, is_backward):
            where = f"it goes on at {_shown(following)}, which is not after its last row, {_shown(last)}"
            raise _refused(table, start, where)
    elif following and not _is_before(start, following, is_backward):
        raise _refused(table, start, f"it goes on at {_shown(following)}, which is not after that")


def key_order(key: Iterable[Any]) -> list[tuple[int, Any]]:
    """Values of a key, as they are compared: bounds around all others, text by its bytes."""
    return [_place(value) for value in key]


_BELOW, _INTEGER, _TEXT, _BINARY, _ABOVE = range(5)


def _place(value: Any) -> tuple[int, Any]:
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
        f"GetRange of table {table!r} does not move on: asked from {_shown(start)}, {problem}; the service, or what is "
        "between, is at fault, and nothing of the page was used"
    )


def _shown(key: Sequence[tuple[str, Any]]) -> str:
    names = {INF_MIN: "INF_MIN", INF_MAX: "INF_MAX"}
    return "(" + ", ".join(_name(value, names) for _, value in key) + ")"


def _name(value: Any, names: dict[Any, str]) -> str:
    if isinstance(value, KeyBound):
        return value.name
    return next((name for bound, name in names.items() if value is bound), None) or checks.shown(value)
