"""The one mapping of what the SDK and its HTTP library raise to what this package raises.

Codes and statuses: product documentation (error codes) and the retry rules of the Java, Go and Python SDKs, which agree
on what was surely not applied. Import it only where the SDK is in use anyway: it imports the SDK.
"""

from __future__ import annotations

import http.client
import ssl
from datetime import datetime, timezone
from typing import Any

from google.protobuf.message import DecodeError
from tablestore.error import OTSClientError, OTSServiceError
from urllib3 import exceptions as http_errors

from streamclient.errors import (
    CodecError,
    DependencyException,
    ErrorKind,
    StreamClientError,
    StreamClientException,
    TrimmedDataException,
    printable,
)

CONDITION_CHECK_FAIL = "OTSConditionCheckFail"
"""The row was not as the write required; nothing was applied."""

OBJECT_NOT_EXIST = "OTSObjectNotExist"
"""No such table or stream."""

OBJECT_ALREADY_EXIST = "OTSObjectAlreadyExist"
"""A table of that name exists."""

NO_PERMISSION = "OTSNoPermissionAccess"
"""The credentials are right, but a policy forbids this operation."""

AUTH_FAILED = "OTSAuthFailed"
"""The signature does not fit the request: key id, secret, instance or clock are not what the service expects."""

_TRIMMED_CODE = "OTSTrimmedDataAccess"
_TRIMMED_TEXT = "Requested stream data is already trimmed"  # also seen under OTSParameterInvalid, from gateways

FLOW_CONTROL = "OTSFlowControl"
"""Requests were throttled; it comes with HTTP status 429, which says so whatever the code."""

_THROTTLED_CODES = frozenset(
    {
        FLOW_CONTROL,
        "OTSServerBusy",
        "OTSStorageServerBusy",
        "OTSNotEnoughCapacityUnit",
        "OTSCapacityUnitExhausted",
        "OTSOperationThrottled",
        "OTSTooFrequentReservedThroughputAdjustment",
    }
)
_NOT_APPLIED_CODES = frozenset(
    {
        "OTSRowOperationConflict",
        "OTSOperationConflict",
        "OTSTableNotReady",
        "OTSPartitionUnavailable",
        "OTSRequestTimeout",  # the request body did not arrive
    }
)
_UNCERTAIN_CODES = frozenset(
    {"OTSTimeout", "OTSInternalServerError", "OTSServerUnavailable", "OTSTunnelServerUnavailable"}
)
_TOO_FREQUENT_TEXT = "Too frequent table operations."  # tells this use of OTSQuotaExhausted from a full instance

LONGEST_TEXT = 2_000
"""Characters of a message that are kept. The service's own are below 500."""

LONGEST_NAME = 100
"""Characters of a code or of a request's id that are kept. A request's id has 36, the longest known code 42."""

_NEVER_SENT = (http_errors.ConnectTimeoutError, http_errors.NewConnectionError, http_errors.EmptyPoolError)
_UNUSABLE = (http_errors.LocationValueError, http_errors.ClosedPoolError)
_NO_ANSWER = (http_errors.HTTPError, http.client.HTTPException, OSError)


def classify(error: Exception, *, write: bool, client: Any) -> StreamClientError:
    """Translate any exception of an SDK call; the caller raises the result ``from`` the original.

    ``write`` says whether the call could change something: only then a missing answer is ``AMBIGUOUS``; for reads it is
    ``TRANSIENT``, as repeating a read is harmless. An error of this package comes back as it is. ``client`` is
    the SDK's that made the call, so that a refused signature says whose it was, and by which clock; ``None`` if none
    did.
    """
    if isinstance(error, StreamClientError):
        return error
    if isinstance(error, OTSServiceError):
        signed = error.code == AUTH_FAILED and client
        message = f"{printable(error.message, LONGEST_TEXT // 2)}{_signed_by(client)}" if signed else error.message
        return from_answer(error.code, message, write=write, http_status=error.http_status, request_id=error.request_id)
    if isinstance(error, OTSClientError):
        return _client_error(error, write)
    if isinstance(error, _NO_ANSWER):
        return _network_error(error, write)
    if write:
        return _no_trust(f"the answer to a write could not be used: {_text(error)}", write)
    if isinstance(error, DecodeError):
        return CodecError(f"the answer is no valid message: {error}")
    return StreamClientException(f"a call failed outside the service: {_text(error)}")


def from_answer(
    code: str, message: str, *, write: bool, http_status: int | None = None, request_id: str | None = None
) -> StreamClientError:
    """Translate an error that the service named, for a whole request or for one row of a batch (without status)."""
    code, message = printable(code, LONGEST_NAME) if code else code, printable(message, LONGEST_TEXT)
    text = f"{code}: {message}"
    if request_id:
        request_id = printable(request_id, LONGEST_NAME)
        text = f"{text} (request {request_id})"
    is_trimmed = code == _TRIMMED_CODE or message.startswith(_TRIMMED_TEXT)
    if is_trimmed and http_status != http.client.TOO_MANY_REQUESTS:
        return TrimmedDataException(text)
    kind = _kind_of_answer(code, message, http_status, write)
    return DependencyException(text, kind=kind, code=code, http_status=http_status, request_id=request_id or None)


def _signed_by(client: Any) -> str:
    try:
        key_id = client.credentials_provider.get_credentials().get_access_key_id()
        instance = client.protocol.instance_name
    except Exception:  # whatever a provider of the user's own raises: the service's error is the one that counts
        return ""
    clock = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return (
        f" Signed with access key id {key_id!r} for instance {instance!r} when this machine's clock showed {clock}: "
        "check the key's secret, the instance's name and the clock"
    )


def _kind_of_answer(code: str, message: str, http_status: int | None, write: bool) -> ErrorKind:
    if http_status == http.client.TOO_MANY_REQUESTS or code in _THROTTLED_CODES:
        return ErrorKind.THROTTLED
    if code == "OTSQuotaExhausted" and message == _TOO_FREQUENT_TEXT:
        return ErrorKind.THROTTLED
    if code in _NOT_APPLIED_CODES:
        return ErrorKind.TRANSIENT
    if code in _UNCERTAIN_CODES or (http_status is not None and http_status >= 500):
        return ErrorKind.AMBIGUOUS if write else ErrorKind.TRANSIENT
    return ErrorKind.PERMANENT


def _client_error(error: OTSClientError, write: bool) -> StreamClientError:
    """The SDK's own complaint: without status about the arguments, with status about the answer."""
    status, text = error.http_status, printable(str(error), LONGEST_TEXT)
    if status is None:
        return DependencyException(f"the SDK refused the call: {text}", kind=ErrorKind.PERMANENT)
    if status == http.client.TOO_MANY_REQUESTS:
        return DependencyException(text, kind=ErrorKind.THROTTLED, http_status=status)
    if status == http.client.REQUEST_TIMEOUT:
        return DependencyException(text, kind=ErrorKind.TRANSIENT, http_status=status)
    if 300 <= status < 500:  # a gateway that speaks another protocol: wrong endpoint or credentials
        return DependencyException(text, kind=ErrorKind.PERMANENT, http_status=status)
    return _no_trust(f"the answer cannot be trusted: {text}", write, http_status=status)


def _network_error(error: Exception, write: bool) -> DependencyException:
    reason = error.reason if isinstance(error, http_errors.MaxRetryError) and error.reason else error
    if isinstance(reason, _NEVER_SENT):
        return DependencyException(f"no connection: {_text(reason)}", kind=ErrorKind.TRANSIENT)
    if isinstance(reason, _UNUSABLE) or _is_bad_certificate(reason):
        return DependencyException(f"the endpoint cannot be used: {_text(reason)}", kind=ErrorKind.PERMANENT)
    return _no_trust(f"no answer: {_text(reason)}", write)


def _is_bad_certificate(error: BaseException) -> bool:
    inner = error.args[0] if error.args else None
    return isinstance(error, ssl.SSLCertVerificationError) or isinstance(inner, ssl.SSLCertVerificationError)


def _no_trust(text: str, write: bool, http_status: int | None = None) -> DependencyException:
    kind = ErrorKind.AMBIGUOUS if write else ErrorKind.TRANSIENT
    return DependencyException(text, kind=kind, http_status=http_status)


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {printable(str(error), LONGEST_TEXT)}"
