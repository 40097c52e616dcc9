"""What a failed call means: whether it may have been applied, and whether another try makes sense."""

from __future__ import annotations

import http.client
import re
import ssl
import struct
from collections.abc import Callable

import pytest
from google.protobuf.message import DecodeError
from tablestore import DeleteRowItem, OTSClient, Row
from tablestore.error import OTSClientError, OTSServiceError
from urllib3 import exceptions as network

from streamclient.cli.main import main
from streamclient.copying.copied_stream import CopiedStream
from streamclient.copying.source_table import SourceTable
from streamclient.copying.table_writer import DestinationWriter, changes_of
from streamclient.errors import (
    CodecError,
    DependencyException,
    ErrorKind,
    StreamClientError,
    StreamClientException,
    TrimmedDataException,
    UnreadableAnswerError,
)
from streamclient.records import RecordType, StreamRecord
from streamclient.server import LocalTablestore
from streamclient.tablestore.ranges import TableScan
from streamclient.tablestore.signed_calls import SignedCalls
from streamclient.wire.service_errors import classify, from_answer
from streamclient.worker.lease.lease_batches import send_rows
from streamclient.worker.lease.lease_manager import LeaseManager
from streamclient.worker.parking import TableParkingStore

THROTTLED, TRANSIENT, AMBIGUOUS, PERMANENT = (
    ErrorKind.THROTTLED,
    ErrorKind.TRANSIENT,
    ErrorKind.AMBIGUOUS,
    ErrorKind.PERMANENT,
)


LONG = "x" * 10_000_000


def kind(error: Exception, *, write: bool) -> ErrorKind:
    mapped = classify(error, write=write, client=None)
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
    error = OTSServiceError(403, "OTSAuthFailed", "Signature mismatch.", "request-1")
    mapped = classify(error, write=False, client=None)

    assert isinstance(mapped, DependencyException)
    assert (mapped.code, mapped.http_status, mapped.request_id) == ("OTSAuthFailed", 403, "request-1")
    assert "Signature mismatch." in str(mapped)


def lease_scan(client: OTSClient) -> None:
    LeaseManager(client, "status", "stream").list_leases()


def lease_write(client: OTSClient) -> None:
    (answer,) = send_rows(client, "status", [DeleteRowItem(Row([("id", 1)]), None)])
    raise answer.error or AssertionError(answer)


def epoch(client: OTSClient) -> None:
    (answer,) = LeaseManager(client, "status", "stream").draw_epochs(["shard"])
    raise answer if isinstance(answer, Exception) else AssertionError(answer)


def parked(client: OTSClient) -> None:
    list(TableParkingStore(client, "parked").parked_keys("stream"))


def rows(client: OTSClient) -> None:
    TableScan(calls=SignedCalls(client), table="orders", key=["id"]).page()


def replicated_rows(client: OTSClient) -> None:
    """Rows wait until the key is accepted; this writer was stopped before."""
    changes = changes_of([StreamRecord(RecordType.DELETE, (("id", 1),), ())])
    writer = DestinationWriter(SignedCalls(client), "orders", 1)
    writer.stop.set()
    writer.write(changes)


def replicated_place(client: OTSClient) -> None:
    CopiedStream.of(SourceTable(client, "orders"), "status", "stream", 1)


@pytest.mark.slow
@pytest.mark.parametrize("call", [lease_scan, lease_write, epoch, parked, rows, replicated_rows, replicated_place])
def test_whoever_meets_a_wrong_key_is_told_which_and_by_which_clock(call: Callable[[OTSClient], None]) -> None:
    with LocalTablestore() as local, pytest.raises(StreamClientError) as caught:
        call(OTSClient(local.endpoint, local.access_key_id, "wrong", local.instance, logger_name="tests.silent"))

    assert f"Signed with access key id {local.access_key_id!r} for instance {local.instance!r}" in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("words", [["list"], ["drop", "orders", "--yes"]], ids=" ".join)
def test_commands_about_tables_tell_a_wrong_key_likewise(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with LocalTablestore() as local:
        assert main(["tables", *words, "--endpoint", local.endpoint, "--access-key-secret", "wrong"]) != 0

    assert f"Signed with access key id {local.access_key_id!r}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        OTSServiceError(400, "OTSParameterInvalid", LONG, "id"),
        OTSServiceError(404, "OTSTrimmedDataAccess", LONG, "id"),
        OTSServiceError(403, "OTSAuthFailed", LONG, "id"),
        OTSServiceError(400, LONG, "text", LONG),
        OTSClientError(LONG),
        *(OTSClientError(LONG, status) for status in (200, 302, 408, 429, 500)),
        network.NewConnectionError(None, LONG),  # type: ignore[arg-type]
        network.ProtocolError(LONG),
        network.LocationValueError(LONG),
        ValueError(LONG),
    ],
    ids=lambda error: f"{type(error).__name__}-{getattr(error, 'http_status', None)}-{getattr(error, 'code', '')[:20]}",
)
@pytest.mark.parametrize("write", [False, True])
def test_a_text_of_megabytes_is_cut(error: Exception, write: bool) -> None:
    """What answers need not be the service; its text goes into logs, health and the status table."""
    mapped = classify(error, write=write, client=None)

    assert len(str(mapped)) < 2_500
    assert re.search(r"\.\.\.\(99\d+ characters left out\)\.\.\.", str(mapped))
    assert len(getattr(mapped, "code", None) or "") < 200
    assert len(getattr(mapped, "request_id", None) or "") < 200


def test_what_was_signed_is_told_beside_a_text_that_is_cut() -> None:
    with LocalTablestore() as local:
        mapped = classify(OTSServiceError(403, "OTSAuthFailed", LONG), write=False, client=local.client())

    assert "Signed with access key id 'local-access-key-id'" in str(mapped)
    assert len(str(mapped)) < 2_500


@pytest.mark.parametrize(
    "error",
    [
        OTSServiceError(404, "OTSTrimmedDataAccess", ""),
        OTSServiceError(400, "OTSParameterInvalid", "Requested stream data is already trimmed or does not exist."),
    ],
    ids=["by its code", "by its text under another code"],
)
def test_trimmed_data_has_an_exception_of_its_own(error: OTSServiceError) -> None:
    """Not a dependency failure: a retry of passing failures would catch it."""
    trimmed = classify(error, write=False, client=None)

    assert isinstance(trimmed, TrimmedDataException)
    assert not isinstance(trimmed, DependencyException)


def test_an_answer_to_a_read_that_is_no_message_may_be_asked_for_again() -> None:
    assert isinstance(classify(DecodeError("bad answer"), write=False, client=None), UnreadableAnswerError)


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
        (OTSClientError("MD5 mismatch in response. HTTP status: 404.", 404), TRANSIENT, AMBIGUOUS),
        (OTSClientError("HTTP status: 429, reason: Too Many Requests.", 429), THROTTLED, THROTTLED),
        (OTSClientError("HTTP status: 408, reason: Request Timeout.", 408), TRANSIENT, TRANSIENT),
        (OTSClientError("HTTP status: 301, reason: Moved.", 301), PERMANENT, PERMANENT),
        (network.NewConnectionError(None, "refused"), TRANSIENT, TRANSIENT),  # type: ignore[arg-type]
        (network.EmptyPoolError(None, "no free connection"), TRANSIENT, TRANSIENT),  # type: ignore[arg-type]
        (network.ClosedPoolError(None, "closed"), PERMANENT, PERMANENT),  # type: ignore[arg-type]
        (network.LocationParseError("http://["), PERMANENT, PERMANENT),
        (http.client.BadStatusLine("x"), TRANSIENT, AMBIGUOUS),
        (TimeoutError("timed out"), TRANSIENT, AMBIGUOUS),
        (DecodeError("bad answer"), TRANSIENT, AMBIGUOUS),
    ],
)
def test_errors_without_a_usable_answer(error: Exception, on_read: ErrorKind, on_write: ErrorKind) -> None:
    """A refused connection carried nothing; a cut one may have."""
    assert (kind(error, write=False), kind(error, write=True)) == (on_read, on_write)


def test_an_unknown_error_after_a_write_leaves_its_effect_open() -> None:
    assert kind(struct.error("unpack requires a buffer of 4 bytes"), write=True) is AMBIGUOUS
    assert isinstance(classify(struct.error("short"), write=False, client=None), StreamClientException)


def test_exceptions_of_this_package_pass_unchanged() -> None:
    error = CodecError("crc")

    assert classify(error, write=True, client=None) is error


def test_one_row_of_a_batch_is_judged_by_its_code() -> None:
    error = from_answer("OTSServerBusy", "Server is busy.", write=True)

    assert isinstance(error, DependencyException)
    assert (error.kind, error.code) == (THROTTLED, "OTSServerBusy")
