"""Requests in any form that HTTP allows, answered by aiohttp.

``plain_http`` answers requests in the form that SDKs send. aiohttp answers requests in any other form. While fault
rules exist, aiohttp answers all requests, because a fault may delay an answer, and only this module can wait. The
server imports aiohttp only at the first request that needs it. An import at the start would take a third of the
start-up time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import HttpVersion11, web
from attrs import evolve

from streamclient.base import logs
from streamclient.server import refusals
from streamclient.server.admin import ADMIN_PREFIX, Admin, AdminReply
from streamclient.server.auth import Doors
from streamclient.server.connections import BODY_TIMEOUT_SECONDS, Connections
from streamclient.server.envelope import MAX_BODY_BYTES, single_headers
from streamclient.server.fault_rules import Cut, LateAnswer, LoseAnswer
from streamclient.server.http_service import Admitted, Answer, Service
from streamclient.server.plain_http import SERVER_SOFTWARE
from streamclient.server.server_errors import ServiceError

_log = logs.logger(__name__)

_NEVER_SECONDS = 10 * 365 * 86_400.0


class AnyHttp:
    """The handler of requests on connections that aiohttp has taken over. Only the event loop's thread may use it."""

    def __init__(
        self, service: Service, admin: Admin, doors: Doors, connections: Connections, stopping: asyncio.Event
    ) -> None:
        self._service = service
        self._admin = admin
        self._doors = doors
        self._connections = connections
        self._stopping = stopping
        self._server = web.Server(self._handle)

    def protocol(self) -> web.RequestHandler:
        """Return a new aiohttp protocol, which takes over one connection."""
        # aiohttp must not decompress bodies: ``envelope`` decompresses them, up to a maximum size.
        return RefusingHandler(self._server, self._refuse, auto_decompress=False)

    def _refuse(self, status: int, message: str | None) -> web.Response:
        is_failure = status >= 500
        error = (
            refusals.SERVER_FAILED() if is_failure else evolve(refusals.NOT_HTTP, http_status=status)(message=message)
        )
        return _response(self._service.refuse("", {}, error))

    async def stop(self, timeout: float) -> None:
        """Close idle connections immediately, and every other connection after its request.

        After ``timeout`` seconds, close all connections.
        """
        for connection in self._server.connections:
            connection.close()
        await self._server.shutdown(timeout)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
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
                raise refusals.METHOD()
            admitted = self._service.admit(path, headers, body)
        except ServiceError as error:
            return (
                _reply(self._admin.refuse(error)) if is_admin else _response(self._service.refuse(path, headers, error))
            )
        except (ConnectionError, web.RequestPayloadError) as error:
            if isinstance(error, ConnectionError) or request.transport is None:
                return _cut(request)
            return _response(self._service.refuse(path, headers, refusals.BODY_NOT_HTTP()))
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
        """Wait for ``seconds``, or until the server stops; return whether the server is still running."""
        if seconds <= 0:
            return True
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except asyncio.TimeoutError:
            return True
        return False

    async def _read_body(self, request: web.BaseRequest) -> bytes:
        """Read the body of a request and return it.

        Raises:
            ServiceError: the body is too large, or arrives too slowly.
        """
        if (request.content_length or 0) > MAX_BODY_BYTES:
            raise refusals.BODY_TOO_LARGE()
        transport = request.transport
        if not request.body_exists or transport is None:
            return b""
        _invite_body(request, transport)
        content = request.content
        loop = asyncio.get_running_loop()
        timer = loop.call_later(BODY_TIMEOUT_SECONDS, content.set_exception, asyncio.TimeoutError())
        chunks: list[bytes] = []
        size = 0
        try:
            while chunk := await content.readany():
                chunks.append(chunk)
                size += len(chunk)
                if size > MAX_BODY_BYTES:
                    raise refusals.BODY_TOO_LARGE()
                self._connections.coming(transport, len(chunk))
        except asyncio.TimeoutError:
            raise refusals.BODY_LATE() from None
        finally:
            timer.cancel()
            self._connections.arrived(transport)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _administer(
        self, request: web.BaseRequest, path: str, headers: Mapping[str, str], body: bytes
    ) -> web.StreamResponse:
        return _reply(self._admin.handle(request.method, path, dict(request.query), headers, body))


class RefusingHandler(web.RequestHandler):
    """aiohttp's handler of one connection.

    If aiohttp itself refuses a request, the answer has the form of this server's refusals, not aiohttp's HTML.
    """

    __slots__ = ("_refuse",)

    def __init__(self, server: web.Server, refuse: Callable[[int, str | None], web.Response], **options: Any) -> None:
        """Make the protocol of one connection in the running event loop.

        ``refuse`` makes the response of a refusal from an HTTP status and aiohttp's error message.
        """
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=_NEVER_SECONDS,  # ``Connections`` closes idle connections
            access_log=None,  # type: ignore[arg-type]  # None switches the log off
            **options,
        )
        self._refuse = refuse

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer malformed HTTP with aiohttp's status, and a failure of this server with 500; close the connection."""
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer is sent already")
        if status >= 500:
            _log.error("a request failed inside the server", exc_info=exc)
        response = self._refuse(status, message)
        response.force_close()
        return response


def _invite_body(request: web.BaseRequest, transport: asyncio.Transport) -> None:
    """Send ``100 Continue`` if the client waits for these words before it sends the body.

    Without these words, curl and SDKs built on curl would wait for a second.
    """
    expectation = request.headers.get("Expect", "").strip().lower()
    if expectation == "100-continue" and request.version >= HttpVersion11:
        transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def _reply(reply: AdminReply) -> web.Response:
    headers = {"Server": SERVER_SOFTWARE}
    return web.Response(status=reply.status, headers=headers, body=reply.body, content_type="application/json")


def _response(answer: Answer) -> web.Response:
    return web.Response(status=answer.status, headers={**answer.headers, "Server": SERVER_SOFTWARE}, body=answer.body)


def _cut(request: web.BaseRequest) -> web.Response:
    """Break the connection. aiohttp then drops the returned response, because the connection's transport is closed."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
