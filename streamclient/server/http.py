"""HTTP transport: one background thread with an event loop of its own per server.

Requests are executed inline in the loop: the engine's lock would serialize them anyway, and handing each one to a pool
would cost more than most of them take. Only injected faults wait, and they wait without holding anything.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import threading
from collections.abc import Mapping
from typing import Any

from aiohttp import HttpVersion11, web

from streamclient.server.admin import ADMIN_PREFIX, Admin, AdminReply
from streamclient.server.auth import Doors
from streamclient.server.connections import BODY_TIMEOUT_SECONDS, Connections
from streamclient.server.envelope import MAX_BODY_BYTES, body_too_large, single_headers
from streamclient.server.errors import ServiceError, invalid
from streamclient.server.faults import Cut, LateAnswer, LoseAnswer
from streamclient.server.plain_http import PlainHttp
from streamclient.server.service import Admitted, Answer, Service

_log = logging.getLogger(__name__)

_NEVER_SECONDS = 10 * 365 * 86_400.0

STOP_TIMEOUT_SECONDS = 1.0
"""How long a stop waits for running requests. Those that wait for an injected fault are woken; what remains are bodies
that their clients have not finished sending."""

JOIN_TIMEOUT_SECONDS = 30.0
"""How long a stop waits for the thread before it reports that the thread hangs."""

MAX_PORT = 65535

BACKLOG = 4096
"""Connections that may queue before they are accepted: an SDK opens up to 500 at once. The system may allow fewer."""

ACCEPTED_AT_ONCE = 8
"""Connections taken from that queue in one go. Between two goes, those that have to make room are closed. The event
loop takes all that wait otherwise, and without a file for one more it reports each of them, every second."""


class HttpServer:
    """Listens on one port for one service. ``start`` once, ``stop`` once; both from any thread but the server's own."""

    def __init__(self, service: Service, admin: Admin, doors: Doors, *, host: str, port: int) -> None:
        self._service = service
        self._admin = admin
        self._doors = doors
        self._host = host
        self._wanted_port = port
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._connections: Connections | None = None
        self._thread: threading.Thread | None = None
        self.port = 0
        """The port listened on, once started."""

    def start(self) -> None:
        """Bind, and return once requests are answered.

        Raises:
            OSError: the address cannot be bound; the message names it.
            ValueError: no port has this number.
        """
        listener = _bind(self._host, self._wanted_port)
        self.port = listener.getsockname()[1]
        ready = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(listener, ready)),
            name=f"local-tablestore-{self.port}",
            daemon=True,
        )
        self._thread.start()
        if not ready.wait(JOIN_TIMEOUT_SECONDS):
            raise RuntimeError(f"the server thread on port {self.port} did not start in {JOIN_TIMEOUT_SECONDS:g} s")

    def stop(self) -> None:
        """Stop listening, close every connection, and wait for the thread to end. Does nothing when not running."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        thread.join(JOIN_TIMEOUT_SECONDS)
        if thread.is_alive():
            raise RuntimeError(f"the server thread on port {self.port} did not end in {JOIN_TIMEOUT_SECONDS:g} s")

    async def _serve(self, listener: socket.socket, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._loop.set_exception_handler(self._loop_failed)
        server = web.Server(self._handle)
        self._connections = Connections(lambda: self._protocol(server), PlainHttp(self._service, self._doors))
        acceptor = await self._loop.create_server(self._connections, sock=listener, backlog=ACCEPTED_AT_ONCE)
        listener.listen(BACKLOG)  # the loop set the queue's length, too
        ready.set()
        await self._stopping.wait()
        acceptor.close()
        for connection in server.connections:
            connection.close()  # idle ones end at once, others after their present request
        await server.shutdown(STOP_TIMEOUT_SECONDS)
        await acceptor.wait_closed()

    def _protocol(self, server: web.Server) -> web.RequestHandler:
        return _Protocol(
            server,
            self._service,
            loop=self._loop,
            keepalive_timeout=_NEVER_SECONDS,  # Connections closes what is idle
            access_log=None,
            auto_decompress=False,  # the protocol has its own compression, whose size is bounded
        )

    def _loop_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Too many open files: a waiting connection makes room. Everything else is logged as ever."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE) and self._connections is not None:
            self._connections.make_more_room("too many files are open")
        elif self._stopping is None or not self._stopping.is_set():
            loop.default_exception_handler(context)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        assert self._connections is not None
        self._connections.began(request)
        try:
            return await self._answer(request)
        finally:
            self._connections.ended(request)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.raw_path.partition("?")[0]
        headers: Mapping[str, str] = {}
        is_admin = path.startswith(ADMIN_PREFIX)
        try:
            headers = single_headers(request.headers)
            self._doors.check(headers)
            body = await self._read_body(request)
            if is_admin:
                return self._administer(request, path, headers, body)
            if request.method != "POST":
                raise ServiceError(405, "OTSMethodNotAllowed", f"Only POST is allowed, not {request.method}.")
            admitted = self._service.admit(path, headers, body)
        except ServiceError as error:
            return (
                _reply(self._admin.refuse(error)) if is_admin else _response(self._service.refuse(path, headers, error))
            )
        except (ConnectionError, web.RequestPayloadError) as error:
            if isinstance(error, ConnectionError) or request.transport is None:
                return _cut(request)
            return _response(self._service.refuse(path, headers, invalid("The request's body is not valid HTTP.")))
        return await self._execute(request, admitted)

    async def _execute(self, request: web.BaseRequest, admitted: Admitted) -> web.StreamResponse:
        action = admitted.harm.action
        if not await self._pause(admitted.harm.delay_seconds):
            return _cut(request)
        if isinstance(action, Cut):
            self._service.drop(admitted)
            return _cut(request)
        answer = self._service.execute(admitted)
        if isinstance(action, (LoseAnswer, LateAnswer)) and not await self._pause(action.seconds):
            return _cut(request)
        return _cut(request) if isinstance(action, LoseAnswer) else _response(answer)

    async def _pause(self, seconds: float) -> bool:
        """Wait; whether the server is still running afterwards."""
        if seconds <= 0:
            return True
        assert self._stopping is not None
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except asyncio.TimeoutError:
            return True
        return False

    async def _read_body(self, request: web.BaseRequest) -> bytes:
        """The body, bounded in size and time."""
        if (request.content_length or 0) > MAX_BODY_BYTES:
            raise body_too_large()
        transport = request.transport
        if not request.body_exists or transport is None:
            return b""
        _invite_body(request, transport)
        assert self._loop is not None
        assert self._connections is not None
        content = request.content
        timer = self._loop.call_later(BODY_TIMEOUT_SECONDS, content.set_exception, asyncio.TimeoutError())
        chunks: list[bytes] = []
        size = 0
        try:
            while chunk := await content.readany():
                chunks.append(chunk)
                size += len(chunk)
                if size > MAX_BODY_BYTES:
                    raise body_too_large()
                self._connections.coming(transport, len(chunk))
        except asyncio.TimeoutError:
            raise ServiceError(408, "OTSRequestTimeout", "Request timeout.") from None
        finally:
            timer.cancel()
            self._connections.arrived(transport)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _administer(
        self, request: web.BaseRequest, path: str, headers: Mapping[str, str], body: bytes
    ) -> web.StreamResponse:
        return _reply(self._admin.handle(request.method, path, dict(request.query), headers, body))


class _Protocol(web.RequestHandler):
    """aiohttp's connection, but what it answers by itself is answered as the service would: as an error message."""

    __slots__ = ("_service",)

    def __init__(self, server: web.Server, service: Service, **options: Any) -> None:
        super().__init__(server, **options)
        self._service = service

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is no HTTP with 400, and a failure of this server with 500; then close the connection."""
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer is sent already")
        if status < 500:
            error = ServiceError(status, "OTSParameterInvalid", f"The request is not valid HTTP: {message}.")
        else:
            _log.error("a request failed inside the server", exc_info=exc)
            error = ServiceError(500, "OTSInternalServerError", "Internal server error.")
        response = _response(self._service.refuse("", {}, error))
        response.force_close()
        return response


def _invite_body(request: web.BaseRequest, transport: asyncio.Transport) -> None:
    """Ask for the body if the client waits for that: curl, and the SDKs built on it, do so for a whole second."""
    expectation = request.headers.get("Expect", "").strip().lower()
    if expectation == "100-continue" and request.version >= HttpVersion11:
        transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if not 0 <= port <= MAX_PORT:
        raise ValueError(
            f"cannot listen on {host}:{port}: a port is a number from 0 to {MAX_PORT}, 0 means any free one"
        )
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        text = f"cannot listen on {host}:{port}: {error.strerror}; choose another address or port, or port 0 for any"
        raise OSError(error.errno, text) from error


def _reply(reply: AdminReply) -> web.Response:
    return web.Response(status=reply.status, body=reply.body, content_type="application/json")


def _response(answer: Answer) -> web.Response:
    return web.Response(status=answer.status, headers=answer.headers, body=answer.body)


def _cut(request: web.BaseRequest) -> web.Response:
    """Break the connection; the response returned here meets a closed transport and is dropped by aiohttp."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
