"""The translation of errors of the SDK and its HTTP library into errors of this package.

Codes and statuses come from the product's list of error codes, and from the retry rules of the Java, Go and Python
SDKs. These SDKs agree on the errors after which the service has surely changed nothing. This module imports the SDK, so
import it only in modules that need the SDK anyway.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from google.protobuf.message import DecodeError
from tablestore.error import OTSClientError, OTSServiceError
from tablestore.protocol import OTSProtocol
from urllib3 import exceptions as http_errors

from streamclient.errors import (
    DependencyException,
    ErrorKind,
    StreamClientError,
    StreamClientException,
    TrimmedDataException,
    UnreadableAnswerError,
    advice_to_start,
    printable,
)

CONDITION_CHECK_FAIL = "OTSConditionCheckFail"
"""The error code if the row did not meet the condition of a write. The service has changed nothing."""

OBJECT_NOT_EXIST = "OTSObjectNotExist"
"""The error code if a table or stream does not exist."""

OBJECT_ALREADY_EXIST = "OTSObjectAlreadyExist"
"""The error code if a table to be created exists already."""

NO_PERMISSION = "OTSNoPermissionAccess"
"""The error code if the credentials are right, but a policy forbids the operation."""

AUTH_FAILED = "OTSAuthFailed"
"""The error code if the signature of a request is wrong, because of a wrong key id, secret, instance or clock."""

_TRIMMED_CODE = "OTSTrimmedDataAccess"
# Gateways also send this text with the code OTSParameterInvalid.
_TRIMMED_TEXT = "Requested stream data is already trimmed"

FLOW_CONTROL = "OTSFlowControl"
"""The error code if the service throttles requests. HTTP status 429 means the same, whatever the code is."""

SERVICE_HEADERS = "x-ots-"
"""The prefix of the service's own headers. A response that a gateway makes itself has no such header."""

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
        "OTSRequestTimeout",  # the service did not receive the body of the request
    }
)
_UNCERTAIN_CODES = frozenset(
    {"OTSTimeout", "OTSInternalServerError", "OTSServerUnavailable", "OTSTunnelServerUnavailable"}
)
# With this text, the code OTSQuotaExhausted means throttling, and not a full instance.
_TOO_FREQUENT_TEXT = "Too frequent table operations."

LONGEST_TEXT = 2_000
"""The largest number of characters of a service's message that an error keeps. Known messages have fewer than 500."""

LONGEST_NAME = 100
"""The largest number of characters of an error code or a request id that an error keeps. A request id has 36
characters, and the longest known code has 42."""

DIFFERS = "MD5 mismatch in response."
"""The beginning of the SDK's message for a response whose body was changed on its way from the service."""

_SKEWED = "The difference between date in response and system time is more than 15 minutes."

_IF_IT_LASTS = "If it lasts, check the endpoint, and the gateways and proxies on the way"
_ADVICE = (
    (DIFFERS, f"It was probably damaged or cut on its way. {_IF_IT_LASTS}"),
    (
        "is missing in response header",
        f"Every answer of the service has this header: a gateway or proxy has probably answered. {_IF_IT_LASTS}",
    ),
    ("gateway", ""),  # a message about a gateway needs no advice
    ("", f"The service does not answer so: a gateway or proxy has probably made or changed it. {_IF_IT_LASTS}"),
)
"""Pairs of a text and the advice for the user. Search the pairs in order for a text that occurs in the SDK's message
about a refused response: the first such pair has the advice for this message."""

_CHECK_NETWORK = "If it lasts, check the endpoint, the network and the state of the service"

_THROTTLED, _TRANSIENT = ErrorKind.THROTTLED, ErrorKind.TRANSIENT

_NEVER_SENT = (http_errors.ConnectTimeoutError, http_errors.NewConnectionError, http_errors.EmptyPoolError)
_UNUSABLE = (http_errors.LocationValueError, http_errors.ClosedPoolError)
_NO_ANSWER = (http_errors.HTTPError, http.client.HTTPException, OSError)


class AnswerError(OTSClientError):  # type: ignore[misc]  # the SDK has no types
    """The response to ``operation`` cannot be used.

    ``is_services`` says whether at least a part of the response comes from the service. If so, the HTTP status does not
    prove whether the service has carried out the request, and the request may be repeated. Any other response comes
    from a gateway, which would refuse a repeated request, too. ``is_unreadable`` says that the bytes of the response
    arrived as they were sent, but cannot be decoded.
    """

    def __init__(
        self, message: str, http_status: int, operation: str, *, is_services: bool, is_unreadable: bool = False
    ) -> None:
        super().__init__(message, http_status)
        self.operation = operation
        self.is_services = is_services
        self.is_unreadable = is_unreadable


def answer_error(error: OTSClientError, operation: str, status: int, headers: Mapping[str, str]) -> AnswerError:
    """Return the ``AnswerError`` for an ``error`` of the SDK about a response with ``status`` and ``headers``.

    The names of ``headers`` are in lower case. If the SDK refuses the response because of this machine's clock,
    ``is_services`` is false, because a repeated request would not help.
    """
    is_skewed = error.message.startswith(_SKEWED)
    message = f"{error.message} {_clocks(headers.get('x-ots-date', ''))}" if is_skewed else error.message
    return AnswerError(message, status, operation, is_services=is_services(headers) and not is_skewed)


def _clocks(date: str) -> str:
    """Return a sentence with the times of the service's clock and of this machine's clock."""
    return f"The service's clock shows {printable(date, LONGEST_NAME)}, this machine's {_machine_time()}"


def _machine_time() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def is_services(headers: Iterable[str]) -> bool:
    """Return whether one of the names in ``headers`` shows that the response comes from the service."""
    return any(name.startswith(SERVICE_HEADERS) for name in headers)


def unreadable(operation: str, error: Exception, status: int) -> AnswerError:
    """Return the ``AnswerError`` for a response that arrived as it was sent, but whose decoding raised ``error``."""
    return AnswerError(str(error), status, operation, is_services=True, is_unreadable=True)


def telling_protocol(protocol: OTSProtocol) -> OTSProtocol:
    """Return a copy of a client's protocol object that raises ``AnswerError`` for every faulty response.

    The SDK's own errors do not distinguish an unreadable response from a request that cannot be made. If ``protocol``
    is of a class of the user, and not of the SDK's class ``OTSProtocol``, return it unchanged.
    """
    return _TellingProtocol(protocol) if type(protocol) is OTSProtocol else protocol


class _TellingProtocol(OTSProtocol):  # type: ignore[misc]  # the SDK has no types
    def __init__(self, protocol: OTSProtocol) -> None:
        self.__dict__.update(protocol.__dict__)

    def handle_error(
        self, api_name: str, query: str, status: int, reason: str, headers: Mapping[str, str], *others: Any
    ) -> None:
        try:
            super().handle_error(api_name, query, status, reason, headers, *others)
        except OTSServiceError as error:
            if error.code:
                raise
            # The SDK's parser makes an error without a code if the body of the response is empty or very short.
            problem = OTSClientError(f"HTTP status: {status}, reason: {reason}.")
            raise answer_error(problem, api_name, status, _lower_case(headers)) from error
        except OTSClientError as error:
            raise answer_error(error, api_name, status, _lower_case(headers)) from error

    def parse_response(self, api_name: str, status: int, headers: Mapping[str, str], body: bytes) -> Any:
        try:
            return super().parse_response(api_name, status, headers, body)
        except Exception as error:  # the SDK's decoders may raise any type of error
            raise unreadable(api_name, error, status) from error


def _lower_case(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def classify(error: Exception, *, write: bool, client: Any) -> StreamClientError:
    """Return any exception of an SDK call as an error of this package. The caller raises it ``from`` the original.

    ``write`` says whether the call could change data. If a write gets no response, the error's kind is ``AMBIGUOUS``.
    If a read gets no response, the kind is ``TRANSIENT``, because it is harmless to repeat a read. An error of this
    package is returned unchanged. ``client`` is the SDK client that made the call, or ``None``. If the service refused
    the signature, the message has the client's key id and the time of this machine's clock.
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
        return _network_error(error, write, client)
    if isinstance(error, DecodeError):
        return _unreadable("the answer", str(error), write, None)
    if write:
        return _no_trust(f"the answer to a write could not be used: {_text(error)}", write)
    return StreamClientException(f"a call failed outside the service: {_text(error)}")


def from_answer(
    code: str, message: str, *, write: bool, http_status: int | None = None, request_id: str | None = None
) -> StreamClientError:
    """Return the service's error ``code`` and ``message`` as an error of this package.

    The error concerns a whole request, or one row of a batch. For one row of a batch, ``http_status`` is ``None``.
    """
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
    except Exception:  # an error of the user's credentials must not hide the service's error
        return ""
    return (
        f" Signed with access key id {key_id!r} for instance {instance!r} when this machine's clock showed "
        f"{_machine_time()}: "
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
    """Return an error of the SDK itself as an error of this package.

    An error without an HTTP status concerns the arguments of the call. An error with a status concerns the response.
    """
    status, text = error.http_status, printable(str(error), LONGEST_TEXT)
    if status is None:
        return DependencyException(f"the SDK refused the call: {text}", kind=ErrorKind.PERMANENT)
    named = isinstance(error, AnswerError)
    answer = f"the answer to {error.operation}" if named else "the answer"
    if status == http.client.TOO_MANY_REQUESTS:
        wish = "the service, or a gateway before it, wants fewer requests and did nothing. If it lasts, ask less often"
        return DependencyException(f"{_said(answer, status)}: {wish}. ({text})", kind=_THROTTLED, http_status=status)
    if status == http.client.REQUEST_TIMEOUT:
        late = "the request did not arrive in time, and nothing was done. If it lasts, check the network"
        return DependencyException(f"{_said(answer, status)}: {late}. ({text})", kind=_TRANSIENT, http_status=status)
    if named and error.is_unreadable:
        return _unreadable(answer, text, write, status)
    if text.startswith(_SKEWED):
        wrong = f"{answer} is refused, because this machine's clock is wrong: {text}. Set this machine's clock"
        # With a success status, the service may have applied a write.
        kind = ErrorKind.PERMANENT if 300 <= status < 500 else _doubt(write)
        return DependencyException(wrong, kind=kind, http_status=status)
    is_doubtful = error.is_services if named else text.startswith(DIFFERS)
    if 300 <= status < 500 and not is_doubtful:  # a gateway with another protocol has responded
        kind, problem = ErrorKind.PERMANENT, f"{_said(answer, status)}, and is not the service's: {text}"
    else:
        kind, problem = _doubt(write), f"{answer} cannot be trusted: {text}"
    advice = next(advice for words, advice in _ADVICE if words in text)
    return DependencyException(f"{problem} {advice}".rstrip(" ."), kind=kind, http_status=status)


def _said(answer: str, status: int) -> str:
    reason = http.client.responses.get(status, "")
    return f"{answer} has HTTP status {status}{f' ({reason})' if reason else ''} without a readable error"


def _unreadable(answer: str, text: str, write: bool, status: int | None) -> UnreadableAnswerError:
    return UnreadableAnswerError(
        f"{answer} cannot be read: {printable(text, LONGEST_TEXT)}. It arrived as it was sent, so the service, or a "
        f"gateway before it, is at fault. If it lasts, check the endpoint, and look for a newer streamclient",
        kind=_doubt(write),
        http_status=status,
    )


def _network_error(error: Exception, write: bool, client: Any) -> DependencyException:
    reason = error.reason if isinstance(error, http_errors.MaxRetryError) and error.reason else error
    host = getattr(client, "host", None)
    where = f" {host}" if isinstance(host, str) else ""
    if isinstance(reason, _NEVER_SENT):  # the text of the reason already contains the address
        return DependencyException(f"no connection: {_text(reason)}{_start_one(reason, host)}", kind=_TRANSIENT)
    if isinstance(reason, _UNUSABLE) or _is_bad_certificate(reason):
        return DependencyException(f"the endpoint{where} cannot be used: {_text(reason)}", kind=ErrorKind.PERMANENT)
    of = f" from{where}" if where else ""
    return _no_trust(f"no answer{of}: {_text(reason)}. {_CHECK_NETWORK}", write)


def _start_one(error: BaseException, endpoint: object) -> str:
    """Return the advice to start a local server if a port of this machine refused the connection; otherwise ``""``."""
    is_refused = isinstance(error.__cause__ or error.__context__, ConnectionRefusedError)
    return advice_to_start(endpoint) if is_refused and isinstance(endpoint, str) else ""


def _is_bad_certificate(error: BaseException) -> bool:
    inner = error.args[0] if error.args else None
    return isinstance(error, ssl.SSLCertVerificationError) or isinstance(inner, ssl.SSLCertVerificationError)


def _no_trust(text: str, write: bool, http_status: int | None = None) -> DependencyException:
    return DependencyException(text, kind=_doubt(write), http_status=http_status)


def _doubt(write: bool) -> ErrorKind:
    return ErrorKind.AMBIGUOUS if write else ErrorKind.TRANSIENT


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {printable(str(error), LONGEST_TEXT)}"
