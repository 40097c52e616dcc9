"""The processing of a request: the check of its envelope, injected faults, the engine, counters, and the answer.

This module does not touch the network and never waits.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Protocol

from attrs import frozen

from streamclient.base import logs
from streamclient.server import refusals
from streamclient.server.auth import Credentials, Signer
from streamclient.server.counters import RequestCounters
from streamclient.server.engine import EngineAnswer
from streamclient.server.envelope import OpenedRequest, error_body, error_body_json, open_request, seal, speaks_json
from streamclient.server.fault_rules import Fail, FailRows, FaultBook, Harm
from streamclient.server.inspection import Inspected, counted, inspect
from streamclient.server.observing import Exchange, Observer
from streamclient.server.partial import execute_partially
from streamclient.server.server_errors import ServiceError

_log = logs.logger(__name__)

DEFAULT_ERRORS: Mapping[str, tuple[int, str]] = {
    "OTSAuthFailed": (403, "Signature mismatch."),
    "OTSCapacityUnitExhausted": (403, "Capacity unit is not enough."),
    "OTSConditionCheckFail": (403, "Condition check failed."),
    "OTSDataOutOfRange": (400, "Data out of scope."),
    "OTSFlowControl": (429, "The request is throttled."),
    "OTSForbiddenUpdateCapacityUnit": (400, "Your instance is forbidden to update capacity unit."),
    "OTSInternalServerError": (500, "Internal server error."),
    "OTSInvalidPK": (400, "Primary key schema mismatch."),
    "OTSMethodNotAllowed": (405, "Method not allowed."),
    "OTSNoPermissionAccess": (403, "You have no permission to access the requested resource."),
    "OTSNotEnoughCapacityUnit": (403, "Remaining capacity unit is not enough."),
    "OTSObjectAlreadyExist": (409, "Requested table already exists."),
    "OTSObjectNotExist": (404, "Requested table does not exist."),
    "OTSOperationThrottled": (403, "The operation is throttled."),
    "OTSOutOfColumnCountLimit": (400, "The number of columns in one row exceeded the limit."),
    "OTSOutOfRowSizeLimit": (400, "The total data size of columns in one row exceeded the limit."),
    "OTSOutOfTransactionDataSizeLimit": (400, "The data size of the transaction exceeds the limit."),
    "OTSParameterInvalid": (400, "The parameter is invalid."),
    "OTSPartitionUnavailable": (503, "The partition is not available."),
    "OTSQuotaExhausted": (403, "Too frequent table operations."),
    "OTSRequestBodyTooLarge": (413, "The size of POST data is too large."),
    "OTSRequestTimeout": (408, "Request timeout."),
    "OTSRowOperationConflict": (409, "Data is being modified by the other request."),
    "OTSServerBusy": (503, "Server is busy."),
    "OTSServerUnavailable": (503, "Server is not available."),
    "OTSSessionNotExist": (404, "Session not exist or may be timeout."),
    "OTSTableNotReady": (404, "The table is not ready."),
    "OTSTimeout": (503, "Operation timeout."),
    "OTSTooFrequentReservedThroughputAdjustment": (403, "Capacity unit adjustment is too frequent."),
    "OTSTrimmedDataAccess": (404, "Requested stream data is already trimmed or does not exist."),
    "OTSPermissionDenied": (403, "Permission denied."),
    "OTSResourceGone": (410, "The client has no session."),
    "OTSSequenceNumberNotMatch": (400, "The sequence number does not match."),
    "OTSTunnelExist": (409, "The tunnel already exists."),
    "OTSTunnelExpired": (400, "The incremental log of the tunnel is expired."),
    "OTSTunnelServerUnavailable": (503, "The tunnel server is not available."),
}
"""The HTTP status and text of each error code, from the product documentation. An injected error without its own
status or text takes these values. For codes with many texts or an unknown one, the text is this package's own. The
codes of ``refusals`` are among them."""

_TOKEN_HEADER = "x-ots-ststoken"

_OTHER_ERROR = (400, "Injected error.")
"""The HTTP status and text of an injected error whose code is not in ``DEFAULT_ERRORS``."""


class Executor(Protocol):
    """The interface of the engine that ``Service`` uses."""

    def answer(self, operation: str, body: bytes, message: Any = None) -> EngineAnswer:
        """Execute a request and return the answer; ``message`` is the parsed request, if the caller has parsed it.

        Raises:
            ServiceError: the engine refuses the request.
        """


@frozen
class Answer:
    """A complete HTTP answer: status, headers and body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@frozen
class Admitted:
    """A request whose envelope was accepted, with the injected faults that the request meets."""

    path: str
    opened: OpenedRequest
    json: bool
    """Whether the caller reads errors as JSON. The SDKs do so for some operations that this server does not serve."""
    about: Inspected
    harm: Harm
    caller: str = ""
    """The security token that came with the request; empty for a request without a token."""

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that the request names."""
        return self.about.tables


def real_time() -> datetime:
    """Return the real time, for the date headers of envelopes. The server's own clock may be ahead of real time."""
    return datetime.now(timezone.utc)


class Service:
    """One Tablestore instance: credentials, faults, counters, engine. Thread-safe if the engine is thread-safe."""

    def __init__(self, engine: Executor, credentials: Credentials) -> None:
        self.credentials = credentials
        self.faults: FaultBook = FaultBook()
        self.counters: RequestCounters = RequestCounters()
        self.observers: tuple[Observer, ...] = ()
        self._engine = engine

    def admit(self, path: str, headers: Mapping[str, str], body: bytes, *, harm: Harm | None = None) -> Admitted:
        """Check the envelope of a request, and decide which injected faults the request meets.

        With ``harm``, the request meets these faults, and no fault rule counts it.

        Raises:
            ServiceError: the envelope is invalid. The caller then answers the request with ``refuse``.
        """
        opened = open_request(path, headers, body, self.credentials, real_time())
        about = inspect(opened.operation, opened.body)
        if harm is None:
            harm = self.faults.harm(opened.operation, about.tables)
        return Admitted(path, opened, speaks_json(headers), about, harm, headers.get(_TOKEN_HEADER, ""))

    def execute(self, admitted: Admitted) -> Answer:
        """Execute an admitted request, with its injected faults; return the signed answer.

        Count the request, and pass it to the observers. A failure becomes an error answer, not an exception.
        """
        observers = self.observers
        began = time.perf_counter() if observers else 0.0
        answer, rows = self._executed(admitted)
        if observers:
            opened, seconds = admitted.opened, time.perf_counter() - began
            exchange = Exchange(
                admitted.caller,
                opened.operation,
                admitted.tables,
                opened.body,
                answer.status,
                answer.body,
                rows,
                seconds,
            )
            for observer in observers:
                _tell(observer, exchange)
        return answer

    def _executed(self, admitted: Admitted) -> tuple[Answer, int]:
        """Execute and count a request; return the answer, and the sum of the rows read and the rows to write."""
        operation = admitted.opened.operation
        try:
            answer = self._answer(admitted)
        except ServiceError as error:
            self.counters.add(operation, admitted.tables, failed=True)
            return _error_answer(admitted.path, error, admitted.opened.signer, json=admitted.json), 0
        self.counters.add(
            operation,
            admitted.tables,
            rows_read=answer.rows_read,
            rows_written=admitted.about.rows_written,
            units=answer.units,
        )
        sealed = seal(admitted.path, answer.body, real_time(), admitted.opened.signer)
        return Answer(200, sealed, answer.body), answer.rows_read + admitted.about.rows_written

    def drop(self, admitted: Admitted) -> None:
        """Count a request as failed, because a fault cuts its connection before the execution."""
        self.counters.add(admitted.opened.operation, admitted.tables, failed=True)

    def refuse(self, path: str, headers: Mapping[str, str], error: ServiceError) -> Answer:
        """Refuse a request whose caller is not authenticated: return ``error`` as an unsigned answer."""
        return _error_answer(path, error, None, json=speaks_json(headers))

    def _answer(self, admitted: Admitted) -> EngineAnswer:
        operation, body, action = admitted.opened.operation, admitted.opened.body, admitted.harm.action
        if isinstance(action, Fail):
            raise _injected(action)
        if isinstance(action, FailRows):
            _, text = DEFAULT_ERRORS.get(action.code, _OTHER_ERROR)
            merged = execute_partially(operation, body, action, action.message or text, self._run_part)
            return counted(operation, merged)
        return self._run(operation, body, admitted.about.message)

    def _run_part(self, operation: str, body: bytes) -> bytes:
        return self._run(operation, body).body

    def _run(self, operation: str, body: bytes, message: Any = None) -> EngineAnswer:
        try:
            return self._engine.answer(operation, body, message)
        except ServiceError:
            raise
        except Exception as error:
            _log.exception("%s failed inside the server", operation)
            raise refusals.SERVER_FAILED() from error


def _tell(observer: Observer, exchange: Exchange) -> None:
    try:
        observer(exchange)
    except Exception:
        _log.exception("an observer failed at %s", exchange.operation)


def _injected(action: Fail) -> ServiceError:
    status, message = DEFAULT_ERRORS.get(action.code, _OTHER_ERROR)
    return ServiceError(action.http_status or status, action.code, action.message or message)


def _error_answer(path: str, error: ServiceError, signer: Signer | None, *, json: bool) -> Answer:
    body = error_body_json(error) if json else error_body(error)
    return Answer(error.http_status, seal(path, body, real_time(), signer), body)
