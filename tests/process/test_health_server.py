"""The server for probes beside clients that do not behave and judges that fail: never 200 by mistake, never stuck."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException

import pytest

from streamclient import HealthServer, StreamClientException, WorkerHealth
from streamclient.base import health_server
from streamclient.base.health_server import MOST_THREADS, _Handler
from streamclient.errors import NoThreadError
from tests.patience import FOREVER_SECONDS, PATIENCE_SECONDS, until
from tests.probing import NO_PAGES, PROBES, WELL, Told, ask, reason, silent_clients


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent clients are not given up for their silence, and others wait for a thread as long as the machine needs."""
    monkeypatch.setattr(_Handler, "timeout", FOREVER_SECONDS)
    monkeypatch.setattr(health_server, "ROOM_SECONDS", PATIENCE_SECONDS)


@pytest.fixture
def server() -> Iterator[HealthServer]:
    with Told().serve_health(0) as server:
        yield server


def threads_of(server: HealthServer) -> int:
    return sum(thread.name.startswith(f"health-{server.port}-") for thread in threading.enumerate())


def exchanged(server: HealthServer, sent: bytes) -> bytes:
    """All that the server sends for these bytes."""
    got = b""
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_SECONDS) as client:
        with suppress(OSError):  # the server may refuse what it has read, and be gone before the rest of it
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            while piece := client.recv(1 << 16):
                got += piece
    return got


# --- what is answered -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", NO_PAGES)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_other_paths_are_not_found(server: HealthServer, path: str, method: str) -> None:
    answered = ask(server.port, path, method)

    assert answered.status == 404
    assert answered.headers["Content-Type"] == "application/json"
    assert path.encode() not in answered.body


@pytest.mark.parametrize("path", [*PROBES, "/other"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW", "get"])
def test_other_methods_are_not_allowed(server: HealthServer, path: str, method: str) -> None:
    answered = ask(server.port, path, method, body=b"x" * 100_000)

    assert (answered.status, answered.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", PROBES)
def test_head_has_the_head_of_get_and_no_body(server: HealthServer, path: str) -> None:
    full, head = ask(server.port, path), ask(server.port, path, "HEAD")
    raw = exchanged(server, f"HEAD {path} HTTP/1.1\r\n\r\n".encode())  # a client of HTTP would not look for a body

    assert (head.status, head.head) == (full.status, full.head)
    assert raw.startswith(b"HTTP/1.0 200 OK\r\n")
    assert raw.index(b"\r\n\r\n") == len(raw) - 4
    assert int(head.headers["Content-Length"]) == len(full.body) > 0
    assert full.headers["Server"] == "streamclient"


NO_REQUESTS = [
    b"\r\n",
    b"nonsense\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET /health HTTP/9.9\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
    b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"GET /live HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n",
]


@pytest.mark.parametrize("sent", NO_REQUESTS)
def test_what_is_no_request_is_never_well(server: HealthServer, sent: bytes) -> None:
    got = exchanged(server, sent)

    assert b" 200 " not in got
    assert b"is_healthy" not in got
    assert ask(server.port, "/live").status == 200


@pytest.mark.parametrize("error", [StreamClientException("no answer\nwithin 10 s"), SystemExit(3), KeyboardInterrupt()])
def test_a_judge_that_raises_is_told_and_never_well(error: BaseException) -> None:
    def judge() -> WorkerHealth:
        raise error

    with Told(judge).serve_health(0) as server:
        answered = ask(server.port, "/health")

        assert (answered.status, answered.document["is_healthy"]) == (503, False)
        assert type(error).__name__ in answered.document["reason"]
        assert "\n" not in answered.document["reason"]
        assert ask(server.port, "/ready").status == 200


@pytest.mark.parametrize("judged", [None, WorkerHealth("yes"), WorkerHealth(1), WorkerHealth(None)])  # type: ignore[arg-type]
def test_a_judgement_that_is_not_true_is_not_well(judged: WorkerHealth) -> None:
    with Told(lambda: judged).serve_health(0) as server:
        assert ask(server.port, "/health").status == 503


# --- clients that do not behave ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("sends", [b"", b"GET /heal", b"GET /health HTTP/1.1\r\nHost: x\r\n"])
def test_silent_clients_keep_the_server_from_nothing(server: HealthServer, sends: bytes) -> None:
    with silent_clients(server.port, 4 * MOST_THREADS, sends) as clients:
        assert [ask(server.port, path).status for path in PROBES] == [200, 200, 200]
        assert 0 < threads_of(server) <= MOST_THREADS
        assert clients[0].recv(1) == b"", "the oldest one was given up"


def test_a_silent_client_is_given_up(server: HealthServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Handler, "timeout", 0.01)
    with silent_clients(server.port, 1) as (client,):
        assert client.recv(1) == b""


@pytest.mark.usefixtures("patient")
def test_closing_waits_for_no_client(server: HealthServer) -> None:
    with silent_clients(server.port, 4 * MOST_THREADS) as clients:
        until(lambda: threads_of(server) == MOST_THREADS)
        server.close()
        server.close()

        for client in clients:
            with suppress(ConnectionResetError):  # not accepted yet
                assert client.recv(1) == b""
        until(lambda: threads_of(server) == 0)
        with pytest.raises(ConnectionRefusedError):
            ask(server.port, "/live")


def test_judges_that_hang_hold_no_more_threads_than_there_are_and_no_end() -> None:
    go, began = threading.Event(), threading.Semaphore(0)

    def judge() -> WorkerHealth:
        began.release()
        go.wait(PATIENCE_SECONDS)
        return WELL

    def outcome(_: int) -> str:
        try:
            return str(ask(server.port, "/health").status)
        except (OSError, HTTPException):
            return "no answer"

    with Told(judge).serve_health(0) as server, ThreadPoolExecutor(MOST_THREADS) as clients:
        try:
            asked = [clients.submit(outcome, number) for number in range(MOST_THREADS)]
            for _ in range(MOST_THREADS):
                assert began.acquire(timeout=PATIENCE_SECONDS)
            assert outcome(0) == "no answer"
            assert threads_of(server) == MOST_THREADS
            server.close()
            assert {each.result(PATIENCE_SECONDS) for each in asked} == {"no answer"}
        finally:
            go.set()


def test_a_server_without_a_thread_does_not_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NoThreadError("no thread")

    monkeypatch.setattr(health_server, "start_thread", refuse)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    with pytest.raises(NoThreadError):
        Told().serve_health(port)
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_reasons_of_others_stay_on_their_line() -> None:
    with Told(lambda: WorkerHealth(False, "a \u202e\x1b[2J\nb")).serve_health(0) as server:
        assert reason(server.port, "/health") == "a \u202e\x1b[2J\nb"
        assert ask(server.port, "/health").body.isascii()
