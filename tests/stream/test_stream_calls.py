"""Signed calls over kept connections, to servers that answer as told, byte by byte."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import BadStatusLine, HTTPException, IncompleteRead, RemoteDisconnected

import pytest
from attrs import define
from byte_service import ByteServer, serving
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tablestore import OTSClient, OTSClientError
from tablestore.auth import SignV2
from tablestore.connection import ConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from streamclient.errors import ConfigurationError
from streamclient.records import NATIVE
from streamclient.server import LocalTablestore
from streamclient.tablestore import TablestoreStreamApi, channel
from streamclient.tablestore.channel import RESTED_SECONDS, SILENCE_SECONDS
from streamclient.tablestore.kept_connections import KeptConnections
from streamclient.tablestore.signed_calls import SignedCalls, headers_of
from streamclient.wire import schema
from streamclient.wire.signature import sign_request_v2
from tests.wire.heads import head_of

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@contextmanager
def connected(*answers: bytes | None, closes: bool = False) -> Iterator[tuple[ByteServer, KeptConnections]]:
    with serving(*answers, closes=closes) as server:
        kept = KeptConnections(f"http://127.0.0.1:{server.port}", timeout_seconds=30, most_idle=3)
        try:
            yield server, kept
        finally:
            kept.close()


def post(kept: KeptConnections, *, is_repeatable: bool = True) -> bytes:
    return kept.post("/ListTable", "x-one: 1\r\n", b"body", is_repeatable=is_repeatable).body


def test_one_connection_serves_one_call_after_the_other() -> None:
    with connected(OK, OK, OK) as (server, kept):
        assert [post(kept) for _ in range(3)] == [b"ok"] * 3
        assert server.connections == 1


def test_a_request_has_host_length_headers_and_body() -> None:
    with connected(OK) as (server, kept):
        post(kept)

        head = f"POST /ListTable HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: 4\r\nx-one: 1\r\n\r\nbody"
        assert server.requests == [head.encode()]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
        b"HTTP/1.1 200 OK\nContent-Length:2\n\nok",
        b"HTTP/1.1 200\r\nCONTENT-LENGTH:   2  \r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1;x=y\r\nk\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n2\r\nok\r\n0\r\nx-late: 1\r\n\r\n",
    ],
)
def test_every_usual_form_of_an_answer_is_understood_and_leaves_the_connection_usable(answer: bytes) -> None:
    with connected(answer, OK) as (server, kept):
        assert (post(kept), post(kept), server.connections) == (b"ok", b"ok", 1)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    ],
)
def test_an_answer_that_ends_its_connection_is_followed_by_another_connection(answer: bytes) -> None:
    with connected(answer, answer, closes=True) as (server, kept):
        assert (post(kept), post(kept), server.connections) == (b"ok", b"ok", 2)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"SSH-2.0\r\n\r\n", BadStatusLine),
        (b"HTTP/1.1 abc\r\n\r\n", BadStatusLine),
        (b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\nok", HTTPException),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nok", HTTPException),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok", IncompleteRead),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n" + b"x" * 50_000, IncompleteRead),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", HTTPException),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n", HTTPException),
        (b"HTTP/1.1 200 OK\r\nlong: " + b"x" * 70_000 + b"\r\n\r\n", HTTPException),
        (None, RemoteDisconnected),
    ],
)
def test_what_is_no_answer_is_an_error_and_its_connection_is_not_used_again(
    answer: bytes | None, error: type[Exception]
) -> None:
    with connected(answer, OK, closes=True) as (server, kept):
        with pytest.raises(error):
            post(kept)
        assert (post(kept), server.connections) == (b"ok", 2)


LONG, LONGER = b"long" * 20_000, b"longer" * 60_000


def sized(body: bytes, head: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\n" + head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def test_long_and_short_answers_follow_each_other() -> None:
    """Behind a long one, another long one is expected; it may be short, announced, chunked, or have a large head."""
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % len(LONG) + LONG + b"\r\n0\r\n\r\n"
    large_head = b"x-large: " + b"x" * 3_000 + b"\r\n"
    answers = {
        sized(LONG): LONG,
        sized(LONGER): LONGER,
        sized(LONG, large_head): LONG,
        OK: b"ok",
        b"HTTP/1.1 100 Continue\r\n\r\n" + sized(LONGER): LONGER,
        b"HTTP/1.1 100 Continue\r\n\r\n" + sized(LONG): LONG,
        chunked: LONG,
        sized(b""): b"",
    }
    with connected(*answers) as (server, kept):
        assert [post(kept) for _ in answers] == [*answers.values()]
        assert server.connections == 1


@pytest.mark.parametrize("unasked", [b"H", OK])
def test_a_connection_that_said_more_than_was_asked_is_not_used_again(unasked: bytes) -> None:
    """What it said would be taken for the answer to the next call."""
    with connected(OK + unasked, sized(b"next"), closes=True) as (server, kept):
        assert (post(kept), post(kept), server.connections) == (b"ok", b"next", 2)


def test_a_connection_is_not_asked_again_at_once_whether_it_is_there_unless_a_call_may_not_come_twice() -> None:
    asked = []
    with connected(OK, OK, OK, OK) as (_, kept):
        post(kept)
        (idle,) = kept._idle
        idle._has_input_within = Asked(asked.append)
        post(kept)
        assert asked == []
        post(kept, is_repeatable=False)
        assert asked == [0]
        idle.used_at -= 2 * RESTED_SECONDS
        post(kept)
        assert asked == [0, 0, SILENCE_SECONDS]


@define
class Asked:
    """Says that an answer came at once, and nothing unasked."""

    note: Callable[[float], None]

    def __call__(self, seconds: float) -> bool:
        self.note(seconds)
        return seconds > 0


def test_a_body_that_stops_is_a_time_out_and_its_connection_is_not_used_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kept = KeptConnections(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_seconds=0.05, most_idle=1)

        def stall() -> None:
            channel, _ = listener.accept()
            with channel:
                channel.sendall(sized(LONG)[:-1])
                ended.wait()

        ended = threading.Event()
        thread = threading.Thread(target=stall)
        thread.start()
        try:
            with pytest.raises(TimeoutError, match="timed out"):
                post(kept)
            assert len(kept._idle) == 0
        finally:
            ended.set()
            thread.join()


def test_a_kept_connection_that_was_closed_meanwhile_is_replaced_for_a_call_that_may_come_twice() -> None:
    with connected(OK, None, OK) as (server, kept):
        assert (post(kept), post(kept)) == (b"ok", b"ok")
        assert (server.connections, len(server.requests)) == (2, 3)


def test_a_call_that_may_not_come_twice_is_not_sent_again() -> None:
    with connected(OK, None, OK) as (server, kept):
        post(kept)
        with pytest.raises(RemoteDisconnected):
            post(kept, is_repeatable=False)
        assert len(server.requests) == 2


def test_a_connection_that_the_service_has_closed_is_not_used_for_a_call_at_all() -> None:
    with connected(OK, OK, closes=True) as (server, kept):
        post(kept)
        (idle,) = kept._idle
        while not idle.is_dropped:
            threading.Event().wait(0.001)

        assert post(kept, is_repeatable=False) == b"ok"
        assert (server.connections, len(server.requests)) == (2, 2)


def test_no_more_connections_are_kept_than_wanted() -> None:
    with LocalTablestore() as local:
        kept = KeptConnections(local.endpoint, timeout_seconds=30, most_idle=2)
        barrier = threading.Barrier(5)

        def call() -> None:
            barrier.wait()
            for _ in range(20):
                kept.post("/ListTable", {}, b"", is_repeatable=True)

        threads = [threading.Thread(target=call) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(kept._idle) <= 2
        kept.close()
        assert len(kept._idle) == 0


def test_a_refused_connection_was_never_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(NewConnectionError, match=f"127.0.0.1:{port}: .*refused"):
        post(KeptConnections(f"http://127.0.0.1:{port}", timeout_seconds=30, most_idle=1))


def test_an_answer_that_does_not_come_is_a_time_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kept = KeptConnections(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_seconds=0.05, most_idle=1)
        with pytest.raises(TimeoutError):
            post(kept)


def test_connecting_for_too_long_was_never_sent() -> None:
    """The kernel answers no more connections than it may queue."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(address)
        with pytest.raises(ConnectTimeoutError, match=r"did not answer within 0\.05 s"):
            post(KeptConnections(f"http://127.0.0.1:{address[1]}", timeout_seconds=0.05, most_idle=1))
        for each in waiting:
            each.close()


# --- the envelope --------------------------------------------------------------------------------------------------


@pytest.fixture
def local() -> Iterator[LocalTablestore]:
    with LocalTablestore() as server:
        yield server


@pytest.mark.parametrize("options", [{}, {"region": "cn-hangzhou"}, {"region": "cn-hangzhou", "sign_date": "20260101"}])
def test_headers_are_those_of_the_sdk(
    local: LocalTablestore, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte, but for the moment."""
    from tablestore.auth import RequestContext

    client = local.client(sts_token="token", extra_headers={"x-ots-extra": " padded "}, **options)
    context = RequestContext(client.credentials_provider.get_credentials())
    expected, made = {}, {"x-ots-date": ""}
    while made["x-ots-date"] != expected.get("x-ots-date"):  # until both were made in the same second
        expected = client.protocol._make_request_headers(b"body", "/ListTable", client._signer, context)
        lines, _ = SignedCalls(client)._signed("/ListTable", b"body", client.credentials_provider.get_credentials())
        made = headers_of(lines)

    assert made == expected


def test_a_signer_of_somebodys_own_is_asked(local: LocalTablestore) -> None:
    class Own(SignV2):
        asked = 0

        def make_request_signature_and_add_headers(self, *arguments: object) -> None:
            Own.asked += 1
            super().make_request_signature_and_add_headers(*arguments)

    client = local.client()
    client._signer = Own(client.encoding)
    SignedCalls(client).call("ListStream", b"", is_repeatable=True)

    assert Own.asked == 1


def test_a_connection_of_somebodys_own_is_used(local: LocalTablestore) -> None:
    class Own(ConnectionPool):
        asked = 0

        def send_receive(self, *arguments: object) -> object:
            Own.asked += 1
            return super().send_receive(*arguments)

    client = local.client()
    client.connection = Own(client.host, client.path, timeout=30)
    SignedCalls(client).call("ListStream", b"", is_repeatable=True)
    client.connection.pool.clear()

    assert Own.asked == 1


def test_fresh_keys_are_used_from_the_next_call_on(local: LocalTablestore) -> None:
    client = local.client()
    calls = SignedCalls(client)
    calls.call("ListStream", b"", is_repeatable=True)
    client.credentials_provider.get_credentials()._access_key_secret = "another"

    with pytest.raises(Exception, match="OTSAuthFailed"):
        calls.call("ListStream", b"", is_repeatable=True)


def test_each_call_has_the_headers_that_the_client_has_by_then(local: LocalTablestore) -> None:
    client = local.client()
    calls, credentials = SignedCalls(client), client.credentials_provider.get_credentials()
    before = headers_of(calls._signed("/ListTable", b"body", credentials)[0])
    client.protocol.extra_headers = {"x-ots-extra": "1"}
    credentials._security_token = "token"
    after = headers_of(calls._signed("/ListTable", b"other", credentials)[0])

    assert (after["x-ots-extra"], after["x-ots-ststoken"]) == ("1", "token")
    assert after["x-ots-contentmd5"] != before["x-ots-contentmd5"]
    unsigned = {name: value for name, value in after.items() if name != "x-ots-signature"}
    assert after["x-ots-signature"] == sign_request_v2(local.access_key_secret, "/ListTable", unsigned)


def answer_of(local: LocalTablestore, change: Callable[[dict[str, str], bytes], bytes]) -> bytes:
    """What the local server answers to ListStream, changed."""
    client = local.client()
    answer = SignedCalls(client).send("/ListStream", b"", is_repeatable=True)
    headers = {**answer.headers}
    body = change(headers, answer.body)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if name != "content-length")
    return f"HTTP/1.1 {answer.status} OK\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


def dropped(name: str) -> Callable[[dict[str, str], bytes], bytes]:
    def change(headers: dict[str, str], body: bytes) -> bytes:
        del headers[name]
        return body

    return change


def replaced(name: str, value: str) -> Callable[[dict[str, str], bytes], bytes]:
    def change(headers: dict[str, str], body: bytes) -> bytes:
        headers[name] = value
        return body

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (dropped("x-ots-date"), '"x-ots-date" is missing'),
        (dropped("x-ots-requestid"), '"x-ots-requestid" is missing'),
        (dropped("x-ots-contenttype"), '"x-ots-contenttype" is missing'),
        (dropped("authorization"), '"Authorization" is missing'),
        (lambda headers, body: body + b"\x00", "MD5 mismatch"),
        (replaced("x-ots-date", "yesterday"), "Invalid date format"),
        (replaced("x-ots-date", "2026-13-01T00:00:00.000Z"), "Invalid date format"),
        (replaced("x-ots-date", "0000-01-01T00:00:00.000Z"), "Invalid date format"),
        (replaced("x-ots-date", "2020-01-01T00:00:00.000Z"), "more than 15 minutes"),
        (replaced("authorization", "Bearer x"), "Invalid Authorization"),
        (replaced("authorization", "OTS other:x"), "Invalid access key id"),
        (replaced("authorization", "OTS local-access-key-id:x"), "Invalid signature"),
        (replaced("x-ots-requestid", "another"), "Invalid signature"),
    ],
)
def test_an_answer_that_cannot_be_trusted_is_refused_with_the_sdks_words(
    local: LocalTablestore, change: Callable[[dict[str, str], bytes], bytes], problem: str
) -> None:
    with serving(answer_of(local, change)) as server:
        client = OTSClient(
            f"http://127.0.0.1:{server.port}", local.access_key_id, local.access_key_secret, local.instance
        )
        with pytest.raises(OTSClientError, match=rf"{problem}.* HTTP status: 200\."):
            SignedCalls(client).call("ListStream", b"", is_repeatable=True)


def test_a_gateways_refusal_keeps_its_status(local: LocalTablestore) -> None:
    with serving(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 6\r\n\r\n<html>") as server:
        client = OTSClient(f"http://127.0.0.1:{server.port}", "id", "secret", "instance")
        with pytest.raises(OTSClientError) as raised:
            SignedCalls(client).call("ListStream", b"", is_repeatable=True)

    assert raised.value.http_status == 502


def test_a_client_with_a_time_out_of_another_form_keeps_its_connections(local: LocalTablestore) -> None:
    from urllib3 import Timeout

    client = local.client(socket_timeout=Timeout(connect=5, read=30))
    assert TablestoreStreamApi(client).list_stream() == ()
    assert len(client.connection.pool.pools) == 1
    client.connection.pool.clear()


def test_something_else_than_a_client_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"must be a tablestore\.OTSClient, not 5"):
        SignedCalls(5)


def test_a_path_of_the_endpoint_is_part_of_the_target_and_not_of_the_signature(local: LocalTablestore) -> None:
    with serving(OK) as server:
        client = OTSClient(f"http://127.0.0.1:{server.port}/prefix", "id", "secret", "instance")
        SignedCalls(client).send("/ListStream", b"", is_repeatable=True)

    assert server.requests[0].startswith(b"POST /prefix/ListStream HTTP/1.1\r\n")


def test_messages_are_sent_as_they_are(local: LocalTablestore) -> None:
    body = schema.ListStreamRequest(table_name="orders").SerializeToString()
    with serving(OK) as server:
        client = OTSClient(f"http://127.0.0.1:{server.port}", "id", "secret", "instance")
        SignedCalls(client).send("/ListStream", body, is_repeatable=True)

    assert server.requests[0].endswith(b"\r\n\r\n" + body)


def test_streams_are_read_over_connections_of_their_own(local: LocalTablestore) -> None:
    """The client's own pool stays for the client's own calls."""
    client = local.client()
    assert TablestoreStreamApi(client).list_stream() == ()
    assert len(client.connection.pool.pools) == 0


@pytest.mark.parametrize("origin", ["http://h:abc", "https://h:99999", "http://h:0", "http://a..b", "http://[bad"])
def test_an_origin_that_nobody_can_reach_is_refused_when_it_is_given(origin: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^endpoint must be http"):
        KeptConnections(origin, timeout_seconds=30, most_idle=1)


def test_a_host_that_does_not_exist_was_never_reached() -> None:
    with pytest.raises(NewConnectionError, match=r"cannot resolve the host name 'no-such-host\.invalid'"):
        post(KeptConnections("http://no-such-host.invalid", timeout_seconds=30, most_idle=1))


HEADER_NAMES = st.sampled_from(["Content-Length", "x-ots-date", "X-Ots-RequestId", "n" * 64, "n" * 65, "a b", "é", ""])
HEADER_VALUES = st.sampled_from(["", "5", " 7 ", "\t8", "a:b", "v" * 300, "é", "\x00", "x\ry", "x\ny", "\x7f", "\x80"])
HEADS = st.builds(
    lambda status, headers, ends, behind: ends.join([status, *headers, "", ""]).encode("latin-1") + behind,
    st.sampled_from(
        [
            "HTTP/1.1 200 OK",
            "HTTP/1.1 200",
            "HTTP/1.1 403 ",
            "HTTP/1.0 200 OK",
            "HTTP/1.1 20",
            "HTTP/1.1 2000 OK",
            "x",
            "",
        ]
    ),
    st.lists(
        st.builds(
            lambda name, colon, value: f"{name}{colon}{value}",
            HEADER_NAMES,
            st.sampled_from([":", ": ", ""]),
            HEADER_VALUES,
        ),
        max_size=102,
    ),
    st.sampled_from(["\r\n", "\r\n", "\r\n", "\n"]),
    st.sampled_from([b"", b"12345", b"\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"]),
)


@pytest.mark.skipif(NATIVE is None, reason="the compiled codec is not built here, or is switched off")
@settings(deadline=None, max_examples=300)
@given(HEADS, st.integers(0, 400), st.binary(max_size=2))
@example(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 99 + b"\r\n", 400, b"")
@example(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 100 + b"\r\n", 400, b"")
def test_a_head_that_is_read_in_one_pass_says_what_it_says_line_by_line(data: bytes, place: int, other: bytes) -> None:
    """As it is, with a few bytes replaced, and cut off."""
    damaged = data[:place] + other + data[place + len(other) :]
    for head in (data, damaged, data[:place]):
        assert head_of(head) == head_of(head, is_in_one_pass=False)


@pytest.mark.skipif(NATIVE is None, reason="the compiled codec is not built here, or is switched off")
def test_the_head_of_the_services_answers_is_read_in_one_pass(local: LocalTablestore) -> None:
    """Else the test above would compare a reader with itself."""
    answer = SignedCalls(local.client()).send("/ListStream", b"", is_repeatable=True)
    lines = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
    head = f"HTTP/1.1 200 OK\r\n{lines}\r\n".encode()

    assert channel.read_head(head + answer.body) == (200, answer.headers, len(head))
