"""The port of a console, and the thread that waits for the first connection.

The console of a local Tablestore imports the HTTP library only with the first connection. So a server without viewers
starts as fast, and needs as little memory, as without a console. A console of fleets imports the library at its start.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

from streamclient.base import logs
from streamclient.base.pools import start_thread
from streamclient.console.doors import ConsoleDoors, DoorRule, new_key
from streamclient.server.auth import DEFAULT_ACCESS_KEY_SECRET, Doors, is_loopback
from streamclient.server.http_server import bind

if TYPE_CHECKING:
    from streamclient.console.app import Pages
    from streamclient.server.local import LocalTablestore

_log = logs.logger(__name__)

HOST = "127.0.0.1"
"""The address on which a console listens by default. Only this machine can reach it."""

JOIN_TIMEOUT_SECONDS = 10.0
"""The seconds for which ``stop`` waits for the console's thread."""


class PageServer:
    """The server of one console. Call ``start`` and ``stop`` once each, from any thread."""

    loads_early = True
    """Whether the HTTP library is imported as soon as the server listens, and not with the first connection."""

    def __init__(self, pages: Callable[[], Pages], doors: ConsoleDoors, *, host: str = HOST, port: int = 0) -> None:
        """Store the settings; nothing else happens before ``start``. ``pages`` is called at the first connection."""
        self.doors = doors
        self.port: int = 0
        """The port on which the server listens; 0 before ``start``."""
        self._pages = pages
        self._host = host
        self._wanted_port = port
        self._waker: socket.socket | None = None
        self._is_stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    @property
    def address(self) -> str:
        """The address for a browser. If there is a key, it follows after ``#``, in a part that browsers never send."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}/" + ("" if self.doors.key is None else f"#key={self.doors.key}")

    def start(self) -> None:
        """Bind the port, start the thread, and return.

        Raises:
            NoThreadError: the system refused the thread; the port is free again.
            OSError: the port cannot be bound; the message names the port.
            ValueError: no port has this number.
        """
        listener = bind(self._host, self._wanted_port)
        self.port = listener.getsockname()[1]
        woken, self._waker = socket.socketpair()
        try:
            self._thread = start_thread(lambda: self._run(listener, woken), f"console-{self.port}")
        except BaseException:
            for opened in (listener, woken, self._waker):
                opened.close()
            raise

    def stop(self) -> None:
        """Stop listening, end all feeds, and wait for the thread. Do nothing if the server does not run."""
        thread, self._thread = self._thread, None
        if thread is None or self._waker is None:
            return
        self._is_stopped.set()  # set first, because an event loop that begins later checks this event
        self._waker.close()
        if self._loop is not None and self._stopping is not None:
            with suppress(RuntimeError):  # raised if the event loop has ended
                self._loop.call_soon_threadsafe(self._stopping.set)
        thread.join(JOIN_TIMEOUT_SECONDS)
        if thread.is_alive():
            raise RuntimeError(f"the console's thread did not end in {JOIN_TIMEOUT_SECONDS:g} s")

    def _run(self, listener: socket.socket, woken: socket.socket) -> None:
        try:
            with listener:
                with woken, selectors.DefaultSelector() as selector:
                    if self.loads_early:
                        import_module("streamclient.console.app")
                    selector.register(listener, selectors.EVENT_READ)
                    selector.register(woken, selectors.EVENT_READ)
                    if any(key.fileobj is woken for key, _ in selector.select()):
                        return
                asyncio.run(self._serve(listener))
        except Exception:
            _log.exception("the console on port %d failed", self.port)

    async def _serve(self, listener: socket.socket) -> None:
        from streamclient.console.app import App  # noqa: PLC0415 -- aiohttp, for the first connection

        stopping = self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if self._is_stopped.is_set():
            return
        await App(self._pages(), self.doors).serve(listener, stopping)


class ConsoleServer(PageServer):
    """The console of one running local Tablestore."""

    loads_early = False

    def __init__(
        self,
        local: LocalTablestore,
        *,
        server_host: str = HOST,
        port: int = 0,
        allowed_hosts: Sequence[str] = (),
        rules: frozenset[DoorRule] = frozenset(DoorRule),
    ) -> None:
        """Store the settings; nothing else happens before ``start``.

        ``server_host`` is the address on which the Tablestore listens. ``allowed_hosts`` are further names by which
        browsers may reach the console. Only tests give ``rules``.
        """

        def pages() -> Pages:
            from streamclient.console.tables import LocalPages  # noqa: PLC0415 -- with the first connection

            return LocalPages(local)

        is_open = is_loopback(server_host) and local.access_key_secret == DEFAULT_ACCESS_KEY_SECRET
        super().__init__(pages, ConsoleDoors(Doors(allowed_hosts), None if is_open else new_key(), rules), port=port)
