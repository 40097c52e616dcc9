"""The errors of the Tunnel Service, as exceptions.

Every one is a ``DependencyException``, with ``code``, ``kind``, ``http_status`` and ``request_id`` from the answer.
Codes and their handling: product documentation of the Tunnel Service and the retry rules of its Java and Go clients.
"""

from __future__ import annotations

import re

from streamclient.errors import DependencyException, DisorderError, ErrorKind, StreamClientError, TrimmedDataException

UNAVAILABLE = "OTSTunnelServerUnavailable"
"""Code of a passing problem of the service. An answer of status 500 or above without a readable error counts as such a
problem too, as in the Go client."""

LOST_LOG = "OTSTrimmedDataAccess"
"""Code of the table service, which the tunnel service calls: the records are past retention."""

FIRST_SERVER_ERROR = 500
"""The smallest HTTP status that denotes an outage, with any text."""

_INNER_ERROR = re.compile(r"(OTS[A-Za-z]+)\b[\s:]*(.*?)(?:\s+[0-9a-fA-F-]{36})?\s*", re.DOTALL)
"""An error of the table service written out as a text: its code, its text, and the id of the inner request."""


class TunnelError(DependencyException):
    """The Tunnel Service refused a call."""


class TunnelParameterInvalidError(TunnelError):
    """A parameter is invalid, or the table or tunnel does not exist (``OTSParameterInvalid``). Consuming ends.

    A call that names a channel may get this error for the channel alone. The channel is then given up and tried again.
    """


class TunnelExpiredError(TunnelError):
    """The log that the tunnel still needs is past retention. Consuming ends, and only another tunnel helps.

    The code is ``OTSTunnelExpired`` if full data took longer than the log is kept, and ``OTSTrimmedDataAccess`` for a
    read before the oldest record that is left, mostly as the text of an ``OTSTunnelServerUnavailable``.
    """


class TunnelPermissionDeniedError(TunnelError):
    """The credentials lack the permission (``OTSPermissionDenied``). Consuming ends."""


class TunnelExistsError(TunnelError):
    """A tunnel of that name exists (``OTSTunnelExist``)."""


class SequenceNumberNotMatchError(TunnelError):
    """Another consumer stored a checkpoint or received the channel (``OTSSequenceNumberNotMatch``)."""


class TunnelSessionGoneError(TunnelError):
    """The session ended, usually for lack of heartbeats (``OTSResourceGone``). Connect again."""


class TunnelServerUnavailableError(TunnelError):
    """The service has a passing problem (``OTSTunnelServerUnavailable``). Repeat.

    With a status below 500 and a text that begins with another code, the error is of the class for that code.
    """


class TunnelAnswerError(TunnelError):
    """An answer cannot be believed: it is cut, damaged, or leads nowhere. No part of it was used. Repeat."""


class TunnelOrderError(TunnelAnswerError, DisorderError):
    """A page is whole, but does not follow the pages that were read before it. The page or its token is wrong."""


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
"""Errors after which consuming cannot go on, by the Go client's rule, the stricter of the two."""


def unwrapped(status: int, code: str, text: str) -> tuple[str, str]:
    """Return code and text of the error that the service means.

    The Tunnel Service passes an error of the table service on as the text of its own error. That text counts, unless
    the status says that the service itself is out of order.
    """
    inner = _INNER_ERROR.fullmatch(text) if code == UNAVAILABLE and status < FIRST_SERVER_ERROR else None
    return (code, text) if inner is None else (inner[1], inner[2] or text)


def typed(error: StreamClientError, answered: Exception | None = None) -> StreamClientError:
    """Return the error as the class for its code, if one exists; ``error`` was made from ``answered``."""
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
