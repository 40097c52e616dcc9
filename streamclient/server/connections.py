"""The connections of one server: their number, their time-outs, and the choice of the connection to close.

The server closes a connection if the headers of a request do not end in time, if no request arrives, or if the client
does not read the answer. If the process holds as many connections as it can, the server closes a waiting connection for
each new connection. The server prefers a connection that never sent complete headers. If every waiting connection has
sent complete headers, the server closes the connection that has waited longest. So a thousand half-sent requests do not
shut out any client.
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
"""The longest time for the headers of a request to arrive. The time counts from the first byte of the request. For the
first request of a connection, it counts from the opening of the connection."""

BODY_TIMEOUT_SECONDS = 30.0
"""The longest time for the body of a request to arrive, counted from the end of the headers."""

MAX_COMING_BYTES = 256 * 1024 * 1024
"""The largest number of bytes of all unfinished request bodies together: enough for fifty bodies of the largest size.
The bodies may come from unknown callers, because the server can authenticate a caller only when the body is
complete."""

MAX_LEAVING_BYTES = 256 * 1024 * 1024
"""The largest number of bytes of all answers that clients have not yet read: enough for sixteen of the largest answers.
Above this number, the server breaks the connection whose answer has waited longest."""

KEEP_ALIVE_SECONDS = 300.0
"""The seconds after which the server closes an idle connection. The pool of every SDK keeps a connection for less time,
so the client always closes first."""

ANSWER_TIMEOUT_SECONDS = 60.0
"""The seconds after which the server breaks the connection of a client that has read nothing of a waiting answer. Such
a client is dead, or wants to fill the server's memory with unread answers."""

MAX_CONNECTIONS = 2_000
"""The largest number of connections of one server: enough for four SDK clients with full pools. Each connection takes
about ten kilobytes of memory."""

SHARE_OF_FILES = 3, 4
"""The share of the process's limit of open files that connections may use, as numerator and denominator. The remaining
files are for the data directory, and for clients in the same process."""

LOG_PAUSE_SECONDS = 60.0
"""The shortest time, in seconds, between two log lines about closed connections."""


def most_connections() -> int:
    """Return the largest number of connections that a server in this process can hold."""
    with suppress(ModuleNotFoundError):  # Windows, where the number of open files does not limit sockets
        import resource  # noqa: PLC0415

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        numerator, denominator = SHARE_OF_FILES
        if soft != resource.RLIM_INFINITY:
            return min(MAX_CONNECTIONS, soft * numerator // denominator)
    return MAX_CONNECTIONS


class Connections:
    """The connections of one server, with limits on their number and memory. Only the event loop may use it."""

    def __init__(self, make: Callable[[], web.RequestHandler], plain: PlainHttp, most: int | None = None) -> None:
        self._make = make
        self._plain = plain
        self._most = most_connections() if most is None else most
        self._idle: dict[Guard, None] = {}
        """The connections without a request in progress. The connection that has waited longest comes first."""
        self._guards: dict[asyncio.BaseTransport, Guard] = {}
        self._logged = -LOG_PAUSE_SECONDS
        self.bodies: dict[asyncio.Transport, int] = {}
        """The number of received bytes of each unfinished body, by connection. The oldest body comes first."""
        self.body_bytes: int = 0
        """The number of received bytes of all unfinished bodies together."""
        self.answers: dict[asyncio.Transport, int] = {}
        """The number of unread bytes of each answer, by connection. The answer that has waited longest comes first."""
        self.answer_bytes: int = 0
        """The number of unread bytes of all answers together. The method ``leaving`` counts them."""

    def __call__(self) -> Guard:
        """Return the protocol of a new connection."""
        return Guard(self, self._make, self._plain)

    def close_plain(self) -> None:
        """Close the connections that aiohttp has not taken over. Their complete requests are all answered."""
        for transport, guard in self._guards.items():
            if guard.is_plain:
                transport.close()

    def opened(self, guard: Guard, transport: asyncio.BaseTransport) -> None:
        """Count a new connection. If the server then has too many connections, close a waiting connection."""
        self._guards[transport] = guard
        self._idle[guard] = None
        if len(self._guards) > self._most:
            self.make_room(f"there are more than {self._most} connections", besides=guard)

    def make_more_room(self, reason: str) -> None:
        """Close an eighth of the waiting connections, because the process cannot open a file for a new connection."""
        for _ in range(max(1, len(self._idle) // 8)):
            self.make_room(reason)

    def make_room(self, reason: str, besides: Guard | None = None) -> None:
        """Close a waiting connection, preferably one that never sent complete headers.

        Close the new connection ``besides`` only if all other connections have a request in progress.
        """
        now = time.monotonic()
        if now - self._logged >= LOG_PAUSE_SECONDS:
            self._logged = now
            _log.warning("%s: closing the connections that have waited longest", reason)
        silent = next((idle for idle in self._idle if not idle.has_asked and idle is not besides), None)
        victim = silent or next(iter(self._idle), None)
        if victim is not None:
            victim.drop()

    def closed(self, guard: Guard, transport: asyncio.BaseTransport) -> None:
        """Stop counting a connection.

        ``Guard.drop`` calls this method immediately, because the event loop reports the end of a broken connection only
        after it has accepted newer connections.
        """
        self._guards.pop(transport, None)
        self._idle.pop(guard, None)

    def began(self, request: web.BaseRequest) -> None:
        """Record that aiohttp has received the complete headers of a request."""
        guard = self._of(request)
        if guard is not None:
            self.busy(guard)

    def ended(self, request: web.BaseRequest) -> None:
        """Record that aiohttp has finished a request, and that the connection waits for its next request."""
        guard = self._of(request)
        if guard is not None:
            self.waits(guard)

    def busy(self, guard: Guard) -> None:
        """Record that a connection has a request in progress."""
        self._idle.pop(guard, None)
        guard.began()

    def waits(self, guard: Guard) -> None:
        """Record that a connection waits for its next request. It becomes the last of the waiting connections."""
        self._idle[guard] = None
        guard.ended()

    def coming(self, transport: asyncio.Transport, size: int) -> None:
        """Count ``size`` received bytes of a body.

        If all unfinished bodies together are too large, break the connection of the body that began first.
        """
        self.bodies[transport] = self.bodies.get(transport, 0) + size
        self.body_bytes += size
        if self.body_bytes > MAX_COMING_BYTES:
            next(iter(self.bodies)).abort()

    def arrived(self, transport: asyncio.Transport) -> None:
        """Stop counting a body that is complete, or that will never be complete."""
        self.body_bytes -= self.bodies.pop(transport, 0)

    def leaving(self, transport: asyncio.Transport, size: int) -> None:
        """Count an answer that its client reads too slowly; ``size`` is the number of unread bytes.

        If all unread answers together are too large, break the connection whose answer has waited longest.
        """
        self.taken(transport)
        self.answers[transport] = size
        self.answer_bytes += size
        if self.answer_bytes > MAX_LEAVING_BYTES:
            oldest = next(iter(self.answers))
            self.taken(oldest)
            oldest.abort()

    def taken(self, transport: asyncio.Transport) -> None:
        """Stop counting an answer that the client has read, or will never read."""
        self.answer_bytes -= self.answers.pop(transport, 0)

    def _of(self, request: web.BaseRequest) -> Guard | None:
        return None if request.transport is None else self._guards.get(request.transport)


class Guard(asyncio.Protocol):
    """One connection, with the timers for its headers, its bodies, its answers and its idle time.

    This class answers plain requests (see ``plain_http``). At the first request that is not plain, aiohttp's protocol
    takes over the connection for good, because two protocols must not wait for the same request.
    """

    def __init__(self, connections: Connections, make: Callable[[], web.RequestHandler], plain: PlainHttp) -> None:
        self._connections = connections
        self._make = make
        self._plain = plain
        self._handler: web.RequestHandler | None = None
        """aiohttp's protocol; ``None`` until aiohttp takes over the connection."""
        self._due: int | None = 0
        """The number of bytes of the last request that have not arrived yet. ``None`` if the server cannot know this
        number, for example because the request is not plain. In this case, the next request may have begun already.
        Used only after aiohttp has taken over the connection."""
        self._head: RequestHead | None = None
        """The head of a plain request whose body is incomplete."""
        self._received = bytearray()
        self._used_at = 0.0
        self._keeping: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None
        """The timer that breaks the connection if the client reads nothing of its answer."""
        self._in_work = 0
        self.has_asked: bool = False
        """Whether the client ever sent a request with complete headers."""

    @property
    def is_plain(self) -> bool:
        """Whether only plain requests have arrived, so that aiohttp has not taken over the connection."""
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
        """Process received bytes as plain requests, or pass them to aiohttp if it has taken over the connection."""
        if self._handler is None:
            self._take(data)
        else:
            self._pass_on(self._handler, data)

    def eof_received(self) -> bool | None:
        """Tell aiohttp that the client sends no more data, if aiohttp has taken over the connection."""
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
        """Record that the server has answered a request, and close the connection later if it stays idle.

        The connection has only one timer for its idle time, which the first answered request starts. If a part of the
        next request may have arrived already, also start the timer for the headers of that request.
        """
        self._in_work -= 1
        if self._due is None and not self._in_work and self._timer is None:
            self._await_headers()
        loop = asyncio.get_running_loop()
        self._used_at = loop.time()
        if self._keeping is None:
            self._keeping = loop.call_later(KEEP_ALIVE_SECONDS, self._end_if_idle)

    def _due_after(self, data: bytes) -> int | None:
        """Return how many bytes of the request are missing after ``data``; ``None`` if this number is unknown.

        If no byte of the last request was missing, ``data`` begins a new request. If the number was unknown, ``data``
        also counts as a new request, unless a request is in progress. The size of a new request is known only if
        ``data`` begins with the complete head of a plain request. If ``data`` has more bytes than were missing, the
        result is ``None``.
        """
        if self._due == 0 or (self._due is None and not self._in_work):
            head = self._plain.head_of(data)
            self._due = None if head is None else head.size
        left = -1 if self._due is None else self._due - len(data)
        return None if left < 0 else left

    def _take(self, data: bytes) -> None:
        """Answer a complete plain request, or wait for the missing part of its body.

        For any other request, hand the connection over to aiohttp.
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
            # aiohttp begins the request in the next iteration of the event loop. If the timer for headers ended in
            # this iteration, it would close the connection although the whole request has arrived.
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
        """Break the connection, without an answer."""
        if self._transport is not None:
            self._connections.closed(self, self._transport)
            self._transport.abort()

    def _left(self) -> int:
        """Return the number of bytes of the answer that the client has not read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def _watch(self, left: int) -> None:
        """Break the connection after ``ANSWER_TIMEOUT_SECONDS`` if the client reads nothing of its answer until then.

        ``left`` is the present number of unread bytes of the answer.
        """
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
