"""The connections of one server: how many there may be, how long one may say nothing, and who has to go.

A request whose headers do not come to an end, and a connection that never sends one, is closed after a while. When
there are as many connections as the process can bear, the one that has waited longest without a request in work makes
room for the new one, those that never finished a request first: a thousand half-sent requests shut out nobody.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections.abc import Callable
from typing import cast

from aiohttp import web

_log = logging.getLogger(__name__)

HEADER_TIMEOUT_SECONDS = 30.0
"""From the first byte of a request, or from the connection's beginning, to the end of the headers."""

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

    def __init__(self, make: Callable[[], web.RequestHandler], most: int | None = None) -> None:
        self._make = make
        self._most = most_connections() if most is None else most
        self._idle: dict[Guard, None] = {}
        """Those without a request in work, the one that waits longest first."""
        self._guards: dict[asyncio.BaseTransport, Guard] = {}
        self._logged = -LOG_PAUSE_SECONDS

    def __call__(self) -> Guard:
        """The protocol of a new connection."""
        return Guard(self, self._make())

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
            self._idle.pop(guard, None)
            guard.began()

    def ended(self, request: web.BaseRequest) -> None:
        """A request is about to be answered; its connection waits for the next one."""
        guard = self._of(request)
        if guard is not None:
            self._idle[guard] = None
            guard.ended()

    def _of(self, request: web.BaseRequest) -> Guard | None:
        return None if request.transport is None else self._guards.get(request.transport)


class Guard(asyncio.Protocol):
    """One connection: everything goes on to aiohttp's own protocol, and a timer runs while headers are due."""

    def __init__(self, connections: Connections, handler: web.RequestHandler) -> None:
        self._connections = connections
        self._handler = handler
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._in_work = 0
        self.has_asked = False
        """Whether a request with all its headers ever came."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin: the first request is due."""
        self._transport = cast(asyncio.Transport, transport)
        self._connections.opened(self, transport)
        self._await_headers()
        self._handler.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._stop_waiting()
        if self._transport is not None:
            self._connections.closed(self, self._transport)
        self._handler.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some bytes: of a request's body if one is in work, else of the next request's headers."""
        if not self._in_work and self._timer is None:
            self._await_headers()
        self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        """The client sends no more."""
        self._handler.eof_received()
        return None

    def pause_writing(self) -> None:
        """The client does not read as fast as it is written to."""
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        """It does again."""
        self._handler.resume_writing()

    def began(self) -> None:
        """The headers of a request are complete."""
        self._in_work += 1
        self.has_asked = True
        self._stop_waiting()

    def ended(self) -> None:
        """A request is answered."""
        self._in_work -= 1

    def drop(self) -> None:
        """Break the connection."""
        if self._transport is not None:
            self._connections.closed(self, self._transport)
            self._transport.abort()

    def _await_headers(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(HEADER_TIMEOUT_SECONDS, self.drop)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
