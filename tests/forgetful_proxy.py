"""A middle box that forgets idle connections without a word: no reset, no answer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from attrs import define, field


@define
class ForgetfulProxy:
    """Passes bytes on. What a client sends over a connection that rested, or was forgotten, is swallowed for ever."""

    upstream: tuple[str, int]
    rest_seconds: float
    port: int = 0
    connections: int = 0
    swallowed: int = 0
    """Connections whose bytes were swallowed."""
    forgotten_before: int = 0
    """Connections with a lower number are forgotten, however little they rested."""
    _sockets: list[socket.socket] = field(factory=list)
    _threads: list[threading.Thread] = field(factory=list)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def forget_all(self) -> None:
        self.forgotten_before = self.connections

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            number, self.connections = self.connections, self.connections + 1
            server = socket.create_connection(self.upstream)
            self._sockets += [client, server]
            used = [time.monotonic()]
            for source, target, is_request in ((client, server, True), (server, client, False)):
                self.start(self.pump, source, target, number, used, is_request)

    def start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def pump(
        self, source: socket.socket, target: socket.socket, number: int, used: list[float], is_request: bool
    ) -> None:
        is_forgotten = False
        with suppress(OSError):
            while data := source.recv(65_536):
                now = time.monotonic()
                is_late = now - used[0] > self.rest_seconds or number < self.forgotten_before
                if is_request and is_late and not is_forgotten:
                    is_forgotten = True
                    self.swallowed += 1
                if not is_forgotten:
                    used[0] = now
                    target.sendall(data)
        if not is_forgotten:
            with suppress(OSError):
                target.shutdown(socket.SHUT_WR)


@contextmanager
def forgetful(endpoint: str, rest_seconds: float) -> Iterator[ForgetfulProxy]:
    """A proxy before the service at ``endpoint``."""
    host = urlsplit(endpoint)
    assert host.hostname
    assert host.port
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = ForgetfulProxy((host.hostname, host.port), rest_seconds, listener.getsockname()[1])
        proxy.start(proxy.serve, listener)
        try:
            yield proxy
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            proxy._threads[0].join()
            for each in proxy._sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            for thread in proxy._threads:
                thread.join()
            for each in proxy._sockets:
                each.close()
