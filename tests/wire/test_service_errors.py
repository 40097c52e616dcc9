"""What a failed call means: whether it may have been applied, and whether another try makes sense."""

from __future__ import annotations

import ssl
import struct

import pytest
from tablestore.error import OTSClientError, OTSServiceError
from urllib3 import exceptions as network

from streamclient.errors import CodecError, DependencyException, ErrorKind, StreamClientException, TrimmedDataException
from streamclient.wire.service_errors import classify, from_answer

THROTTLED, TRANSIENT, AMBIGUOUS, PERMANENT = (
    ErrorKind.THROTTLED,
    ErrorKind.TRANSIENT,
    ErrorKind.AMBIGUOUS,
    ErrorKind.PERMANENT,
)


def kind(error: Exception, *, write: bool) -> ErrorKind:
    mapped = classify(error, write=write)
    assert isinstance(mapped, DependencyException)
    return mapped.kind


@pytest.mark.parametrize(
    ("status", "code", "text", "on_read", "on_write"),
    [
        (503, "OTSServerBusy", "Server is busy.", THROTTLED, THROTTLED),
        (403, "OTSNotEnoughCapacityUnit", "Remaining capacity unit is not enough.", THROTTLED, THROTTLED),
        (403, "OTSCapacityUnitExhausted", "Capacity unit is not enough.", THROTTLED, THROTTLED),
        (403, "OTSQuotaExhausted", "Too frequent table operations.", THROTTLED, THROTTLED),
        (403, "OTSQuotaExhausted", "Number of tables exceeded the quota.", PERMANENT, PERMANENT),
        (409, "OTSRowOperationConflict", "Data is being modified by the other request.", TRANSIENT, TRANSIENT),
        (404, "OTSTableNotReady", "The table is not ready.", TRANSIENT, TRANSIENT),
        (503, "OTSPartitionUnavailable", "The partition is not available.", TRANSIENT, TRANSIENT),
        (408, "OTSRequestTimeout", "Request timeout.", TRANSIENT, TRANSIENT),
        (503, "OTSTimeout", "Operation timeout.", TRANSIENT, AMBIGUOUS),
        (500, "OTSInternalServerError", "Internal server error.", TRANSIENT, AMBIGUOUS),
        (503, "OTSServerUnavailable", "Server is not available.", TRANSIENT, AMBIGUOUS),
        (502, "SomethingNew", "", TRANSIENT, AMBIGUOUS),
        (403, "OTSConditionCheckFail", "Condition check failed.", PERMANENT, PERMANENT),
        (403, "OTSAuthFailed", "Signature mismatch.", PERMANENT, PERMANENT),
        (404, "OTSObjectNotExist", "Requested table does not exist.", PERMANENT, PERMANENT),
        (400, "OTSParameterInvalid", "", PERMANENT, PERMANENT),
    ],
)
def test_service_errors_say_whether_a_write_may_be_applied(
    status: int, code: str, text: str, on_read: ErrorKind, on_write: ErrorKind
) -> None:
    error = OTSServiceError(status, code, text, "request-1")

    assert (kind(error, write=False), kind(error, write=True)) == (on_read, on_write)


def test_what_the_service_said_is_kept() -> None:
    mapped = classify(OTSServiceError(403, "OTSAuthFailed", "Signature mismatch.", "request-1"), write=False)

    assert isinstance(mapped, DependencyException)
    assert (mapped.code, mapped.http_status, mapped.request_id) == ("OTSAuthFailed", 403, "request-1")
    assert "Signature mismatch." in str(mapped)


def test_trimmed_data_has_an_exception_of_its_own() -> None:
    assert isinstance(classify(OTSServiceError(404, "OTSTrimmedDataAccess", ""), write=False), TrimmedDataException)


@pytest.mark.parametrize(
    ("error", "on_read", "on_write"),
    [
        (network.ReadTimeoutError(None, "/", "read timed out"), TRANSIENT, AMBIGUOUS),  # type: ignore[arg-type]
        (network.ProtocolError("connection broken", ConnectionResetError()), TRANSIENT, AMBIGUOUS),
        (ConnectionResetError("reset"), TRANSIENT, AMBIGUOUS),
        (network.ConnectTimeoutError("slow"), TRANSIENT, TRANSIENT),
        (network.MaxRetryError(None, "/", network.ConnectTimeoutError("slow")), TRANSIENT, TRANSIENT),  # type: ignore[arg-type]
        (network.MaxRetryError(None, "/", network.ProtocolError("cut")), TRANSIENT, AMBIGUOUS),  # type: ignore[arg-type]
        (network.SSLError(ssl.SSLCertVerificationError("self-signed")), PERMANENT, PERMANENT),
        (network.SSLError(ssl.SSLEOFError("cut")), TRANSIENT, AMBIGUOUS),
        (OTSClientError("table_name is not str."), PERMANENT, PERMANENT),
        (OTSClientError("MD5 mismatch in response.", 200), TRANSIENT, AMBIGUOUS),
        (OTSClientError("HTTP status: 502, reason: Bad Gateway.", 502), TRANSIENT, AMBIGUOUS),
        (OTSClientError("HTTP status: 404, reason: Not Found.", 404), PERMANENT, PERMANENT),
    ],
)
def test_errors_without_a_usable_answer(error: Exception, on_read: ErrorKind, on_write: ErrorKind) -> None:
    """A refused connection carried nothing; a cut one may have."""
    assert (kind(error, write=False), kind(error, write=True)) == (on_read, on_write)


def test_an_unknown_error_after_a_write_leaves_its_effect_open() -> None:
    assert kind(struct.error("unpack requires a buffer of 4 bytes"), write=True) is AMBIGUOUS
    assert isinstance(classify(struct.error("short"), write=False), StreamClientException)


def test_exceptions_of_this_package_pass_unchanged() -> None:
    error = CodecError("crc")

    assert classify(error, write=True) is error


def test_one_row_of_a_batch_is_judged_by_its_code() -> None:
    error = from_answer("OTSServerBusy", "Server is busy.", write=True)

    assert isinstance(error, DependencyException)
    assert (error.kind, error.code) == (THROTTLED, "OTSServerBusy")
