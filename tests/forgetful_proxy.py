"""A middle box that forgets connections when it is told to, without a word: no reset, no answer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from attrs import define, field


@define
class ForgetfulProxy:
    """Passes bytes on. What a client sends over a forgotten connection is swallowed for ever."""

    upstream: tuple[str, int]
    port: int = 0
    swallowed: list[bytes] = field(factory=list)
    """For each connection whose bytes were swallowed, the first of them."""
    answers: threading.Event = field(factory=threading.Event)
    """While it is not set, answers wait, so that calls under way keep their connections."""
    _used: list[float] = field(factory=list)
    """For each connection the time when something passed last."""
    _forgotten: set[int] = field(factory=set)
    _sockets: list[socket.socket] = field(factory=list)
    _threads: list[threading.Thread] = field(factory=list)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        return len(self._used)

    def rested(self, seconds: float) -> list[int]:
        """Numbers of the connections that were unused for so long."""
        now = time.monotonic()
        return [number for number, used in enumerate(list(self._used)) if now - used >= seconds]

    def forget(self, numbers: Iterable[int]) -> None:
        self._forgotten.update(numbers)

    def forget_all(self) -> None:
        self.forget(range(self.connections))

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            number = self.connections
            self._used.append(time.monotonic())
            server = socket.create_connection(self.upstream)
            self._sockets += [client, server]
            for source, target, is_request in ((client, server, True), (server, client, False)):
                self.start(self.pump, source, target, number, is_request)

    def start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def pump(self, source: socket.socket, target: socket.socket, number: int, is_request: bool) -> None:
        is_swallowed = False
        with suppress(OSError):
            while data := source.recv(65_536):
                if is_request and number in self._forgotten and not is_swallowed:
                    is_swallowed = True
                    self.swallowed.append(data)
                if not is_request:
                    self.answers.wait()
                if not is_swallowed:
                    self._used[number] = time.monotonic()
                    target.sendall(data)
        if not is_swallowed:
            with suppress(OSError):
                target.shutdown(socket.SHUT_WR)


@contextmanager
def forgetful(endpoint: str) -> Iterator[ForgetfulProxy]:
    """A proxy before the service at ``endpoint``."""
    host = urlsplit(endpoint)
    assert host.hostname
    assert host.port
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = ForgetfulProxy((host.hostname, host.port), listener.getsockname()[1])
        proxy.answers.set()
        proxy.start(proxy.serve, listener)
        try:
            yield proxy
        finally:
            proxy.answers.set()
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
