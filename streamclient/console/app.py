"""The HTTP server of a console, which checks requests, and answers with documents, files and feeds.

It uses aiohttp, whose import takes a third of a second. So only ``listening`` imports this module, as late as it can.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from importlib import resources
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote

from aiohttp import web

from streamclient.base import logs
from streamclient.base.kept_formats import parse_json
from streamclient.console.doors import API, REQUESTED_BY, ConsoleDoors, ConsoleError, DoorRule, number_in, split_target
from streamclient.console.feeds import Documents, Viewer, Watch
from streamclient.server.any_http import RefusingHandler
from streamclient.server.connections import BODY_TIMEOUT_SECONDS, Connections
from streamclient.server.plain_http import PlainHttp, RequestHead

_log = logs.logger(__name__)

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}

_PAGE = resources.files(__package__).joinpath("page")

FILES: Mapping[str, str] = {
    each.name: _TYPES[end] for each in _PAGE.iterdir() if (end := each.name.rpartition(".")[2]) in _TYPES
}
"""The content type of each file of the page, by the file's name."""

MOST_BODY_BYTES = 1024 * 1024
"""The largest size of a change request's body, in bytes. Every row that a person types is smaller."""

MOST_FEEDS = 32
"""The largest number of simultaneous feeds. The open tabs of one person need fewer feeds."""

MOST_TOPICS = 16
"""The largest number of documents in one feed. A page follows at most four documents."""

COMMENT_SECONDS = 15.0
"""The seconds without news after which a feed sends a comment line, so that proxies keep the connection open."""

LONG_POLL_SECONDS = 20.0
"""The longest time, in seconds, that the answer to a feed request with the parameter ``have`` waits for news. Proxies
wait longer for an answer, so they do not cut the request."""

LOOK_SECONDS = 1.0
"""The seconds after which a feed without news checks whether its viewer is still connected."""

STOP_TIMEOUT_SECONDS = 1.0
"""The seconds for which a stopping console waits for running requests."""


class Pages(Documents, Protocol):
    """The documents of one console, and the changes that its page may order. No method blocks the event loop."""

    async def read(self, words: list[str], query: Mapping[str, str]) -> Any:
        """Return the document at the path ``words`` below ``/api/v1/``.

        Raises:
            ConsoleError: the document does not exist, or cannot be read.
        """

    async def change(self, method: str, words: list[str], arguments: Mapping[str, Any]) -> Any:
        """Carry out the POST or DELETE request at the path ``words``; return the document that answers the request.

        Raises:
            ConsoleError: the path has no such change, or the change cannot be carried out with ``arguments``.
        """


class App:
    """The HTTP application of one console. Only for use in the console's event loop."""

    def __init__(self, pages: Pages, doors: ConsoleDoors) -> None:
        self._doors = doors
        self._pages = pages
        self._files = {name: _PAGE.joinpath(name).read_bytes() for name in FILES}
        self._watch = Watch(pages)
        self._stopping = asyncio.Event()
        self._connections = Connections(self._protocol, _NoPlainHttp())
        self._server = web.Server(self._handle)

    async def serve(self, listener: socket.socket, stopping: asyncio.Event) -> None:
        """Answer requests until ``stopping`` is set."""
        self._stopping = stopping
        acceptor = await asyncio.get_running_loop().create_server(self._connections, sock=listener)
        await stopping.wait()
        acceptor.close()
        await self._watch.stop()
        for connection in self._server.connections:
            connection.close()
        await self._server.shutdown(STOP_TIMEOUT_SECONDS)
        self._connections.close_plain()
        await acceptor.wait_closed()

    def _protocol(self) -> web.RequestHandler:
        return RefusingHandler(self._server, self._refuse)

    def _refuse(self, status: int, message: str | None = None) -> web.Response:
        """Return the answer to bytes that are not HTTP, or to a request that failed outside ``_handle``."""
        return self._refusal(ConsoleError(status, "http", "this is not a valid HTTP request"))

    def _refusal(self, error: ConsoleError) -> web.Response:
        return _json(error.document(), self._doors, error.status)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self._connections.began(request)
        try:
            self._doors.check(request.method, request.raw_path, request.headers)
            return await self._route(request)
        except ConsoleError as error:
            return self._refusal(error)
        except Exception:
            _log.exception("a request failed inside the console")
            return self._refusal(ConsoleError(500, "failed", "the console failed; see its log"))
        finally:
            self._connections.ended(request)

    async def _route(self, request: web.BaseRequest) -> web.StreamResponse:
        path, query_text = split_target(request.raw_path)
        query = dict(parse_qsl(query_text))
        if not path.startswith(API):
            return self._file(request, path.removeprefix("/") or "index.html")
        words = [unquote(word) for word in path.removeprefix(API).split("/")]
        if request.method == "GET" and words == ["feed"]:
            return await self._feed(request, query)
        if request.method == "GET":
            answer = await self._pages.read(words, query)
        elif request.method in ("POST", "DELETE"):
            REQUESTED_BY.set(self._doors.who(request.headers))
            answer = await self._pages.change(request.method, words, {**query, **await self._body(request)})
            self._watch.wake()
        else:
            raise ConsoleError(405, "method", "the console accepts only GET, POST and DELETE")
        return _json(answer, self._doors)

    def _file(self, request: web.BaseRequest, name: str) -> web.Response:
        if name == "favicon.ico":
            return web.Response(status=204, headers=self._doors.headers())
        if name not in FILES:
            raise ConsoleError(404, "path", "there is no such page", "Pages stand after #, such as #/tables/orders.")
        if request.method != "GET":
            raise ConsoleError(405, "method", "a page accepts only GET")
        return _packed(self._doors, body=self._files[name], content_type=FILES[name], charset="utf-8")

    async def _body(self, request: web.BaseRequest) -> dict[str, Any]:
        """Return the JSON object in a request's body. An empty body stands for an empty object."""
        try:
            body = await asyncio.wait_for(self._received(request), BODY_TIMEOUT_SECONDS)
        except asyncio.TimeoutError:
            raise ConsoleError(408, "body", "the body did not come in time") from None
        except ConnectionError:
            raise ConsoleError(400, "body", "the client left before its body was here") from None
        except web.RequestPayloadError:
            request.content.feed_eof()  # Otherwise aiohttp reads on, and logs the damage as a failure of its own.
            request.protocol.close()
            raise ConsoleError(400, "body", "the body is damaged") from None
        try:
            content = parse_json(body) if body else {}
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise ConsoleError(400, "json", "the body must be a JSON object")
        return content

    async def _received(self, request: web.BaseRequest) -> bytes:
        body = bytearray()
        async for chunk in request.content.iter_any():
            body += chunk
            if len(body) > MOST_BODY_BYTES and DoorRule.BODY in self._doors.rules:
                raise ConsoleError(413, "body", f"a body must have at most {MOST_BODY_BYTES} bytes")
        return bytes(body)

    async def _feed(self, request: web.BaseRequest, query: Mapping[str, str]) -> web.StreamResponse:
        topics = [topic for topic in query.get("of", "").split(",") if topic]
        if not 1 <= len(topics) <= MOST_TOPICS:
            raise ConsoleError(400, "of", f"'of' must name 1 to {MOST_TOPICS} documents, as in of=verdict,rows:orders")
        have = number_in(query.get("have", "0"))
        if have is None:
            raise ConsoleError(400, "have", "'have' must be the id of an earlier answer")
        if self._watch.viewer_count >= MOST_FEEDS and DoorRule.FEEDS in self._doors.rules:
            raise ConsoleError(503, "feeds", f"there are {MOST_FEEDS} feeds already", "Close some tabs.")
        viewer = self._watch.join(topics, have)
        try:
            if "have" in query:
                return await self._news(request, viewer)
            return await self._stream(request, viewer)
        finally:
            self._watch.leave(viewer)

    async def _news(self, request: web.BaseRequest, viewer: Viewer) -> web.StreamResponse:
        """Answer with the news in one response (long polling), for a viewer whose proxy delays streams."""
        loop = asyncio.get_running_loop()
        end = loop.time() + LONG_POLL_SECONDS
        while not (messages := self._watch.take(viewer)) and loop.time() < end and self._is_there(request):
            await _set_within(viewer.changed, LOOK_SECONDS)
        return _json({"id": self._watch.version, "messages": messages}, self._doors)

    async def _stream(self, request: web.BaseRequest, viewer: Viewer) -> web.StreamResponse:
        headers = {**self._doors.headers(), "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=headers)
        loop = asyncio.get_running_loop()
        written = loop.time()
        with suppress(ConnectionError):  # a viewer may leave at any moment
            await response.prepare(request)
            while self._is_there(request):
                messages = self._watch.take(viewer)
                lines = [f"id: {self._watch.version}\ndata: {_text(message)}\n\n" for message in messages]
                if not lines and loop.time() - written >= COMMENT_SECONDS:
                    lines = [": still here\n\n"]
                if lines:
                    written = loop.time()
                    await response.write("".join(lines).encode("utf-8", "backslashreplace"))
                await _set_within(viewer.changed, LOOK_SECONDS)
        return response

    def _is_there(self, request: web.BaseRequest) -> bool:
        transport = request.transport
        return not self._stopping.is_set() and transport is not None and not transport.is_closing()


class _NoPlainHttp(PlainHttp):
    """A ``PlainHttp`` that leaves every request to aiohttp.

    ``Connections`` needs a ``PlainHttp``, but the console uses ``Connections`` only for its limits.
    """

    def __init__(self) -> None:
        """Do nothing: this object answers no request, so it does not need the service that a ``PlainHttp`` calls."""

    @property
    def is_open(self) -> bool:
        """Whether this object answers requests: never."""
        return False

    def head_of(self, data: bytes) -> RequestHead | None:
        """Return ``None``, which leaves the request to aiohttp."""
        return None


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    """Wait until ``event`` is set, but at most ``seconds``."""
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


def _text(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"))


def _json(content: Any, doors: ConsoleDoors, status: int = 200) -> web.Response:
    return _packed(doors, status, text=_text(content), content_type="application/json")


def _packed(doors: ConsoleDoors, status: int = 200, **content: Any) -> web.Response:
    response = web.Response(status=status, headers=doors.headers(), **content)
    response.enable_compression()
    return response
