"""A reverse proxy as some companies have them: it adds a prefix, keeps each answer back until its end, and gives up.

It does not obey ``X-Accel-Buffering``, so a stream of events never arrives through it.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import urlsplit

from attrs import frozen

TIMEOUT_SECONDS = 60.0
"""The time within which an answer must be whole: the usual one of reverse proxies."""

PIECE_BYTES = 65_536

_OF_ONE_CONNECTION = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})


class BufferingProxy:
    """A running proxy in front of one address. Its own address ends with the prefix."""

    def __init__(self, target: str, prefix: str = "/ops/console/", timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.target, self.prefix, self.timeout_seconds = urlsplit(target), prefix, timeout_seconds
        self.given_up = 0
        """Number of answers that were not whole in time."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="buffering-proxy")

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}{self.prefix}"

    def __enter__(self) -> BufferingProxy:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def fetch(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Fetched:
        """Return the whole answer of the target; 504 if it does not end in time, 502 if there is none."""
        deadline = time.monotonic() + self.timeout_seconds
        connection = http.client.HTTPConnection(str(self.target.hostname), self.target.port or 80)
        with closing(connection):
            try:
                connection.connect()
                sock = connection.sock
                sock.settimeout(self.timeout_seconds)
                connection.request(method, path, body, dict(headers))
                answer, content = connection.getresponse(), bytearray()
                while piece := answer.read1(PIECE_BYTES):
                    content += piece
                    if (left := deadline - time.monotonic()) <= 0:  # also while it never falls silent
                        raise TimeoutError
                    sock.settimeout(left)
            except TimeoutError:
                self.given_up += 1
                return Fetched(504, [], b"the answer did not end in time")
            except (OSError, http.client.HTTPException) as error:
                return Fetched(502, [], str(error).encode())
            kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in _OF_ONE_CONNECTION]
            return Fetched(answer.status, kept, bytes(content))


@frozen
class Fetched:
    """A whole answer."""

    status: int
    headers: Sequence[tuple[str, str]]
    content: bytes


class _Handler(BaseHTTPRequestHandler):
    """Takes the prefix off, and sends whole answers."""

    proxy: BufferingProxy
    protocol_version = "HTTP/1.1"

    def _pass_on(self) -> None:
        if not self.path.startswith(self.proxy.prefix):
            self._send(Fetched(404, [], b"nothing stands outside the prefix"))
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_ONE_CONNECTION}
        path = "/" + self.path.removeprefix(self.proxy.prefix)
        self._send(self.proxy.fetch(self.command, path, {**headers, "Connection": "close"}, body))

    do_GET = do_POST = do_DELETE = do_HEAD = _pass_on  # noqa: N815 -- as http.server finds them

    def _send(self, fetched: Fetched) -> None:
        with suppress(ConnectionError):  # a browser that has left needs no answer
            self.send_response_only(fetched.status)
            for name, value in fetched.headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(fetched.content)))
            self.end_headers()
            self.wfile.write(fetched.content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""
