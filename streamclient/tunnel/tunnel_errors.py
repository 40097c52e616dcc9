"""What the Tunnel Service answers with, as exceptions.

Every one is a ``DependencyException``: ``code``, ``kind``, ``http_status`` and ``request_id`` are those of the answer.
Codes and their handling: product documentation of the Tunnel Service and the retry rules of its Java and Go clients.
"""

from __future__ import annotations

import re

from streamclient.errors import DependencyException, DisorderError, ErrorKind, StreamClientError, TrimmedDataException

UNAVAILABLE = "OTSTunnelServerUnavailable"
"""A passing problem of the service. Also what an answer of status 500 and above without a readable error counts as, as
in the Go client."""

LOST_LOG = "OTSTrimmedDataAccess"
"""Of the table service, which the tunnel service asks: the records are past retention."""

FIRST_SERVER_ERROR = 500
"""Statuses from here on tell of an outage, whatever the text says."""

_INNER_ERROR = re.compile(r"(OTS[A-Za-z]+)\b[\s:]*(.*?)(?:\s+[0-9a-fA-F-]{36})?\s*", re.DOTALL)
"""An error of the table service written out as a text: its code, its text, and the id of the inner request."""


class TunnelError(DependencyException):
    """The Tunnel Service refused a call."""


class TunnelParameterInvalidError(TunnelError):
    """A parameter cannot work, or the table or tunnel does not exist (``OTSParameterInvalid``). Consuming ends.

    For a call that names a channel it may be said of the channel alone: then that is given up, and tried again.
    """


class TunnelExpiredError(TunnelError):
    """The log that the tunnel still needs is past retention. Consuming ends, and only another tunnel helps.

    The service says ``OTSTunnelExpired`` if full data took longer than the log is kept, and ``OTSTrimmedDataAccess``
    for a read before the oldest record that is left, mostly as the text of an ``OTSTunnelServerUnavailable``.
    """


class TunnelPermissionDeniedError(TunnelError):
    """The credentials do not permit it (``OTSPermissionDenied``). Consuming ends."""


class TunnelExistsError(TunnelError):
    """A tunnel of that name exists (``OTSTunnelExist``)."""


class SequenceNumberNotMatchError(TunnelError):
    """Another consumer stored a checkpoint, or the channel went to one (``OTSSequenceNumberNotMatch``)."""


class TunnelSessionGoneError(TunnelError):
    """The session ended, usually for lack of heartbeats (``OTSResourceGone``). Connect again."""


class TunnelServerUnavailableError(TunnelError):
    """The service has a passing problem (``OTSTunnelServerUnavailable``). Repeat.

    With a status below 500, and a text that begins with another code, the error is the one of that code.
    """


class TunnelAnswerError(TunnelError):
    """An answer cannot be believed: it is cut, damaged, or leads nowhere. Nothing of it was used. Repeat."""


class TunnelOrderError(TunnelAnswerError, DisorderError):
    """A page is whole, and does not follow the pages that were read before it. It or its token is wrong."""


_CLASSES: dict[str, type[TunnelError]] = {
    "OTSParameterInvalid": TunnelParameterInvalidError,
    "OTSTunnelExpired": TunnelExpiredError,
    LOST_LOG: TunnelExpiredError,
    "OTSPermissionDenied": TunnelPermissionDeniedError,
    "OTSTunnelExist": TunnelExistsError,
    "OTSSequenceNumberNotMatch": SequenceNumberNotMatchError,
    "OTSResourceGone": TunnelSessionGoneError,
    UNAVAILABLE: TunnelServerUnavailableError,
}

FINAL_ERRORS = (TunnelParameterInvalidError, TunnelExpiredError, TunnelPermissionDeniedError)
"""Errors after which consuming cannot go on; the Go client's rule, which is the stricter one of the two."""


def unwrapped(status: int, code: str, text: str) -> tuple[str, str]:
    """Code and text of the error that the service means.

    The Tunnel Service passes on an error of the table service as the text of an error of its own. The text counts then,
    unless the status says that the service itself is out of order.
    """
    inner = _INNER_ERROR.fullmatch(text) if code == UNAVAILABLE and status < FIRST_SERVER_ERROR else None
    return (code, text) if inner is None else (inner[1], inner[2] or text)


def typed(error: StreamClientError, answered: Exception | None = None) -> StreamClientError:
    """The same error as the class for its code, where there is one; ``answered`` is what it was made of."""
    if isinstance(error, TrimmedDataException):
        status, request_id = getattr(answered, "http_status", None), getattr(answered, "request_id", None)
        return TunnelExpiredError(
            str(error), kind=ErrorKind.PERMANENT, code=LOST_LOG, http_status=status, request_id=request_id
        )
    if not isinstance(error, DependencyException) or error.code is None:
        return error
    kind = _CLASSES.get(error.code)
    if kind is None:
        return error
    return kind(
        str(error), kind=error.kind, code=error.code, http_status=error.http_status, request_id=error.request_id
    )
