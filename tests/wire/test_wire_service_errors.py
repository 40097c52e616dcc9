"""Corners of the error mapping; the common cases are in ``test_service_errors``."""

from __future__ import annotations

import http.client

import pytest
from google.protobuf.message import DecodeError
from tablestore.error import OTSClientError, OTSServiceError
from urllib3 import exceptions as network

from streamclient.errors import DependencyException, ErrorKind, TrimmedDataException, UnreadableAnswerError
from streamclient.wire.service_errors import classify


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OTSClientError("HTTP status: 429, reason: Too Many Requests.", 429), ErrorKind.THROTTLED),
        (OTSClientError("HTTP status: 408, reason: Request Timeout.", 408), ErrorKind.TRANSIENT),
        (OTSClientError("HTTP status: 301, reason: Moved.", 301), ErrorKind.PERMANENT),
        (network.NewConnectionError(None, "refused"), ErrorKind.TRANSIENT),  # type: ignore[arg-type]
        (network.EmptyPoolError(None, "no free connection"), ErrorKind.TRANSIENT),  # type: ignore[arg-type]
        (network.ClosedPoolError(None, "closed"), ErrorKind.PERMANENT),  # type: ignore[arg-type]
        (network.LocationParseError("http://["), ErrorKind.PERMANENT),
        (http.client.BadStatusLine("x"), ErrorKind.AMBIGUOUS),
        (TimeoutError("timed out"), ErrorKind.AMBIGUOUS),
        (DecodeError("bad answer"), ErrorKind.AMBIGUOUS),
    ],
)
def test_what_a_failed_write_means(error: Exception, kind: ErrorKind) -> None:
    mapped = classify(error, write=True, client=None)

    assert isinstance(mapped, DependencyException)
    assert mapped.kind is kind


def test_an_answer_to_a_read_that_is_no_message_may_be_asked_for_again() -> None:
    mapped = classify(DecodeError("bad answer"), write=False, client=None)

    assert isinstance(mapped, UnreadableAnswerError)
    assert mapped.kind is ErrorKind.TRANSIENT


def test_trimmed_data_is_known_by_its_text_under_another_code() -> None:
    error = OTSServiceError(400, "OTSParameterInvalid", "Requested stream data is already trimmed or does not exist.")
    assert isinstance(classify(error, write=False, client=None), TrimmedDataException)


def test_trimmed_data_is_no_dependency_failure() -> None:
    """Otherwise a retry of passing failures would catch it."""
    trimmed = classify(OTSServiceError(404, "OTSTrimmedDataAccess", ""), write=False, client=None)
    assert not isinstance(trimmed, DependencyException)
