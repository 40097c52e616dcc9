"""What the Tunnel Service answers with, as exceptions.

Every one is a ``DependencyException``: ``code``, ``kind``, ``http_status`` and ``request_id`` are those of the answer.
Codes and their handling: product documentation of the Tunnel Service and the retry rules of its Java and Go clients.
"""

from __future__ import annotations

from streamclient.errors import DependencyException, StreamClientError


class TunnelError(DependencyException):
    """The Tunnel Service refused a call."""


class TunnelParameterInvalidError(TunnelError):
    """A parameter cannot work, or the table or tunnel does not exist (``OTSParameterInvalid``). Consuming ends."""


class TunnelExpiredError(TunnelError):
    """The log that the tunnel still needs is past retention (``OTSTunnelExpired``). Consuming ends."""


class TunnelPermissionDeniedError(TunnelError):
    """The credentials do not permit it (``OTSPermissionDenied``). Consuming ends."""


class TunnelExistsError(TunnelError):
    """A tunnel of that name exists (``OTSTunnelExist``)."""


class SequenceNumberNotMatchError(TunnelError):
    """Another consumer stored a checkpoint, or the channel went to one (``OTSSequenceNumberNotMatch``)."""


class TunnelSessionGoneError(TunnelError):
    """The session ended, usually for lack of heartbeats (``OTSResourceGone``). Connect again."""


class TunnelServerUnavailableError(TunnelError):
    """The service has a passing problem (``OTSTunnelServerUnavailable``). Repeat."""


_CLASSES: dict[str, type[TunnelError]] = {
    "OTSParameterInvalid": TunnelParameterInvalidError,
    "OTSTunnelExpired": TunnelExpiredError,
    "OTSPermissionDenied": TunnelPermissionDeniedError,
    "OTSTunnelExist": TunnelExistsError,
    "OTSSequenceNumberNotMatch": SequenceNumberNotMatchError,
    "OTSResourceGone": TunnelSessionGoneError,
    "OTSTunnelServerUnavailable": TunnelServerUnavailableError,
}

FINAL_ERRORS = (TunnelParameterInvalidError, TunnelExpiredError, TunnelPermissionDeniedError)
"""Errors after which consuming cannot go on; the Go client's rule, which is the stricter one of the two."""


def typed(error: StreamClientError) -> StreamClientError:
    """The same error as the class for its code, where there is one."""
    if not isinstance(error, DependencyException) or error.code is None:
        return error
    kind = _CLASSES.get(error.code)
    if kind is None:
        return error
    return kind(
        str(error), kind=error.kind, code=error.code, http_status=error.http_status, request_id=error.request_id
    )
