"""The connections of one server: how many there may be, how long one may say nothing, and who has to go.

A request whose headers do not come to an end, a connection that never sends one, and one whose client does not take its
answer, is closed after a while. When there are as many connections as the process can bear, the one that has waited
longest without a request in work makes room for the new one, those that never finished a request first: a thousand
half-sent requests shut out nobody.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from streamclient.base import logs
from streamclient.server.plain_http import PlainHttp, RequestHead
from streamclient.server.server_errors import ServiceError

if TYPE_CHECKING:
    from aiohttp import web

_log = logs.logger(__name__)

HEADER_TIMEOUT_SECONDS = 30.0
"""From the first byte of a request, or from the connection's beginning, to the end of the headers."""

BODY_TIMEOUT_SECONDS = 30.0
"""A client that has sent its headers gets this long for the body."""

MAX_COMING_BYTES = 256 * 1024 * 1024
"""Of all bodies that have begun and not ended. Anybody can begin one: who calls is known when it is there. Fifty of the
largest fit in."""

MAX_LEAVING_BYTES = 256 * 1024 * 1024
"""Of all answers that wait to be taken. Sixteen of the largest fit in; beyond that, the client that takes longest is
given up."""

KEEP_ALIVE_SECONDS = 300.0
"""Idle connections are kept longer than any SDK's pool keeps them, so that the client always closes first."""

ANSWER_TIMEOUT_SECONDS = 60.0
"""A client that takes nothing at all of its answer for so long is gone, or wants the server to keep it for ever."""

MAX_CONNECTIONS = 2_000
"""Four SDK clients with full pools; each connection takes some ten kilobytes."""

SHARE_OF_FILES = 3, 4
"""Of the files that the process may open: the rest is for data, and for clients in the same process."""

LOG_PAUSE_SECONDS = 60.0
"""A condition that lasts is logged once in this time."""


def most_connections() -> int:
    """How many connections a server in this process can bear."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    numerator, denominator = SHARE_OF_FILES
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, soft * numerator // denominator)


class Connections:
    """Every connection of one server, with what is known about how it behaves. Used in the event loop only."""

    def __init__(self, make: Callable[[], web.RequestHandler], plain: PlainHttp, most: int | None = None) -> None:
        self._make = make
        self._plain = plain
        self._most = most_connections() if most is None else most
        self._idle: dict[Guard, None] = {}
        """Those without a request in work, the one that waits longest first."""
        self._guards: dict[asyncio.BaseTransport, Guard] = {}
        self._logged = -LOG_PAUSE_SECONDS
        self.bodies: dict[asyncio.Transport, int] = {}
        """Bytes of each body that is being received, by its connection, the one that began first in front."""
        self.body_bytes = 0
        """Of all of them."""
        self.answers: dict[asyncio.Transport, int] = {}
        """Bytes of each answer that waits to be taken, by its connection, the one that waits longest first."""
        self.answer_bytes = 0
        """Of all of them, when they began to wait."""

    def __call__(self) -> Guard:
        """The protocol of a new connection."""
        return Guard(self, self._make, self._plain)

    def close_plain(self) -> None:
        """Close the connections that sent nothing but plain requests: all of those are answered."""
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
        """Close a part of the connections that wait: the process has no file left for a new one."""
        for _ in range(max(1, len(self._idle) // 8)):
            self.make_room(reason)

    def make_room(self, reason: str, besides: Guard | None = None) -> None:
        """Close a connection that waits; the newest itself if all others have work."""
        now = time.monotonic()
        if now - self._logged >= LOG_PAUSE_SECONDS:
            self._logged = now
            _log.warning("%s: those that have waited longest are closed", reason)
        silent = next((idle for idle in self._idle if not idle.has_asked and idle is not besides), None)
        victim = silent or next(iter(self._idle), None)
        if victim is not None:
            victim.drop()

    def closed(self, guard: Guard, transport: asyncio.BaseTransport) -> None:
        """Forget a connection; at once when it is broken, as the loop tells of its end only after others have come."""
        self._guards.pop(transport, None)
        self._idle.pop(guard, None)

    def began(self, request: web.BaseRequest) -> None:
        """The headers of a request are complete."""
        guard = self._of(request)
        if guard is not None:
            self.busy(guard)

    def ended(self, request: web.BaseRequest) -> None:
        """A request is about to be answered; its connection waits for the next one."""
        guard = self._of(request)
        if guard is not None:
            self.waits(guard)

    def busy(self, guard: Guard) -> None:
        """A connection has a request in work."""
        self._idle.pop(guard, None)
        guard.began()

    def waits(self, guard: Guard) -> None:
        """A connection waits for its next request, behind those that wait already."""
        self._idle[guard] = None
        guard.ended()

    def coming(self, transport: asyncio.Transport, size: int) -> None:
        """Count a part of a body. If all of them are too much, the one that takes longest is given up."""
        self.bodies[transport] = self.bodies.get(transport, 0) + size
        self.body_bytes += size
        if self.body_bytes > MAX_COMING_BYTES:
            next(iter(self.bodies)).abort()

    def arrived(self, transport: asyncio.Transport) -> None:
        """A body is there, or will never be."""
        self.body_bytes -= self.bodies.pop(transport, 0)

    def leaving(self, transport: asyncio.Transport, size: int) -> None:
        """Count an answer that is not taken as fast as it is written. If all are too much, the oldest is given up."""
        self.taken(transport)
        self.answers[transport] = size
        self.answer_bytes += size
        if self.answer_bytes > MAX_LEAVING_BYTES:
            oldest = next(iter(self.answers))
            self.taken(oldest)
            oldest.abort()

    def taken(self, transport: asyncio.Transport) -> None:
        """An answer is taken, or will never be."""
        self.answer_bytes -= self.answers.pop(transport, 0)

    def _of(self, request: web.BaseRequest) -> Guard | None:
        return None if request.transport is None else self._guards.get(request.transport)


class Guard(asyncio.Protocol):
    """One connection, and a timer that runs while headers are due.

    Plain requests are answered here. From the first bytes on that are none, all goes on to aiohttp's own protocol,
    to the connection's end: it would not do to have two of them wait for the next request.
    """

    def __init__(self, connections: Connections, make: Callable[[], web.RequestHandler], plain: PlainHttp) -> None:
        self._connections = connections
        self._make = make
        self._plain = plain
        self._handler: web.RequestHandler | None = None
        """aiohttp's protocol, once it has been handed over to."""
        self._due: int | None = 0
        """After the handing over: bytes to come of the last request; ``None`` if there may be some of another one."""
        self._head: RequestHead | None = None
        """Of the plain request whose body is not here yet."""
        self._received = bytearray()
        self._used_at = 0.0
        self._keeping: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None
        """Runs while the client does not read as fast as it is written to."""
        self._in_work = 0
        self.has_asked = False
        """Whether a request with all its headers ever came."""

    @property
    def is_plain(self) -> bool:
        """Whether nothing but plain requests ever came."""
        return self._handler is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin: the first request is due."""
        self._transport = cast(asyncio.Transport, transport)
        self._connections.opened(self, transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
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
        """Some bytes: of a request's body if one is in work, else of the next request's headers."""
        if self._handler is None:
            self._take(data)
        else:
            self._pass_on(self._handler, data)

    def eof_received(self) -> bool | None:
        """The client sends no more."""
        if self._handler is not None:
            self._handler.eof_received()
        return None

    def pause_writing(self) -> None:
        """The client does not read as fast as it is written to."""
        left = self._left()
        self._watch(left)
        if self._transport is not None:
            self._connections.leaving(self._transport, left)
        if self._handler is not None:
            self._handler.pause_writing()
        elif self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """It does again."""
        self._stop_watching()
        if self._transport is not None:
            self._connections.taken(self._transport)
        if self._handler is not None:
            self._handler.resume_writing()
        elif self._transport is not None:
            self._transport.resume_reading()

    def began(self) -> None:
        """The headers of a request are complete."""
        self._in_work += 1
        self.has_asked = True
        self._stop_waiting()

    def ended(self) -> None:
        """A request is answered. The connection is closed when it was idle for long after it.

        One timer sees to that, however many requests come. Where the next request may have begun in the bytes that
        brought this one, its headers are due.
        """
        self._in_work -= 1
        if self._due is None and not self._in_work and self._timer is None:
            self._await_headers()
        loop = asyncio.get_running_loop()
        self._used_at = loop.time()
        if self._keeping is None:
            self._keeping = loop.call_later(KEEP_ALIVE_SECONDS, self._end_if_idle)

    def _due_after(self, data: bytes) -> int | None:
        """How much is to come after these bytes; only of requests in plain form it is known."""
        if self._due == 0:
            head = self._plain.head_of(data)
            self._due = None if head is None else head.size
        left = -1 if self._due is None else self._due - len(data)
        return None if left < 0 else left

    def _take(self, data: bytes) -> None:
        """Take a plain request or the next part of one, or hand over."""
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
            self._transport.write(self._plain.failure(ServiceError(408, "OTSRequestTimeout", "Request timeout.")))
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
            self._transport.write(
                self._plain.failure(ServiceError(500, "OTSInternalServerError", "Internal server error."))
            )
            self._transport.close()
        self._connections.waits(self)

    def _end_of_body(self) -> None:
        self._stop_waiting()
        if self._transport is not None:
            self._connections.arrived(self._transport)
        self._head = None
        self._received = bytearray()

    def _hand_over(self, data: bytes) -> None:
        """Leave these bytes and all that follow to aiohttp."""
        if self._head is not None:
            self._end_of_body()
            self._connections.waits(self)
        assert self._transport is not None
        self._handler = self._make()
        self._handler.connection_made(self._transport)
        self._pass_on(self._handler, data)

    def _pass_on(self, handler: web.RequestHandler, data: bytes) -> None:
        self._due = self._due_after(data)
        if not self._in_work and self._timer is None:
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
        """Bytes of answers that wait to be taken."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def _watch(self, left: int) -> None:
        """Look again later whether some of it was taken meanwhile."""
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
