"""The console's HTTP: doors, routes, files and feeds, by aiohttp.

Only ``listening`` imports this module, and only with the first connection: aiohttp takes a third of a second to import.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from aiohttp import web

from streamclient.base import logs
from streamclient.console.doors import API, ConsoleDoors, ConsoleError, DoorRule, split_target
from streamclient.console.feeds import Viewer, Watch
from streamclient.console.tables import MOST_ROWS, LocalPages, refused
from streamclient.server.connections import BODY_TIMEOUT_SECONDS, Connections
from streamclient.server.plain_http import PlainHttp, RequestHead
from streamclient.server.server_errors import ServiceError

if TYPE_CHECKING:
    from streamclient.server.local import LocalTablestore

_log = logs.logger(__name__)

FILES: Mapping[str, str] = {
    "index.html": "text/html",
    "console.css": "text/css",
    "player.css": "text/css",
    "draw.js": "text/javascript",
    "player.js": "text/javascript",
    "console.js": "text/javascript",
}
"""The files of the page, with their types."""

MOST_BODY_BYTES = 1024 * 1024
"""The largest body of a change: enough for every row that a person types."""

MOST_FEEDS = 32
"""The largest number of feeds at once: more tabs than a person has open."""

MOST_TOPICS = 16
"""The largest number of documents of one feed; a page follows four at most."""

COMMENT_SECONDS = 15.0
"""The seconds without news after which a feed sends a comment, so that proxies do not take it for dead."""

LONG_POLL_SECONDS = 20.0
"""The longest wait for news of a request with ``have``, in seconds: below the time-outs of proxies."""

LOOK_SECONDS = 1.0
"""The seconds after which a feed without news looks whether its viewer is still there."""

STOP_TIMEOUT_SECONDS = 1.0
"""The seconds for which a stop waits for running requests."""

_NEVER_SECONDS = 10 * 365 * 86_400.0

_TABLE_DOCUMENTS = ("rows", "changes", "story")


class App:
    """The console of one local Tablestore. Used in its own event loop only."""

    def __init__(self, local: LocalTablestore, doors: ConsoleDoors) -> None:
        self._control = local.control
        self._doors = doors
        self._pages = LocalPages(local)
        self._files = {name: resources.files(__package__).joinpath("page", name).read_bytes() for name in FILES}
        self._watch = Watch(self._pages.document, begin=self._begin, end=self._end)
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

    def _begin(self) -> None:
        self._pages.ring.begin()
        self._control.observe(self._observe)

    def _end(self) -> None:
        self._control.unobserve(self._observe)
        self._pages.ring.end()

    def _observe(self, exchange: Any) -> None:
        """Note a request; this runs in the server's thread."""
        self._pages.ring.note(exchange)
        self._watch.wake()

    def _protocol(self) -> web.RequestHandler:
        return _ConsoleProtocol(
            self._server,
            self._doors,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=_NEVER_SECONDS,  # Connections closes idle ones
            access_log=None,
        )

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self._connections.began(request)
        try:
            self._doors.check(request.method, request.raw_path, request.headers)
            return await self._route(request)
        except ConsoleError as error:
            return _json(error.document(), self._doors, error.status)
        except Exception:
            _log.exception("a request failed inside the console")
            failure = ConsoleError(500, "failed", "the console failed; see the server's log")
            return _json(failure.document(), self._doors, failure.status)
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
            answer = self._read(words, query)
        elif request.method in ("POST", "DELETE"):
            answer = self._change(request.method, words, {**query, **await self._body(request)})
            self._watch.wake()
        else:
            raise ConsoleError(405, "method", "the console takes GET, POST and DELETE")
        return _json(answer, self._doors)

    def _file(self, request: web.BaseRequest, name: str) -> web.Response:
        if name == "favicon.ico":
            return web.Response(status=204, headers=self._doors.headers())
        if name not in FILES:
            raise ConsoleError(404, "path", "there is no such page", "Pages stand after #, such as #/tables/orders.")
        if request.method != "GET":
            raise ConsoleError(405, "method", "a page is only read")
        return _packed(
            web.Response(
                body=self._files[name], content_type=FILES[name], charset="utf-8", headers=self._doors.headers()
            )
        )

    def _read(self, words: list[str], query: Mapping[str, str]) -> Any:
        match words:
            case ["about" | "verdict" as topic] | ["server", "tables" | "tunnels" | "requests" | "faults" as topic]:
                return _found(self._pages.document(topic))
            case ["server", "tables", table, "rows"] if query:
                limit = query.get("limit", str(MOST_ROWS))
                if not limit.isdecimal() or not 1 <= int(limit) <= MOST_ROWS:
                    raise ConsoleError(400, "limit", f"limit is a whole number from 1 to {MOST_ROWS}")
                return _with_refusals(lambda: self._pages.rows(table, query.get("after"), int(limit)))
            case ["server", "tables", table, kind] if kind in _TABLE_DOCUMENTS:
                return _found(self._pages.document(f"{kind}:{table}"))
        raise ConsoleError(404, "path", "there is no such document")

    def _change(self, method: str, words: list[str], arguments: Mapping[str, Any]) -> Any:
        match method, words:
            case "POST", ["server", "tables"]:
                return self._pages.create_table(arguments)
            case "POST", ["server", "tables", table, "rows"]:
                return self._pages.put_row(table, arguments)
            case "DELETE", ["server", "tables", table, "rows"]:
                return self._pages.delete_row(table, arguments)
            case _, ["server", name]:
                return self._pages.change(method, name, arguments)
        raise ConsoleError(404, "path", "there is nothing to change at this path")

    async def _body(self, request: web.BaseRequest) -> dict[str, Any]:
        """Return the JSON object of the body; an empty body is an empty object."""
        try:
            body = await asyncio.wait_for(self._received(request), BODY_TIMEOUT_SECONDS)
        except asyncio.TimeoutError:
            raise ConsoleError(408, "body", "the body did not come in time") from None
        try:
            content = json.loads(body) if body else {}
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise ConsoleError(400, "json", "the body is not a JSON object")
        return content

    async def _received(self, request: web.BaseRequest) -> bytes:
        body = bytearray()
        async for chunk in request.content.iter_any():
            body += chunk
            if len(body) > MOST_BODY_BYTES and DoorRule.BODY in self._doors.rules:
                raise ConsoleError(413, "body", f"a body has at most {MOST_BODY_BYTES} bytes")
        return bytes(body)

    async def _feed(self, request: web.BaseRequest, query: Mapping[str, str]) -> web.StreamResponse:
        topics = [topic for topic in query.get("of", "").split(",") if topic]
        if not 1 <= len(topics) <= MOST_TOPICS:
            raise ConsoleError(400, "of", f"of names 1 to {MOST_TOPICS} documents, such as of=verdict,changes:orders")
        have = query.get("have", "0")
        if not have.isdecimal():
            raise ConsoleError(400, "have", "have is the id of an earlier answer")
        if self._watch.viewer_count >= MOST_FEEDS and DoorRule.FEEDS in self._doors.rules:
            raise ConsoleError(503, "feeds", f"there are {MOST_FEEDS} feeds already", "Close some tabs.")
        viewer = self._watch.join(topics, int(have))
        try:
            if "have" in query:
                return await self._news(request, viewer)
            return await self._stream(request, viewer)
        finally:
            self._watch.leave(viewer)

    async def _news(self, request: web.BaseRequest, viewer: Viewer) -> web.StreamResponse:
        """Answer with the news, for a viewer whose proxy keeps streams back."""
        loop = asyncio.get_running_loop()
        end = loop.time() + LONG_POLL_SECONDS
        while not (messages := self._watch.take(viewer)) and loop.time() < end and self._is_there(request):
            await _set_within(viewer.changed, LOOK_SECONDS)
        return _json({"id": self._watch.version, "messages": messages}, self._doors)

    async def _stream(self, request: web.BaseRequest, viewer: Viewer) -> web.StreamResponse:
        headers = {**self._doors.headers(), "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        loop = asyncio.get_running_loop()
        written = loop.time()
        while self._is_there(request):
            messages = self._watch.take(viewer)
            lines = [f"id: {self._watch.version}\ndata: {_text(message)}\n\n" for message in messages]
            if not lines and loop.time() - written >= COMMENT_SECONDS:
                lines = [": still here\n\n"]
            if lines:
                written = loop.time()
                try:
                    await response.write("".join(lines).encode("utf-8", "backslashreplace"))
                except ConnectionError:
                    break
            await _set_within(viewer.changed, LOOK_SECONDS)
        return response

    def _is_there(self, request: web.BaseRequest) -> bool:
        transport = request.transport
        return not self._stopping.is_set() and transport is not None and not transport.is_closing()


class _NoPlainHttp(PlainHttp):
    """Leaves every connection to aiohttp; ``Connections`` brings its limits and time-outs."""

    def __init__(self) -> None:
        """Make it without a service: no request comes here."""

    @property
    def is_open(self) -> bool:
        """Whether requests can be answered at once: never."""
        return False

    def head_of(self, data: bytes) -> RequestHead | None:
        """Return ``None``: no request is plain."""
        return None


class _ConsoleProtocol(web.RequestHandler):
    """aiohttp's connection, which answers its own refusals like all others, without a traceback in the log."""

    __slots__ = ("_doors",)

    def __init__(self, server: web.Server, doors: ConsoleDoors, **options: Any) -> None:
        super().__init__(server, **options)
        self._doors = doors

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer 400 to malformed HTTP; then close the connection."""
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer is sent already")
        if status >= 500:
            _log.error("a request failed inside the console", exc_info=exc)
        refusal = ConsoleError(status, "http", "this is not a request as HTTP has them")
        response = _json(refusal.document(), self._doors, status)
        response.force_close()
        return response


def _found(document: Any) -> Any:
    """Return a document, or raise the refusal that it holds."""
    error = document.get("error")
    if error is not None:
        raise ConsoleError(404, error["code"], error["text"], error["advice"])
    return document


def _with_refusals(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except ServiceError as error:
        raise refused(error) from error


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set, or for ``seconds``."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except asyncio.TimeoutError:
        return


def _text(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"))


def _json(content: Any, doors: ConsoleDoors, status: int = 200) -> web.Response:
    return _packed(
        web.Response(status=status, text=_text(content), content_type="application/json", headers=doors.headers())
    )


def _packed(response: web.Response) -> web.Response:
    response.enable_compression()
    return response
