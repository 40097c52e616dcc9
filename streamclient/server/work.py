"""The work of one request apart from the bytes that it reads and writes: matches, versions, cells, columns.

Requests take effect one after another, so a slow request delays all others. The engine gives each request a purse, that
is, a number of units of work. Each step whose cost may exceed the request's length is paid from the purse before it
begins. If the purse cannot pay for a step, the refusal names the step; or the page of a range ends early, and the next
page continues with a purse of its own.
"""

from __future__ import annotations

import threading

from streamclient.server import refusals
from streamclient.server.server_errors import ServiceError

WORK_PER_REQUEST = 20_000_000
"""The purse of a request, in units. One unit is one instruction of a compiled expression at one byte. That was measured
to take at most about 27 ns, and usually a third of that. So all steps that a request pays for take about half a second
at most."""

VERSION_WORK = 12
"""The cost, in units, of a filter's test of one version: about 0.3 µs."""

CELL_WORK = 800
"""The cost, in units, of decoding one cell of a row: about 20 µs, from the request to the record. An ordinary put is
not decoded."""

COLUMN_WORK, MATRIX_WORK = 5, 30
"""The costs, in units, of a named column in one row, and of one value in a matrix, even if it is absent. They are about
0.15 µs and 0.5 µs."""


class TooMuchWorkError(ServiceError):
    """The request needs more work than its purse can pay for."""

    def __init__(self, what: str) -> None:
        refusal = refusals.WORK(step=what, work=WORK_PER_REQUEST)
        super().__init__(refusal.http_status, refusal.code, refusal.message)


class _Purse(threading.local):
    """The purse of each thread. One thread executes a request from beginning to end."""

    left = WORK_PER_REQUEST


_purse = _Purse()


def begin_request() -> None:
    """Fill the purse of this thread."""
    _purse.left = WORK_PER_REQUEST


def pay(cost: int, what: str, *details: int) -> None:
    """Take the cost of a step from the request's purse before the step.

    Raises:
        TooMuchWorkError: too little is left in the purse. ``what``, completed by ``details``, names the step.
    """
    if cost > _purse.left:
        raise TooMuchWorkError(what % details)
    _purse.left -= cost
