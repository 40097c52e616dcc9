"""A proxy before a PostgreSQL server that falls silent: it keeps its connections, and forwards nothing more on them."""

from __future__ import annotations

import shutil
import socket
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType

_SOCKET = ".s.PGSQL.5432"
"""How libpq names the socket of a server in a directory."""


class SilentProxy:
    """Use as a context manager. ``fall_silent`` concerns the connections that are there; new ones are forwarded."""

    def __init__(self, target: Path) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="px"))
        self._target = str(target / _SOCKET)
        self._listener = socket.socket(socket.AF_UNIX)
        self._lock = threading.Lock()
        self._silent: list[threading.Event] = []
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    @property
    def connections(self) -> int:
        """Connections that were made so far."""
        with self._lock:
            return len(self._silent)

    def conninfo(self, of_server: str) -> str:
        """How to reach the server through this."""
        return f"{of_server} host={self.directory}"

    def fall_silent(self) -> None:
        with self._lock:
            for silent in self._silent:
                silent.set()

    def __enter__(self) -> SilentProxy:
        self._listener.bind(str(self.directory / _SOCKET))
        self._listener.listen()
        self._start(self._accept)
        return self

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server, silent = socket.socket(socket.AF_UNIX), threading.Event()
            with self._lock:
                self._silent.append(silent)
                self._ends += [client, server]
            server.connect(self._target)
            self._start(self._forward, client, server, silent)
            self._start(self._forward, server, client, silent)

    def _forward(self, source: socket.socket, target: socket.socket, silent: threading.Event) -> None:
        try:
            while data := source.recv(1 << 16):
                if silent.is_set():
                    return  # what it had stays unsaid, and the connection stays
                target.sendall(data)
            if not silent.is_set():
                target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for end in [self._listener, *self._ends]:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for end in [self._listener, *self._ends]:
            end.close()
        shutil.rmtree(self.directory, ignore_errors=True)
