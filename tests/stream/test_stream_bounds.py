"""Whatever comes from the network is bounded, in bytes and in time; beyond a bound it is an error that tells it."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException, IncompleteRead
from typing import Any

import pytest
from attrs import define, field
from byte_service import serving
from scripted_service import CERTIFICATE
from tablestore import Condition, OTSClient, Row
from urllib3.exceptions import ConnectTimeoutError

from streamclient.errors import DependencyException, ErrorKind
from streamclient.tablestore import channel, with_limits
from streamclient.tablestore.connection_limits import (
    BODY_BYTES_MAX,
    CHUNK_HEADS_BYTES_MAX,
    HEADS_BYTES_MAX,
    INTERIM_ANSWERS_MAX,
    MEBIBYTE,
)
from streamclient.tablestore.kept_connections import KeptConnections
from streamclient.tablestore.signed_calls import SignedCalls, with_own_connection
from streamclient.wire.service_errors import classify

STATUS = b"HTTP/1.1 200 OK\r\n"
OK = STATUS + b"Content-Length: 2\r\n\r\nok"
CHUNKED = STATUS + b"Transfer-Encoding: chunked\r\n\r\n"
EARLY = b"HTTP/1.1 103 Early Hints\r\n"
PATIENT_SECONDS = 30.0
SHORT_SECONDS = 0.2


def post(kept: KeptConnections, body: bytes = b"body") -> bytes:
    return kept.post("/ListTable", "", body, is_repeatable=False).body


def connections(port: int, **options: Any) -> KeptConnections:
    return KeptConnections(f"http://127.0.0.1:{port}", timeout_seconds=PATIENT_SECONDS, most_idle=2, **options)


TOO_MUCH: dict[str, tuple[bytes, str]] = {
    "a head": (
        STATUS + (b"a: " + b"x" * 1_000 + b"\r\n") * 90 + b"\r\n",
        f"more than {HEADS_BYTES_MAX} bytes of headers",
    ),
    "a status": (b"SSH-2.0-" + b"x" * 10_000 + b"\r\n\r\n", "^SSH-2.0-x{32}$"),
    "one line": (STATUS + b"a: " + b"x" * 70_000, f"more than {HEADS_BYTES_MAX} bytes of headers"),
    "headers": (STATUS + b"a: b\r\n" * 200 + b"\r\n", "more than 100 headers"),
    "interim answers": ((EARLY + b"\r\n") * (INTERIM_ANSWERS_MAX + 1) + OK, f"more than {INTERIM_ANSWERS_MAX} interim"),
    "interim heads": (
        (EARLY + (b"Link: " + b"x" * 500 + b"\r\n") * 50 + b"\r\n") * 4 + OK,
        f"more than {HEADS_BYTES_MAX} bytes of headers",
    ),
    "a length": (STATUS + b"Content-Length: %d\r\n\r\nok" % (BODY_BYTES_MAX + 1), f"longer than {BODY_BYTES_MAX}"),
    "an absurd length": (STATUS + b"Content-Length: %d\r\n\r\nok" % 10**30, f"longer than {BODY_BYTES_MAX}"),
    "a length without end": (
        STATUS + b"Content-Length: " + b"9" * 5_000 + b"\r\n\r\nok",
        "body is malformed",
    ),
    "a length with a sign": (STATUS + b"Content-Length: +2\r\n\r\nok", "body is malformed"),
    "a length with a line": (STATUS + b"Content-Length: 1_0\r\n\r\n0123456789", "body is malformed"),
    "a length of a chunk": (CHUNKED + b"f" * 16 + b"\r\nok", f"longer than {BODY_BYTES_MAX}"),
    "a length of a chunk with a sign": (CHUNKED + b"-2\r\nok", "body is malformed"),
    "a length of a chunk in another form": (CHUNKED + b"0x2\r\nok\r\n0\r\n\r\n", "body is malformed"),
    "a chunk": (CHUNKED + b"2\r\nok!\r\n0\r\n\r\n", "longer than it says"),
    "a trailer": (CHUNKED + b"2\r\nok\r\n0\r\n" + b"a: b\r\n" * 200 + b"\r\n", "more than 100 headers"),
}


@pytest.mark.parametrize(("answer", "says"), TOO_MUCH.values(), ids=TOO_MUCH.keys())
def test_too_much_of_anything_is_a_network_error_that_tells_the_bound(answer: bytes, says: str) -> None:
    with serving(answer, OK, closes=True) as server:
        kept = connections(server.port)
        with pytest.raises(HTTPException, match=says) as raised:
            post(kept)
        failure = classify(raised.value, write=False, client=None)
        assert isinstance(failure, DependencyException)
        assert failure.kind is ErrorKind.TRANSIENT
        assert len(str(failure)) < 500
        assert post(kept) == b"ok"


@pytest.mark.parametrize(
    "answer",
    [
        STATUS + b"\r\n" + b"x" * 1_001,
        CHUNKED + b"100\r\n" + b"x" * 256 + b"\r\n" + b"300\r\n" + b"x" * 768,
        STATUS + b"Content-Length: 1001\r\n\r\n" + b"x" * 1_001,
    ],
    ids=["to the end of the connection", "in chunks", "with a length"],
)
def test_a_body_that_is_too_long_is_given_up(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "BODY_BYTES_MAX", 1_000)
    with serving(answer, closes=True) as server, pytest.raises(HTTPException, match="is longer than 1000"):
        post(connections(server.port))


def test_chunks_are_bounded_in_number_and_as_many_as_honest_servers_send_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = CHUNKED + b"".join([b"64\r\n" + b"x" * 100 + b"\r\n"] * 2_000) + b"0\r\n\r\n"
    endless = CHUNKED + b"1\r\nx\r\n" * ((HEADS_BYTES_MAX + CHUNK_HEADS_BYTES_MAX) // 4)
    with serving(honest, endless, closes=True) as server:
        kept = connections(server.port)
        assert len(post(kept)) == 200_000
        with pytest.raises(HTTPException, match="too many chunks"):
            post(kept)


def test_no_room_is_made_for_bytes_before_they_came() -> None:
    answer = STATUS + b"Content-Length: %d\r\n\r\nok" % (200 * MEBIBYTE)
    with serving(answer, closes=True) as server:
        kept = connections(server.port)
        tracemalloc.start()
        try:
            with pytest.raises(IncompleteRead):
                post(kept)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert peak < 20 * MEBIBYTE


@pytest.mark.parametrize("error", [MemoryError(), OverflowError("Python int too large to convert to C ssize_t")])
def test_a_length_that_memory_does_not_hold_is_a_network_error(error: Exception) -> None:
    """Over a connection of a user's own, which may believe any length."""

    class Own:
        def send_receive(self, *_: object) -> object:
            raise error

    with serving() as server:
        client = server.client()
        client.connection = Own()
        with pytest.raises(HTTPException, match="no memory for an answer"):
            SignedCalls(client).call("ListStream", b"", is_repeatable=True)


@define
class _Full:
    """A channel that announces a body, for which there is then no memory."""

    head: bytes = STATUS + b"Content-Length: 2000000\r\n\r\n"

    def recv(self, size: int, flags: int = 0) -> bytes:
        head, self.head = self.head, b""
        if not head:
            raise MemoryError
        return head

    def close(self) -> None:
        """There is nothing to close."""


def test_a_body_that_memory_does_not_hold_is_a_network_error() -> None:
    with serving(OK) as server:
        kept = connections(server.port)
        post(kept)
        (idle,) = kept._idle
        idle._channel.close()
        idle._channel = _Full()  # type: ignore[assignment]
        with pytest.raises(HTTPException, match="no memory for an answer's body of 2000000 bytes"):
            idle._answer()


# --- time ------------------------------------------------------------------------------------------------------------


@define
class DribblingServer:
    """Sends the beginning of an answer, then its pattern byte by byte, far faster than a wait times out."""

    beginning: bytes
    pattern: bytes
    has_tls: bool = False
    port: int = 0
    ended: threading.Event = field(factory=threading.Event)

    def serve(self, listener: socket.socket) -> None:
        try:
            plain, _ = listener.accept()
        except OSError:  # nobody came
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        found = context.wrap_socket(plain, server_side=True) if self.has_tls else plain
        try:
            with found:
                found.recv(1)
                found.sendall(self.beginning)
                for _ in range(10):  # so that a client without a bound ends with another error
                    for byte in self.pattern:
                        found.sendall(bytes([byte]))
                        if self.ended.wait(0.01):
                            return
        except OSError:
            pass  # the client has had enough of it


@contextmanager
def dribbling(beginning: bytes, pattern: bytes, *, has_tls: bool = False) -> Iterator[DribblingServer]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = DribblingServer(beginning, pattern, has_tls, listener.getsockname()[1])
        thread = threading.Thread(target=server.serve, args=(listener,))
        thread.start()
        try:
            yield server
        finally:
            server.ended.set()
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("has_tls", [False, True], ids=["HTTP", "TLS"])
@pytest.mark.parametrize(
    ("beginning", "pattern"),
    [
        (b"HTTP/1.1 200 OK\r\nlong: ", b"x" * 10),
        (STATUS, b"a: b\r\n"),
        (b"", b"HTTP/1.1 103 Hi\r\n\r\n"),
        (STATUS + b"Content-Length: 1000\r\n\r\n", b"x" * 10),
        (STATUS + b"Content-Length: 100000\r\n\r\n", b"x" * 10),
        (STATUS + b"\r\n", b"x" * 10),
        (CHUNKED, b"1\r\nx\r\n"),
        (CHUNKED + b"1", b"0" * 10),
        (CHUNKED + b"100\r\n", b"x" * 10),
        (CHUNKED + b"0\r\n", b"a: b\r\n"),
    ],
    ids=["line", "headers", "interim", "body", "long body", "no length", "chunks", "size", "chunk", "trailer"],
)
def test_an_answer_that_comes_byte_by_byte_ends_at_the_deadline(
    beginning: bytes, pattern: bytes, has_tls: bool
) -> None:
    """Each wait is short; together they are not."""
    tls = ssl.create_default_context(cafile=str(CERTIFICATE)) if has_tls else None
    with dribbling(beginning, pattern, has_tls=has_tls) as server:
        origin = f"https://localhost:{server.port}" if has_tls else f"http://127.0.0.1:{server.port}"
        kept = KeptConnections(
            origin, timeout_seconds=PATIENT_SECONDS, most_idle=1, tls=tls, attempt_seconds=SHORT_SECONDS
        )
        with pytest.raises(TimeoutError, match=r"not complete within 0\.2 s|timed out") as raised:
            post(kept)

    failure = classify(raised.value, write=False, client=None)
    assert isinstance(failure, DependencyException)
    assert failure.kind is ErrorKind.TRANSIENT


def test_a_write_of_the_sdk_ends_at_the_deadline_too() -> None:
    with dribbling(STATUS + b"Content-Length: 1000\r\n\r\n", b"x" * 10) as server:
        client = OTSClient(
            f"http://127.0.0.1:{server.port}", "id", "secret", "instance", socket_timeout=PATIENT_SECONDS
        )
        own = with_own_connection(with_limits(client, attempt_seconds=SHORT_SECONDS))
        with pytest.raises(TimeoutError, match=r"not complete within 0\.2 s|timed out"):
            own.put_row("orders", Row([("id", 1)], [("n", 1)]), Condition("IGNORE"))


def test_a_request_that_the_other_end_does_not_take_ends_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # accepts by its kernel, and reads nothing
        kept = connections(listener.getsockname()[1], attempt_seconds=SHORT_SECONDS)
        with pytest.raises(TimeoutError, match=r"not complete within 0\.2 s|timed out"):
            post(kept, bytes(32 * MEBIBYTE))


def test_connecting_to_all_addresses_of_a_host_is_part_of_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        waiting = [socket.socket() for _ in range(4)]  # more than the kernel may queue
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(address)
        found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address)] * 4
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        kept = KeptConnections(f"http://127.0.0.1:{address[1]}", timeout_seconds=0.05, most_idle=1, attempt_seconds=0.1)
        with pytest.raises(ConnectTimeoutError, match=r"did not answer within 0\.001 s"):
            post(kept)
        for each in waiting:
            each.close()


@define
class CountedChannel:
    """A socket whose calls are counted."""

    inner: socket.socket
    calls: list[str] = field(factory=list)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self.inner, name)

        def counted(*arguments: Any) -> Any:
            self.calls.append(name)
            return call(*arguments)

        return counted


def test_the_usual_answer_costs_one_call_to_send_and_one_to_receive_and_a_late_one_is_hurried() -> None:
    long = STATUS + b"Content-Length: 100000\r\n\r\n" + b"x" * 100_000
    with serving(OK, OK, long, OK) as server:
        kept = connections(server.port, attempt_seconds=PATIENT_SECONDS)
        post(kept)
        (idle,) = kept._idle
        counted = CountedChannel(idle._channel)
        idle._channel = counted  # type: ignore[assignment]
        post(kept)
        assert counted.calls == ["send", "recv"]

        post(kept)  # its second wait begins later, and so must be shorter
        assert "setsockopt" in counted.calls
        microseconds = struct.unpack("@ll", counted.inner.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16))
        assert microseconds == (PATIENT_SECONDS, 0)
        post(kept)
