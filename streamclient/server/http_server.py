"""The HTTP transport of the local Tablestore: one background thread with its own event loop for each server.

The event loop itself executes the requests. The engine's lock would serialize the requests anyway, and passing a
request to a pool would cost more than most requests take. Only a request that meets an injected fault waits, and it
holds no lock meanwhile.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from typing import TYPE_CHECKING, Any

from streamclient.base.pools import start_thread
from streamclient.server.admin import Admin
from streamclient.server.auth import Doors
from streamclient.server.connections import Connections
from streamclient.server.http_service import Service
from streamclient.server.plain_http import PlainHttp

if TYPE_CHECKING:
    from streamclient.server.any_http import AnyHttp

STOP_TIMEOUT_SECONDS = 1.0
"""The longest time for which ``stop`` waits for requests in progress. Requests that wait for an injected fault end
immediately. So ``stop`` waits only for requests whose bodies have not arrived completely."""

JOIN_TIMEOUT_SECONDS = 30.0
"""The time after which ``start`` and ``stop`` give up the wait for the server's thread and raise ``RuntimeError``."""

MAX_PORT = 65535

BACKLOG = 4096
"""The largest number of connections that may queue before the server accepts them. An SDK opens up to 500 connections
together. The system may allow fewer."""

ACCEPTED_AT_ONCE = 8
"""The number of connections that the event loop accepts in one step. After each step, the server closes waiting
connections if it has too many. If the loop accepted all queued connections in one step, the process might run out
of files. The loop would then report an error for each queued connection, and repeat these reports every second."""


class HttpServer:
    """An HTTP server that listens on one port for one service.

    Call ``start`` and ``stop`` once each, from any thread except the server's own.
    """

    def __init__(self, service: Service, admin: Admin, doors: Doors, *, host: str, port: int) -> None:
        self._service = service
        self._admin = admin
        self._doors = doors
        self._host = host
        self._wanted_port = port
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._connections: Connections | None = None
        self._other: AnyHttp | None = None
        self._thread: threading.Thread | None = None
        self.port: int = 0
        """The port on which the server listens; 0 before ``start``."""

    def start(self) -> None:
        """Bind the port and start the thread; return when the server answers requests.

        Raises:
            NoThreadError: the system cannot start another thread; the port is released.
            OSError: the address cannot be bound; the message names the address.
            ValueError: the port is not a number from 0 to 65535.
        """
        listener = bind(self._host, self._wanted_port)
        self.port = listener.getsockname()[1]
        ready = threading.Event()
        try:
            self._thread = start_thread(
                lambda: asyncio.run(self._serve(listener, ready)), f"local-tablestore-{self.port}"
            )
        except BaseException:
            listener.close()
            raise
        if not ready.wait(JOIN_TIMEOUT_SECONDS):
            raise RuntimeError(f"the server thread on port {self.port} did not start in {JOIN_TIMEOUT_SECONDS:g} s")

    def stop(self) -> None:
        """Stop listening, close every connection, and wait for the thread to end.

        Do nothing if the server is not running.
        """
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
        plain = PlainHttp(self._service, self._doors)
        self._connections = Connections(lambda: self._any_http().protocol(), plain)
        acceptor = await self._loop.create_server(self._connections, sock=listener, backlog=ACCEPTED_AT_ONCE)
        listener.listen(BACKLOG)  # create_server has set the queue's length to ACCEPTED_AT_ONCE
        ready.set()
        await self._stopping.wait()
        acceptor.close()
        self._connections.close_plain()
        if self._other is not None:
            await self._other.stop(STOP_TIMEOUT_SECONDS)
        await acceptor.wait_closed()

    def _any_http(self) -> AnyHttp:
        """Return the aiohttp server for requests that are not plain; make the server at the first call."""
        if self._other is None:
            from streamclient.server.any_http import AnyHttp  # noqa: PLC0415 -- slow to import

            assert self._connections is not None
            assert self._stopping is not None
            self._other = AnyHttp(self._service, self._admin, self._doors, self._connections, self._stopping)
        return self._other

    def _loop_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle a failure of the event loop.

        If too many files are open, close waiting connections. Log every other failure as usual.
        """
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE) and self._connections is not None:
            self._connections.make_more_room("too many files are open")
        elif self._stopping is None or not self._stopping.is_set():
            loop.default_exception_handler(context)


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens on ``host`` and ``port``; port 0 means any free port.

    Raises:
        OSError: the address cannot be bound; the message names the address.
        ValueError: ``port`` is not a number from 0 to 65535.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if not 0 <= port <= MAX_PORT:
        raise ValueError(
            f"cannot listen on {host}:{port}: the port must be from 0 to {MAX_PORT}; 0 means any free port"
        )
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        text = f"cannot listen on {host}:{port}: {error.strerror}; choose another address or port, or port 0 for any"
        raise OSError(error.errno, text) from error
