"""The connections of one server: their number, their time-outs, and the choice of the connection to close.

The server closes a connection if its headers do not end in time, if it never sends a request, or if its client does not
read the answer. If the process holds as many connections as it can, a new connection replaces the one that has waited
longest without a request in work. Connections that never finished a request are replaced first. So a thousand half-sent
requests do not shut out any client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from streamclient.base import logs
from streamclient.server import refusals
from streamclient.server.plain_http import PlainHttp, RequestHead

if TYPE_CHECKING:
    from aiohttp import web

_log = logs.logger(__name__)

HEADER_TIMEOUT_SECONDS = 30.0
"""The seconds from the first byte of a request, or from the connection's beginning, to the end of the headers."""

BODY_TIMEOUT_SECONDS = 30.0
"""The seconds for the body, after the headers have arrived."""

MAX_COMING_BYTES = 256 * 1024 * 1024
"""The largest number of bytes of all unfinished bodies together: enough for fifty bodies of the largest size. Anyone
can begin a body, because a caller is authenticated only when the body is complete."""

MAX_LEAVING_BYTES = 256 * 1024 * 1024
"""The largest number of bytes of all answers that clients have not yet read: enough for sixteen of the largest answers.
If there are more, the server breaks the connection of the slowest client."""

KEEP_ALIVE_SECONDS = 300.0
"""The seconds after which an idle connection is closed: longer than in any SDK's pool, so the client always closes
first."""

ANSWER_TIMEOUT_SECONDS = 60.0
"""The seconds in which a client must read at least a part of its answer. A slower client no longer exists, or tries to
keep the answer in memory for ever."""

MAX_CONNECTIONS = 2_000
"""The largest number of connections: enough for four SDK clients with full pools. Each connection takes about ten
kilobytes."""

SHARE_OF_FILES = 3, 4
"""The connections' share of the files that the process may open, as numerator and denominator. The rest is for data,
and for clients in the same process."""

LOG_PAUSE_SECONDS = 60.0
"""The seconds between two log lines about a lasting condition."""


def most_connections() -> int:
    """Return the number of connections that a server in this process can hold."""
    with suppress(ModuleNotFoundError):  # Windows, where the number of open files does not limit sockets
        import resource  # noqa: PLC0415

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        numerator, denominator = SHARE_OF_FILES
        if soft != resource.RLIM_INFINITY:
            return min(MAX_CONNECTIONS, soft * numerator // denominator)
    return MAX_CONNECTIONS


class Connections:
    """Every connection of one server and its behavior. Used in the event loop only."""

    def __init__(self, make: Callable[[], web.RequestHandler], plain: PlainHttp, most: int | None = None) -> None:
        self._make = make
        self._plain = plain
        self._most = most_connections() if most is None else most
        self._idle: dict[Guard, None] = {}
        """The connections without a request in work. The connection that has waited longest comes first."""
        self._guards: dict[asyncio.BaseTransport, Guard] = {}
        self._logged = -LOG_PAUSE_SECONDS
        self.bodies: dict[asyncio.Transport, int] = {}
        """The bytes of each body that is being received, by connection, in the order in which the bodies began."""
        self.body_bytes: int = 0
        """The bytes of all unfinished bodies."""
        self.answers: dict[asyncio.Transport, int] = {}
        """The bytes of each unread answer, by connection. The answer that has waited longest comes first."""
        self.answer_bytes: int = 0
        """The bytes of all unread answers, each as it was when it began to wait."""

    def __call__(self) -> Guard:
        """Return the protocol of a new connection."""
        return Guard(self, self._make, self._plain)

    def close_plain(self) -> None:
        """Close the connections that sent only plain requests. All of these requests are answered."""
        for transport, guard in self._guards.items():
            if guard.is_plain:
                transport.close()

    def opened(self, guard: Guard, transport: asyncio.BaseTransport) -> None:
        """Count a connection, and make room for it."""
        self._guards[transport] = guard
        self._idle[guard] = None
        if len(self._guards) > self._most:
            self.make_room(f"there are more than {self._most} connections", besides=guard)

    def make_more_room(self, reason: str) -> None:
        """Close some waiting connections, because the process has no file left for a new connection."""
        for _ in range(max(1, len(self._idle) // 8)):
            self.make_room(reason)

    def make_room(self, reason: str, besides: Guard | None = None) -> None:
        """Close a waiting connection. If all other connections have work, close the newest."""
        now = time.monotonic()
        if now - self._logged >= LOG_PAUSE_SECONDS:
            self._logged = now
            _log.warning("%s: those that have waited longest are closed", reason)
        silent = next((idle for idle in self._idle if not idle.has_asked and idle is not besides), None)
        victim = silent or next(iter(self._idle), None)
        if victim is not None:
            victim.drop()

    def closed(self, guard: Guard, transport: asyncio.BaseTransport) -> None:
        """Forget a connection.

        A broken connection is forgotten immediately, because the event loop reports its end only after newer
        connections.
        """
        self._guards.pop(transport, None)
        self._idle.pop(guard, None)

    def began(self, request: web.BaseRequest) -> None:
        """Record that the headers of a request are complete."""
        guard = self._of(request)
        if guard is not None:
            self.busy(guard)

    def ended(self, request: web.BaseRequest) -> None:
        """Record that a request is about to be answered; its connection waits for the next request."""
        guard = self._of(request)
        if guard is not None:
            self.waits(guard)

    def busy(self, guard: Guard) -> None:
        """Record that a connection has a request in work."""
        self._idle.pop(guard, None)
        guard.began()

    def waits(self, guard: Guard) -> None:
        """Record that a connection waits for its next request, after the connections that wait already."""
        self._idle[guard] = None
        guard.ended()

    def coming(self, transport: asyncio.Transport, size: int) -> None:
        """Count a part of a body. If all bodies together are too large, break the connection of the slowest body."""
        self.bodies[transport] = self.bodies.get(transport, 0) + size
        self.body_bytes += size
        if self.body_bytes > MAX_COMING_BYTES:
            next(iter(self.bodies)).abort()

    def arrived(self, transport: asyncio.Transport) -> None:
        """Stop counting a body that is complete, or that will never be complete."""
        self.body_bytes -= self.bodies.pop(transport, 0)

    def leaving(self, transport: asyncio.Transport, size: int) -> None:
        """Count an answer that the client reads too slowly.

        If all answers together are too large, break the connection of the oldest answer.
        """
        self.taken(transport)
        self.answers[transport] = size
        self.answer_bytes += size
        if self.answer_bytes > MAX_LEAVING_BYTES:
            oldest = next(iter(self.answers))
            self.taken(oldest)
            oldest.abort()

    def taken(self, transport: asyncio.Transport) -> None:
        """Stop counting an answer that was read, or that will never be read."""
        self.answer_bytes -= self.answers.pop(transport, 0)

    def _of(self, request: web.BaseRequest) -> Guard | None:
        return None if request.transport is None else self._guards.get(request.transport)


class Guard(asyncio.Protocol):
    """One connection, and a timer that runs while headers are due.

    This class answers plain requests (``plain_http``). At the first other request, the whole connection passes to
    aiohttp's protocol for good, because two protocols must not wait for the same request.
    """

    def __init__(self, connections: Connections, make: Callable[[], web.RequestHandler], plain: PlainHttp) -> None:
        self._connections = connections
        self._make = make
        self._plain = plain
        self._handler: web.RequestHandler | None = None
        """aiohttp's protocol, once the connection has passed to aiohttp."""
        self._due: int | None = 0
        """After the connection has passed to aiohttp: the number of bytes that the last request still lacks; ``None``
        if bytes of another request may have arrived."""
        self._head: RequestHead | None = None
        """The head of a plain request whose body is incomplete."""
        self._received = bytearray()
        self._used_at = 0.0
        self._keeping: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None
        """A timer that runs while the client reads more slowly than the server writes."""
        self._in_work = 0
        self.has_asked: bool = False
        """Whether a request with complete headers ever arrived."""

    @property
    def is_plain(self) -> bool:
        """Whether only plain requests have arrived so far."""
        return self._handler is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first request."""
        self._transport = cast(asyncio.Transport, transport)
        self._connections.opened(self, transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers and forget the connection."""
        self._stop_waiting()
        self._stop_keeping()
        self._stop_watching()
        if self._transport is not None:
            self._connections.arrived(self._transport)
            self._connections.taken(self._transport)
            self._connections.closed(self, self._transport)
        if self._handler is not None:
            self._handler.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes: of the body of the present request, or of the headers of the next request."""
        if self._handler is None:
            self._take(data)
        else:
            self._pass_on(self._handler, data)

    def eof_received(self) -> bool | None:
        """Record that the client sends no more."""
        if self._handler is not None:
            self._handler.eof_received()
        return None

    def pause_writing(self) -> None:
        """Record that the client reads more slowly than the server writes."""
        left = self._left()
        self._watch(left)
        if self._transport is not None:
            self._connections.leaving(self._transport, left)
        if self._handler is not None:
            self._handler.pause_writing()
        elif self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Record that the client reads fast enough again."""
        self._stop_watching()
        if self._transport is not None:
            self._connections.taken(self._transport)
        if self._handler is not None:
            self._handler.resume_writing()
        elif self._transport is not None:
            self._transport.resume_reading()

    def began(self) -> None:
        """Record that the headers of a request are complete."""
        self._in_work += 1
        self.has_asked = True
        self._stop_waiting()

    def ended(self) -> None:
        """Record that a request is answered. If the connection then stays idle for long, it is closed.

        One timer serves all requests. If the bytes that brought this request may have contained the beginning of the
        next request, the timer runs for the headers of the next request.
        """
        self._in_work -= 1
        if self._due is None and not self._in_work and self._timer is None:
            self._await_headers()
        loop = asyncio.get_running_loop()
        self._used_at = loop.time()
        if self._keeping is None:
            self._keeping = loop.call_later(KEEP_ALIVE_SECONDS, self._end_if_idle)

    def _due_after(self, data: bytes) -> int | None:
        """Return how many bytes the request lacks after ``data``. The number is known only for plain requests.

        If the number is unknown, it becomes known again when a whole plain request comes while no other request is in
        work. So if one head came in two pieces, the connection does not count as half-sent for ever.
        """
        if self._due == 0 or (self._due is None and not self._in_work):
            head = self._plain.head_of(data)
            self._due = None if head is None else head.size
        left = -1 if self._due is None else self._due - len(data)
        return None if left < 0 else left

    def _take(self, data: bytes) -> None:
        """Answer a plain request, or wait for the rest of its body.

        Pass the connection to aiohttp for any other request.
        """
        if self._head is not None:
            self._received += data
            if len(self._received) < self._head.size:
                self._comes(len(data))
                return
            data = bytes(self._received)
        head = self._head or self._plain.head_of(data)
        if head is None or len(data) > head.size or not self._plain.is_open:
            self._hand_over(data)
        elif len(data) == head.size:
            self._answer(head, data[head.head_bytes :])
        else:
            self._await_body(head, data)

    def _await_body(self, head: RequestHead, data: bytes) -> None:
        self._head = head
        self._received = bytearray(data)
        self._connections.busy(self)
        self._timer = asyncio.get_running_loop().call_later(BODY_TIMEOUT_SECONDS, self._body_is_late)
        self._comes(len(data) - head.head_bytes)

    def _comes(self, size: int) -> None:
        assert self._transport is not None
        self._connections.coming(self._transport, size)

    def _body_is_late(self) -> None:
        if self._transport is not None:
            self._transport.write(self._plain.failure(refusals.BODY_LATE()))
            self._transport.close()

    def _answer(self, head: RequestHead, body: bytes) -> None:
        assert self._transport is not None
        if self._head is None:
            self._connections.busy(self)
        else:
            self._end_of_body()
        try:
            self._transport.write(self._plain.answer(head, body))
        except Exception:
            _log.exception("a request failed inside the server")
            self._transport.write(self._plain.failure(refusals.SERVER_FAILED()))
            self._transport.close()
        self._connections.waits(self)

    def _end_of_body(self) -> None:
        self._stop_waiting()
        if self._transport is not None:
            self._connections.arrived(self._transport)
        self._head = None
        self._received = bytearray()

    def _hand_over(self, data: bytes) -> None:
        """Pass ``data`` and all later bytes to aiohttp."""
        if self._head is not None:
            self._end_of_body()
            self._connections.waits(self)
        assert self._transport is not None
        self._handler = self._make()
        self._handler.connection_made(self._transport)
        self._pass_on(self._handler, data)

    def _pass_on(self, handler: web.RequestHandler, data: bytes) -> None:
        self._due = self._due_after(data)
        self._used_at = asyncio.get_running_loop().time()
        if self._due == 0:
            # aiohttp begins the request in the next iteration of the event loop. A timer that is due in this iteration
            # must not close the connection: the client would lose a request that was read.
            self._stop_waiting()
        elif not self._in_work and self._timer is None:
            self._await_headers()
        handler.data_received(data)

    def _end_if_idle(self) -> None:
        loop = asyncio.get_running_loop()
        left = KEEP_ALIVE_SECONDS if self._in_work else self._used_at + KEEP_ALIVE_SECONDS - loop.time()
        if left > 0:
            self._keeping = loop.call_later(left, self._end_if_idle)
        elif self._transport is not None:
            self._transport.close()

    def _stop_keeping(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None

    def drop(self) -> None:
        """Break the connection."""
        if self._transport is not None:
            self._connections.closed(self, self._transport)
            self._transport.abort()

    def _left(self) -> int:
        """Return the number of bytes of the answer that the client has not read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def _watch(self, left: int) -> None:
        """Check later whether the client has read a part of its answer."""
        self._taking = asyncio.get_running_loop().call_later(ANSWER_TIMEOUT_SECONDS, self._look, left)

    def _look(self, left_before: int) -> None:
        left = self._left()
        if left < left_before:
            self._watch(left)
        else:
            self.drop()

    def _stop_watching(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    def _await_headers(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(HEADER_TIMEOUT_SECONDS, self.drop)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
