"""The limit on the work of one request: matches of patterns, tests of versions, decoded cells, named or copied columns.

Requests take effect one after another, so a slow request delays all others. The engine gives each request a budget of
units of work. Some steps may cost much more than the size of the request suggests. The request pays for such a step
from its budget before the step begins. If the budget is too small for a step, the server refuses the request and names
the step. A range read ends its page early instead, and the next page has its own budget.
"""

from __future__ import annotations

import threading

from streamclient.server import refusals
from streamclient.server.server_errors import ServiceError

WORK_PER_REQUEST = 20_000_000
"""The budget of a request, in units of work. One unit is one instruction of a compiled pattern at one byte of text. One
unit was measured to take at most about 27 ns, and usually 9 ns. So all steps that a request pays for take about half a
second at most."""

VERSION_WORK = 12
"""The cost, in units of work, of a filter's test of one version of a column: about 0.3 µs."""

CELL_WORK = 800
"""The cost, in units of work, of one decoded cell of a written row: about 20 µs for all steps up to the stream record.
The server does not decode the cells of an ordinary put."""

ROW_COLUMN_WORK = 3
"""The cost, in units of work, of one column of a row that an update changes: about 60 ns. A version of a changed column
costs one unit: about 20 ns. So the largest row, with 16 MB of short names and values, can still be updated."""

COLUMN_WORK, MATRIX_WORK = 5, 30
"""The costs, in units of work. ``COLUMN_WORK`` is for one named column in one row: about 0.15 µs. ``MATRIX_WORK`` is
for one value in a matrix, even an absent value: about 0.5 µs."""


class TooMuchWorkError(ServiceError):
    """The error of a request that needs more work than its budget allows."""

    def __init__(self, what: str) -> None:
        refusal = refusals.WORK(step=what, work=WORK_PER_REQUEST)
        super().__init__(refusal.http_status, refusal.code, refusal.message)


class _Purse(threading.local):
    """The unspent part of a request's budget of work. Each thread has its own value, for the request that it executes.

    One thread executes a request from beginning to end.
    """

    left = WORK_PER_REQUEST


_purse = _Purse()


def begin_request() -> None:
    """Give the calling thread a full budget of work for a new request."""
    _purse.left = WORK_PER_REQUEST


def pay(cost: int, what: str, *details: int) -> None:
    """Take the cost of a step from the request's budget of work. Call this before the step.

    ``what`` is a format string that names the step; ``details`` are the values for it.

    Raises:
        TooMuchWorkError: less than ``cost`` is left in the budget. The error names the step.
    """
    if cost > _purse.left:
        raise TooMuchWorkError(what % details)
    _purse.left -= cost
