"""The errors of the Tunnel Service, as exceptions.

Each error is a ``DependencyException``, with ``code``, ``kind``, ``http_status`` and ``request_id`` from the answer.
The codes and their handling come from the documentation of the Tunnel Service, and from its Java and Go clients.
"""

from __future__ import annotations

import re

from streamclient.errors import DependencyException, DisorderError, ErrorKind, StreamClientError, TrimmedDataException

UNAVAILABLE = "OTSTunnelServerUnavailable"
"""The code of a transient problem of the service. An answer with status 500 or above and without a readable error also
counts as such a problem, as in the Go client."""

LOST_LOG = "OTSTrimmedDataAccess"
"""The table service's code for records that are older than the retention. The Tunnel Service passes it on."""

FIRST_SERVER_ERROR = 500
"""The smallest HTTP status that means an outage of the service, whatever the text of the answer is."""

_INNER_ERROR = re.compile(r"(OTS[A-Za-z]+)\b[\s:]*(.*?)(?:\s+[0-9a-fA-F-]{36})?\s*", re.DOTALL)
"""The pattern of a text that contains an error of the table service: its code, its text, and the id of its request."""


class TunnelError(DependencyException):
    """The Tunnel Service refused a call; ``code`` says why."""


class TunnelParameterInvalidError(TunnelError):
    """A parameter is invalid, or the table or tunnel does not exist (``OTSParameterInvalid``). Consuming ends.

    If a call names a channel, the channel alone may be the reason. In that case only the channel is given up, and is
    tried again later.
    """


class TunnelExpiredError(TunnelError):
    """The log that the tunnel still needs is older than the retention. Consuming ends; a new tunnel is needed.

    The code is ``OTSTunnelExpired`` if full data took longer than the retention. It is ``OTSTrimmedDataAccess`` for a
    read before the oldest record that is left; the service mostly sends that code in the text of an
    ``OTSTunnelServerUnavailable``.
    """


class TunnelPermissionDeniedError(TunnelError):
    """The credentials lack the permission (``OTSPermissionDenied``). Consuming ends."""


class TunnelExistsError(TunnelError):
    """A tunnel of that name exists (``OTSTunnelExist``)."""


class SequenceNumberNotMatchError(TunnelError):
    """Another consumer stored a checkpoint or received the channel (``OTSSequenceNumberNotMatch``)."""


class TunnelSessionGoneError(TunnelError):
    """The session ended, usually because heartbeats were missing (``OTSResourceGone``). Begin a new session."""


class TunnelServerUnavailableError(TunnelError):
    """The service has a transient problem (``OTSTunnelServerUnavailable``). Repeat the call.

    If the status is below 500 and the text begins with another code, the error has the class for that other code.
    """


class TunnelAnswerError(TunnelError):
    """An answer is incomplete, damaged or contradictory. No part of it was used. Repeat the call."""


class TunnelOrderError(TunnelAnswerError, DisorderError):
    """A complete page does not follow the pages that were read before it. The page or its token is wrong."""


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
"""The errors after which consuming cannot go on, by the Go client's rule, which is stricter than the Java client's."""


def unwrapped(status: int, code: str, text: str) -> tuple[str, str]:
    """Return the code and the text of the error that caused an answer.

    The text of a Tunnel Service's error may contain an error of the table service. If so, return the inner error. If
    ``status`` says that the Tunnel Service itself is out of order, return ``code`` and ``text`` unchanged.
    """
    inner = _INNER_ERROR.fullmatch(text) if code == UNAVAILABLE and status < FIRST_SERVER_ERROR else None
    return (code, text) if inner is None else (inner[1], inner[2] or text)


def typed(error: StreamClientError, answered: Exception | None = None) -> StreamClientError:
    """Return ``error`` as an object of the class for its code, or unchanged if its code has no class.

    ``answered`` is the exception from which ``error`` was made.
    """
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
