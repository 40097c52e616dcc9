"""Calls over real HTTP to a server that answers as told: what is repeated, what is raised, what is sent and needed."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from tunnel_server import NEEDED, QUICK, Reply, Server, call_of, page, refusal

from streamclient.errors import ConfigurationError, DependencyException, ErrorKind
from streamclient.tablestore import Integrity, with_integrity
from streamclient.tunnel import (
    TunnelAnswerError,
    TunnelClient,
    TunnelPermissionDeniedError,
    TunnelServerUnavailableError,
)
from streamclient.tunnel.tunnel_client import DATA_RETRY, MANAGEMENT_RETRY
from streamclient.tunnel.tunnel_errors import FINAL_ERRORS, TunnelError, typed
from streamclient.wire import schema
from streamclient.wire.service_errors import from_answer

UNAVAILABLE = refusal(503, "OTSTunnelServerUnavailable")
BAD_GATEWAY: Reply = (502, {}, b"<html>bad gateway</html>")
READS: list[Callable[[TunnelClient], object]] = [
    lambda tunnels: tunnels.read_records("t", "c", "ch", "token"),
    lambda tunnels: tunnels.list_tunnel(),
]


# --- what is repeated ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("reply", [UNAVAILABLE, BAD_GATEWAY])
def test_service_that_stays_unavailable_is_asked_again_and_at_last_named(
    serve: Callable[..., Server], read: Callable[[TunnelClient], object], reply: Reply
) -> None:
    server = serve(reply)
    with pytest.raises(TunnelServerUnavailableError) as caught:
        read(server.tunnels())

    assert caught.value.code == "OTSTunnelServerUnavailable"
    assert len(server.paths) == 1 + QUICK.retries
    assert caught.value.request_id == ("request-1" if reply is UNAVAILABLE else None)


@pytest.mark.parametrize("failures", [(UNAVAILABLE,) * 3, (None,) * 4, (BAD_GATEWAY, None, UNAVAILABLE)])
def test_read_succeeds_once_the_service_is_back(serve: Callable[..., Server], failures: tuple[Reply, ...]) -> None:
    server = serve(*failures, page())
    assert server.tunnels().read_records("t", "c", "ch", "token").is_finished
    assert set(server.paths) == {"/tunnel/readrecords"}


def test_patience_is_that_of_the_go_client() -> None:
    assert (MANAGEMENT_RETRY.total_millis, MANAGEMENT_RETRY.shortest_pause_millis) == (35_000, 100)
    assert (DATA_RETRY.total_millis, DATA_RETRY.shortest_pause_millis, DATA_RETRY.longest_pause_millis) == (
        75_000,
        16,
        3_000,
    )


def test_change_whose_answer_is_lost_is_not_sent_again(serve: Callable[..., Server]) -> None:
    server = serve(None)
    with pytest.raises(DependencyException) as caught:
        server.tunnels().shutdown("t", "c")

    assert caught.value.kind is ErrorKind.AMBIGUOUS
    assert server.paths == ["/tunnel/shutdown"]


@pytest.mark.parametrize(
    ("status", "code", "is_passing"),
    [
        (503, "OTSTunnelServerUnavailable", True),
        (400, "OTSParameterInvalid", False),
        (400, "OTSTunnelExpired", False),
        (403, "OTSPermissionDenied", False),
        (409, "OTSTunnelExist", False),
        (400, "OTSSequenceNumberNotMatch", False),
        (410, "OTSResourceGone", False),
        (403, "OTSAuthFailed", False),
    ],
)
def test_only_the_passing_code_is_repeated(
    serve: Callable[..., Server], status: int, code: str, is_passing: bool
) -> None:
    server = serve(refusal(status, code), page())
    tunnels = server.tunnels()

    if is_passing:
        assert tunnels.read_records("t", "c", "ch", "token").is_finished
    else:
        with pytest.raises(DependencyException) as caught:
            tunnels.read_records("t", "c", "ch", "token")
        assert (caught.value.code, caught.value.http_status, caught.value.request_id) == (code, status, "request-1")
        assert len(server.paths) == 1


def test_codes_that_end_a_worker_are_those_of_the_go_client() -> None:
    codes = ["OTSParameterInvalid", "OTSTunnelExpired", "OTSPermissionDenied", "OTSResourceGone", "OTSAuthFailed"]
    final = [code for code in codes if isinstance(typed(from_answer(code, "no", write=True)), FINAL_ERRORS)]

    assert final == codes[:3]
    assert not isinstance(typed(from_answer("OTSAuthFailed", "no", write=True)), TunnelError)


# --- what an answer needs ------------------------------------------------------------------------------------------


def test_answers_need_none_of_the_signed_headers_of_table_operations(serve: Callable[..., Server]) -> None:
    server = serve((200, {}, schema.ConnectResponse(client_id="client-1").SerializeToString()))
    assert server.tunnels().connect("t", timeout_seconds=30, client_tag="tag") == "client-1"


def test_digest_that_comes_is_checked(serve: Callable[..., Server]) -> None:
    body = schema.ConnectResponse(client_id="client-1").SerializeToString()
    wrong = base64.b64encode(hashlib.md5(b"else").digest()).decode()
    server = serve((200, {"x-ots-contentmd5": wrong}, body))

    with pytest.raises(DependencyException, match="MD5 differs"):
        server.tunnels().connect("t", timeout_seconds=30, client_tag="tag")


def damaged(whole: bytes, part: bytes, other: bytes) -> Reply:
    """An answer as it arrives after something happened to it, with the digest that it was sent with."""
    digest = base64.b64encode(hashlib.md5(whole).digest()).decode()
    return (200, {**NEEDED, "x-ots-contentmd5": digest}, whole.replace(part, other))


def test_pages_are_compared_with_their_digest_unless_the_client_says_otherwise(serve: Callable[..., Server]) -> None:
    whole = schema.ReadRecordsResponse(next_token="finished").SerializeToString()
    server = serve(damaged(whole, b"finished", b"finishes"), (200, NEEDED, whole))
    assert server.tunnels().read_records("t", "c", "ch", "token").is_finished

    server = serve(damaged(whole, b"finished", b"finishes"), (200, NEEDED, whole))
    trusting = TunnelClient(with_integrity(server.client(), Integrity.CHECKSUMS), data_retry=QUICK)
    assert trusting.read_records("t", "c", "ch", "token").next_token == "finishes"


def test_a_page_that_cannot_be_read_is_compared_with_its_digest_in_any_case(serve: Callable[..., Server]) -> None:
    whole = schema.ReadRecordsResponse(next_token="finished").SerializeToString()
    server = serve(damaged(whole, b"\x08finished", b"\x09finished"), (200, NEEDED, whole))
    trusting = TunnelClient(with_integrity(server.client(), Integrity.CHECKSUMS), data_retry=QUICK)

    assert trusting.read_records("t", "c", "ch", "token").is_finished
    assert len(server.paths) == 2


def test_an_integrity_for_pages_leaves_the_digests_of_other_answers(serve: Callable[..., Server]) -> None:
    whole = schema.ConnectResponse(client_id="client-1").SerializeToString()
    server = serve(damaged(whole, b"client-1", b"client-2"))
    trusting = TunnelClient(with_integrity(server.client(), Integrity.CHECKSUMS))

    with pytest.raises(DependencyException, match="MD5 differs"):
        trusting.connect("t", timeout_seconds=30, client_tag="tag")


@pytest.mark.parametrize("verb", ["connect", "getcheckpoint", "readrecords", "describe"])
def test_empty_answer_where_a_message_is_needed_is_an_error_and_no_crash(
    serve: Callable[..., Server], verb: str
) -> None:
    with pytest.raises(TunnelAnswerError, match=f"the answer to {verb} cannot be read"):
        call_of(serve((200, NEEDED, b"")).tunnels(), verb)()


def test_empty_answers_are_right_where_nothing_is_said(serve: Callable[..., Server]) -> None:
    tunnels = serve((200, NEEDED, b"")).tunnels()

    assert tunnels.heartbeat("t", "c", []) == ()
    tunnels.checkpoint("t", "c", "ch", "token", 1)
    tunnels.shutdown("t", "c")
    tunnels.delete_tunnel("table", "name")
    tunnels.schedule("t", [])


def test_error_that_names_a_tunnel_keeps_its_code(serve: Callable[..., Server]) -> None:
    """Field 3 is the tunnel's id in this service, and a message of its own in the table operations."""
    server = serve(refusal(400, "OTSTunnelExpired", b"\x1a\x04id-1"))
    with pytest.raises(TunnelError) as caught:
        server.tunnels().get_checkpoint("t", "c", "ch")

    assert caught.value.code == "OTSTunnelExpired"


@pytest.mark.parametrize(
    "body", [b"", b"not found", b"\x0a", b"\x0a\x7fshort", b"\x08\x01", b"\x12\x02no", b"\x80" * 9, b"\xff"]
)
def test_refusal_without_a_readable_error_is_named_by_its_status(serve: Callable[..., Server], body: bytes) -> None:
    server = serve((404, {}, body))
    with pytest.raises(DependencyException, match=r"HTTP status 404 \(Not Found\) without a readable error") as caught:
        server.tunnels().get_checkpoint("t", "c", "ch")

    assert caught.value.http_status == 404


def test_refusal_of_a_gateway_in_json_keeps_its_code(serve: Callable[..., Server]) -> None:
    server = serve((403, {}, b'{"code": "OTSPermissionDenied", "message": "no"}'))
    with pytest.raises(TunnelPermissionDeniedError):
        server.tunnels().get_checkpoint("t", "c", "ch")


# --- what is sent --------------------------------------------------------------------------------------------------


def test_request_carries_what_the_service_needs(serve: Callable[..., Server]) -> None:
    server = serve(page())
    server.tunnels().read_records("t", "c", "ch", "token")

    (headers,) = server.headers
    assert headers["x-ots-accesskeyid"] == "id"
    assert headers["x-ots-instancename"] == "inst"
    assert headers["x-ots-apiversion"] == "2015-12-31"
    assert {"x-ots-date", "x-ots-contentmd5", "x-ots-signature"} <= headers.keys()
    assert "x-ots-ststoken" not in headers


def test_security_token_is_sent(serve: Callable[..., Server]) -> None:
    server = serve(page())
    server.tunnels(sts_token="temporary").read_records("t", "c", "ch", "token")
    assert server.headers[0]["x-ots-ststoken"] == "temporary"


def test_requests_are_signed_with_v4_where_the_client_has_a_region(serve: Callable[..., Server]) -> None:
    server = serve(page())
    server.tunnels(region="cn-hangzhou").read_records("t", "c", "ch", "token")
    assert {"x-ots-signaturev4", "x-ots-signdate", "x-ots-signregion"} <= server.headers[0].keys()


@pytest.mark.parametrize("client", [None, "endpoint", object()])
def test_what_is_no_client_is_refused(client: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"tablestore\.OTSClient"):
        TunnelClient(client)
