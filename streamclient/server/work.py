"""What one request may cost besides the bytes that it reads and writes: matches, looks at versions, cells, columns.

Requests take effect one after another, so one that takes long stops everybody. The engine gives each request a purse,
and whatever can cost more than the request is long pays before it begins. What cannot be paid is refused by name, or
ends a page of a range early, so that the next page goes on with a purse of its own.
"""

from __future__ import annotations

import threading

from streamclient.server.server_errors import ServiceError

WORK_PER_REQUEST = 20_000_000
"""One unit is one instruction of a compiled expression at one byte: at most about 27 ns as measured, usually a third.
So a request takes about half a second at most for all that it pays for."""

VERSION_WORK = 12
"""One look of a filter at one version, about 0.3 µs."""

CELL_WORK = 800
"""One cell of a row that is taken apart, about 20 µs from the request to the record. The usual put is not."""

COLUMN_WORK, MATRIX_WORK = 5, 30
"""One column that a request names, at one row: about 0.15 µs, and 0.5 µs where it is a place in a matrix, also an empty
one."""


class TooMuchWorkError(ServiceError):
    """The request asks for more than its purse pays."""

    def __init__(self, what: str) -> None:
        super().__init__(
            400,
            "OTSParameterInvalid",
            f"{what}: that exceeds the work of one request, which is {WORK_PER_REQUEST}. Use fewer rows, shorter "
            "values, fewer filters, or an expression with fewer repetitions.",
        )


class _Purse(threading.local):
    """One for each thread, as a request is carried out by one thread from its beginning to its end."""

    left = WORK_PER_REQUEST


_purse = _Purse()


def begin_request() -> None:
    """Fill the purse of this thread."""
    _purse.left = WORK_PER_REQUEST


def pay(cost: int, what: str, *details: int) -> None:
    """Take the cost of a step from the request's purse before the step is made.

    Raises:
        TooMuchWorkError: there is too little left; ``what``, completed by ``details``, names the step.
    """
    if cost > _purse.left:
        raise TooMuchWorkError(what % details)
    _purse.left -= cost
