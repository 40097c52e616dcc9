"""The work of one request besides the bytes that it reads and writes: matches, versions, cells, columns.

Requests take effect one after another, so a slow request delays all others. The engine gives each request a purse, that
is, a number of units of work. Each step whose cost may exceed the request's length is paid from the purse before it
begins. A step that cannot be paid is refused by name, or ends a page of a range early, so that the next page continues
with its own purse.
"""

from __future__ import annotations

import threading

from streamclient.server import refusals
from streamclient.server.server_errors import ServiceError

WORK_PER_REQUEST = 20_000_000
"""The purse of a request, in units. One unit is one instruction of a compiled expression at one byte: at most about 27
ns as measured, usually a third. So a request takes about half a second at most for all that it pays."""

VERSION_WORK = 12
"""The cost, in units, of a filter's test of one version: about 0.3 µs."""

CELL_WORK = 800
"""The cost, in units, of decoding one cell of a row: about 20 µs from the request to the record. The usual put is not
decoded."""

COLUMN_WORK, MATRIX_WORK = 5, 30
"""The costs, in units, of a named column in one row, and of one value in a matrix, even an absent one: about 0.15 µs
and 0.5 µs."""


class TooMuchWorkError(ServiceError):
    """The request needs more work than its purse pays."""

    def __init__(self, what: str) -> None:
        refusal = refusals.WORK(step=what, work=WORK_PER_REQUEST)
        super().__init__(refusal.http_status, refusal.code, refusal.message)


class _Purse(threading.local):
    """The purse of each thread; one thread executes a request from beginning to end."""

    left = WORK_PER_REQUEST


_purse = _Purse()


def begin_request() -> None:
    """Fill the purse of this thread."""
    _purse.left = WORK_PER_REQUEST


def pay(cost: int, what: str, *details: int) -> None:
    """Take the cost of a step from the request's purse before the step.

    Raises:
        TooMuchWorkError: the purse has too little left; ``what``, completed by ``details``, names the step.
    """
    if cost > _purse.left:
        raise TooMuchWorkError(what % details)
    _purse.left -= cost
