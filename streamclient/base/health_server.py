"""The HTTP server for probes and metrics.

A page that cannot be made has status 503, never 200. A client that sends its request or reads its response slowly
occupies one thread. If all threads are occupied when another client connects, the server closes the oldest connection
that waits for its client.
"""

from __future__ import annotations

import gzip
import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Any

from streamclient.base import checks, logs
from streamclient.base.pools import DaemonPool, start_thread
from streamclient.base.processes import Birthplace
from streamclient.base.reasons import WorkerHealth, described
from streamclient.base.times import utc_text

_log = logs.logger(__name__)

METRICS_PATH, LIST_PATH = "/metrics", "/"

CLIENT_SECONDS = 5.0
"""The seconds after which the server closes a connection whose client sends or reads nothing. Probes send requests
immediately."""

MOST_THREADS = 16
"""The largest number of requests that are answered at the same time. Probes and scrapers of one process send far
fewer."""

ROOM_SECONDS = 1.0
"""The seconds for which a new connection waits for a free thread before the server closes it. A health check takes only
milliseconds, so threads become free quickly."""

WAITING_CONNECTIONS = 128
"""The largest number of connections that the system queues until the server accepts them."""

CLOSE_SECONDS = 1.0
"""The longest wait, in seconds, for threads when the server is closed. A thread that is stuck in a health check is then
abandoned."""

STOP_POLL_SECONDS = 0.1
"""The longest time, in seconds, until the server notices that it was closed."""

MOST_UNREAD_BYTES = 1 << 16
"""The largest number of unread bytes of a refused request's body that the server still reads. If the server closed the
connection with unread bytes, the system would reset the connection, and the client would lose the response."""

JSON, PLAIN = "application/json", "text/plain; charset=utf-8"

Judges = Mapping[str, Callable[[], WorkerHealth]]
"""The functions that return a worker's health. The keys are the paths of the probes, without the slash. For each
request to a path, a thread of the server calls the function."""

Page = Callable[[str], tuple[str, bytes]]
"""A function that takes a request's ``Accept`` header, and returns the content type and body of the metrics page."""

_Answer = tuple[HTTPStatus, str, bytes]


class HealthServer:
    """A running HTTP server for probes and metrics. It is a context manager, and does not keep the process alive."""

    def __init__(
        self, port: int, address: str = "127.0.0.1", *, judges: Judges | None = None, metrics: Page | None = None
    ) -> None:
        checks.port.require("port", port)
        checks.text.require("address", address)
        pages = {f"/{name}": _judgement(name, judge) for name, judge in (judges or {}).items()}
        if metrics is not None:
            pages |= _metrics_pages(metrics, [*pages, METRICS_PATH])
        self._server = _Server((address, port), pages)
        self._birthplace = Birthplace()
        try:
            self._thread = start_thread(lambda: self._server.serve_forever(STOP_POLL_SECONDS), f"health-{self.port}")
        except BaseException:
            self._server.server_close()
            raise

    @property
    def port(self) -> int:
        """The port on which the server listens; if port 0 was asked for, the free port that the system chose."""
        return int(self._server.server_address[1])

    @property
    def address(self) -> str:
        """The IP address on which the server listens."""
        return str(self._server.server_address[0])

    def close(self) -> None:
        """Stop listening, and close the connections of unfinished requests. Further calls do nothing.

        Usable from any thread. The call takes at most a few seconds, whatever the clients do.

        Raises:
            ForkedError: this process is a forked child of the process in which the server runs.
        """
        self._birthplace.require("the health server")
        self._server.shutdown()
        self._server.server_close()
        self._server.hang_up()
        self._thread.join(CLOSE_SECONDS)

    def __enter__(self) -> HealthServer:
        """Return the server, which already runs."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the server, as ``close`` does."""
        self.close()


def _judgement(name: str, judge: Callable[[], WorkerHealth]) -> Callable[[str], _Answer]:
    """Return the function that answers the probe ``name`` with the health that ``judge`` returns.

    Only the answer to ``/health`` names shards.
    """
    return (lambda _: _judged_with_shards(judge())) if name == "health" else (lambda _: _judged(judge()))


def _judged(health: WorkerHealth, **more: object) -> _Answer:
    status = HTTPStatus.OK if health.is_healthy is True else HTTPStatus.SERVICE_UNAVAILABLE
    return status, JSON, _document(is_healthy=status is HTTPStatus.OK, reason=health.reason, **more)


def _judged_with_shards(health: WorkerHealth) -> _Answer:
    shards = {
        shard_id: {"since": utc_text(shard.since_micros), "reason": shard.reason}
        for shard_id, shard in health.failing_shards.items()
    }
    return _judged(health, failing_shards=shards, more_failing_shards=health.more_failing_shards)


def _document(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def _metrics_pages(metrics: Page, paths: list[str]) -> dict[str, Callable[[str], _Answer]]:
    listed = "".join(f"{path}\n" for path in paths).encode()
    return {
        METRICS_PATH: lambda accept: (HTTPStatus.OK, *metrics(accept)),
        LIST_PATH: lambda _: (HTTPStatus.OK, PLAIN, listed),
    }


class _Server(socketserver.TCPServer):
    """A TCP server that accepts connections in one thread, and answers each connection in a thread of a pool."""

    allow_reuse_address = True
    request_queue_size = WAITING_CONNECTIONS

    def __init__(self, address: tuple[str, int], pages: Mapping[str, Callable[[str], _Answer]]) -> None:
        super().__init__(address, _Handler)
        # Without a timeout, ``accept`` would block if the client has already disconnected, and never notice ``close``.
        self.socket.settimeout(STOP_POLL_SECONDS)
        self.pages = pages
        self._pool = DaemonPool(f"health-{self.server_address[1]}", MOST_THREADS)
        self._changed = threading.Condition()
        self._open: set[Any] = set()
        self._waits_for_client: dict[Any, None] = {}
        """The connections whose client has not sent its request, or has not taken its answer; the oldest first."""

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a new connection in another thread.

        If no thread is free, end the oldest connection that waits for its client, and wait until a thread is free.

        Raises:
            OSError: no thread became free in time.
        """
        with self._changed:
            if len(self._open) >= MOST_THREADS and self._waits_for_client:
                oldest = next(iter(self._waits_for_client))
                del self._waits_for_client[oldest]
                _hang_up(oldest)
            if not self._changed.wait_for(lambda: len(self._open) < MOST_THREADS, ROOM_SECONDS):
                raise OSError(f"all {MOST_THREADS} threads of the health server are at work")
            self._open.add(request)
            self._waits_for_client[request] = None
        try:
            self._pool.submit(self._answer, request, client_address)
        except BaseException:
            self._forget(request)
            raise

    @contextmanager
    def at_work(self, request: Any) -> Iterator[None]:
        """Keep ``process_request`` from closing the connection ``request`` while the block runs.

        In the block, the server makes the answer, so the client waits for the server and not the server for the client.
        """
        with self._changed:
            is_given_up = self._waits_for_client.pop(request, request) is request
        yield
        with self._changed:
            if not is_given_up:
                self._waits_for_client[request] = None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error of one connection at the level DEBUG, because its client may have caused the error."""
        _log.debug("a connection to the health server was given up", exc_info=True)

    def hang_up(self) -> None:
        """End all open connections and all threads. A thread that is stuck in a health check is abandoned."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._changed:
            for request in self._open:
                _hang_up(request)
        self._pool.join(CLOSE_SECONDS)
        with self._changed:
            for request in self._open:
                request.close()
            self._open.clear()

    def _answer(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception:
            self.handle_error(request, client_address)
        finally:
            self._forget(request)
            self.shutdown_request(request)

    def _forget(self, request: Any) -> None:
        with self._changed:
            self._open.discard(request)
            self._waits_for_client.pop(request, None)
            self._changed.notify()


def _hang_up(connection: Any) -> None:
    """End a connection, so that a thread that waits for its client stops waiting."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """A handler of one request. The connection ends after the response."""

    timeout = CLIENT_SECONDS
    server: _Server

    def do_GET(self) -> None:  # the standard library looks for this name
        """Answer with the page at the path; ignore the query."""
        page = self.server.pages.get(self.path.partition("?")[0])
        if page is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        with self.server.at_work(self.connection):
            status, kind, body = self._made(page)
        self._send(status, kind, body)

    def do_HEAD(self) -> None:  # the standard library looks for this name
        """Answer with the status and headers of the page at the path."""
        self.do_GET()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse a request in JSON. The standard library also calls this method for a request that it cannot read."""
        # For an HTTP method without a function in this class, the standard library passes the status 501.
        status = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus(code)
        more = {"Allow": "GET, HEAD"} if status is HTTPStatus.METHOD_NOT_ALLOWED else {}
        self._drop_body()
        self._send(status, JSON, _document(error=status.phrase), more)

    def version_string(self) -> str:
        """Return the server's name, without the versions of Python and of this package."""
        return "streamclient"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # a name of the standard library
        """Log nothing: a probe comes every few seconds."""

    def _made(self, page: Callable[[str], _Answer]) -> _Answer:
        try:
            return page(self.headers.get("Accept", ""))
        except BaseException as error:  # even SystemExit of user code means status 503
            return HTTPStatus.SERVICE_UNAVAILABLE, JSON, _document(is_healthy=False, reason=described(error))

    def _send(self, status: HTTPStatus, kind: str, body: bytes, more: Mapping[str, str] | None = None) -> None:
        headers = {"Content-Type": kind, "Cache-Control": "no-store", **(more or {})}
        if kind != JSON and "gzip" in self.headers.get("Accept-Encoding", ""):
            body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _drop_body(self) -> None:
        length = getattr(self, "headers", {}).get("Content-Length", "")
        if length.isdecimal():
            with suppress(OSError):
                self.rfile.read(min(int(length), MOST_UNREAD_BYTES))
