"""The drill's own parts: its proxy keeps answers back and gives up, and a step that does not see what it must fails."""

from __future__ import annotations

import http.client
import re
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.console.chromium import chromium
from tests.console_drill import __main__ as drill
from tests.console_drill import buffering_proxy, stand, steps_of_server
from tests.console_drill.buffering_proxy import PIECE_BYTES, TIMEOUT_SECONDS, BufferingProxy
from tests.console_drill.stand import NotSeen, Stand, check, within, without_numbers
from tests.patience import PATIENCE_SECONDS, until

FIRST = b"first " * 2_000_000
"""More than all sockets between two programs hold: once it is written, most of it was read."""


class Target(BaseHTTPRequestHandler):
    """Streams two parts, the second one when it is told to; tells what it was sent by other requests."""

    goes_on: threading.Event
    has_begun: threading.Event

    def do_GET(self) -> None:
        if self.path == "/silent":
            self.goes_on.wait(PATIENCE_SECONDS)
        self.send_response(200)
        if self.path != "/stream":
            body = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
            told = f"{self.command} {self.path} {self.headers['Host']} {self.headers['Keep-Alive']} {body}".encode()
            for name, value in (("Content-Length", str(len(told))), ("Keep-Alive", "timeout=5"), ("X-Own", "kept")):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(told)
            return
        self.end_headers()
        with suppress(ConnectionError):  # the proxy has given up
            self.wfile.write(FIRST)
            self.has_begun.set()
            self.goes_on.wait(PATIENCE_SECONDS)
            self.wfile.write(b"second")

    do_POST = do_GET  # noqa: N815 -- as http.server finds it

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def target(goes_on: threading.Event, has_begun: threading.Event | None = None) -> Iterator[str]:
    events = {"goes_on": goes_on, "has_begun": has_begun or threading.Event()}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Target,), events))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        goes_on.set()
        server.shutdown()
        thread.join()
        server.server_close()


def asked(address: str, path: str = "", method: str = "GET", body: bytes = b"") -> tuple[int, bytes, dict[str, str]]:
    place = urlsplit(address)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=PATIENCE_SECONDS)
    with closing(connection):
        sent = {"Host": "console.example", "Keep-Alive": "timeout=9"}
        connection.request(method, place.path + path, body or None, sent)
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())


def test_the_proxy_takes_its_prefix_off_and_keeps_the_host_the_body_and_headers_that_are_not_of_one_connection() -> (
    None
):
    with target(threading.Event()) as address, BufferingProxy(address) as proxy:
        status, content, headers = asked(proxy.address, "api/v1/about?of=1")
        assert (status, content) == (200, b"GET /api/v1/about?of=1 console.example None ")
        assert (headers["X-Own"], headers["Content-Length"]) == ("kept", str(len(content)))
        assert "Keep-Alive" not in headers
        assert asked(proxy.address, "x", "POST", b"{}")[:2] == (200, b"POST /x console.example None {}")
        assert asked(proxy.address.replace("/ops/", "/other/"))[0] == 404


def test_the_proxy_says_that_its_target_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"http://127.0.0.1:{closed.getsockname()[1]}/"
    with BufferingProxy(address) as proxy:
        assert asked(proxy.address)[0] == 502
        assert proxy.given_up == 0


def has_come(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])


def test_the_proxy_keeps_an_answer_back_until_its_end() -> None:
    goes_on, has_begun = threading.Event(), threading.Event()
    with target(goes_on, has_begun) as address, BufferingProxy(address) as proxy:
        place = urlsplit(proxy.address)
        with socket.create_connection((str(place.hostname), place.port or 80), PATIENCE_SECONDS) as connection:
            connection.sendall(f"GET {place.path}stream HTTP/1.1\r\nHost: console.example\r\n\r\n".encode())
            until(lambda: has_begun.is_set() or has_come(connection), "the first part of the answer")
            assert not has_come(connection)
            goes_on.set()
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            assert (answer.status, answer.read()) == (200, FIRST + b"second")
            answer.close()
        assert proxy.given_up == 0


@pytest.mark.parametrize("path", ["stream", "silent"])
def test_the_proxy_gives_up_an_answer_that_does_not_end(path: str) -> None:
    with target(threading.Event()) as address, BufferingProxy(address, timeout_seconds=0.2) as proxy:
        assert asked(proxy.address, path)[0] == 504
        assert proxy.given_up == 1


def test_the_proxy_gives_up_an_answer_that_never_falls_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock takes a second, and the answer has more pieces than the proxy has seconds."""
    seconds = count()
    monkeypatch.setattr(buffering_proxy, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    assert len(FIRST) > 2 * TIMEOUT_SECONDS * PIECE_BYTES
    goes_on = threading.Event()
    goes_on.set()
    with target(goes_on) as address, BufferingProxy(address) as proxy:
        assert asked(proxy.address, "stream")[0] == 504
        assert proxy.given_up == 1


def test_there_are_fifteen_steps_and_an_option_names_some() -> None:
    assert list(drill.STEPS) == list(range(1, 16))
    assert drill.chosen("") == list(range(1, 16))
    assert drill.chosen("5,12") == [5, 12]
    for text in ("0", "16", "one", "1,,2"):
        with pytest.raises(SystemExit, match="names no steps; there are 1 to 15"):
            drill.chosen(text)


@pytest.mark.parametrize(
    ("step", "result"),
    [
        (lambda _: "a river", ("seen", "a river")),
        (lambda _: f"{drill.MISSING}: no Java", ("in part", f"{drill.MISSING}: no Java")),
        (lambda _: check(False, "no river"), ("FAILED", "NotSeen: no river")),
        (lambda _: {}["key"], ("FAILED", "KeyError: 'key'")),
    ],
)
def test_a_step_that_does_not_see_what_it_must_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: Callable[[Stand], Any], result: tuple[str, str]
) -> None:
    monkeypatch.setattr(drill, "STEPS", {1: step})

    assert drill.taken(1, None, tmp_path) == result


def test_what_comes_too_late_or_never_is_not_seen() -> None:
    with pytest.raises(NotSeen, match=r"a fact: not within 0\.1 s"):
        within(0.1, "a fact", lambda: False, longest=0.1)
    looks = iter([False, True])
    with pytest.raises(NotSeen, match=r"a fact: after 0\.\d\d s, wanted within 0 s"):
        within(0.0, "a fact", lambda: next(looks), longest=PATIENCE_SECONDS)
    assert without_numbers("failed once;  next in 12 s") == without_numbers("failed 3 times; next in 1 s")


@pytest.mark.slow
@pytest.mark.parametrize("number", [3, 4])
def test_steps_through_the_console_of_a_server(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the drill takes them, but without its limits of time, which are for a quiet machine."""
    monkeypatch.setattr(stand, "WAIT_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(steps_of_server, "SOON_SECONDS", PATIENCE_SECONDS)
    with chromium() as browser:
        result, seen = drill.taken(number, browser, tmp_path)

    assert result == "seen", seen
    assert re.search(r"\d", seen)
