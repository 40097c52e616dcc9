"""A proxy before a database or a store that falls silent, cuts or delays; it tells neither side that it is there."""

from __future__ import annotations

import shutil
import socket
import tempfile
import threading
from contextlib import suppress
from enum import Enum
from pathlib import Path
from types import TracebackType

from attrs import field, frozen

_SOCKET = ".s.PGSQL.5432"
"""How libpq names the socket of a server in a directory."""


class Mood(Enum):
    """What the proxy does to connections: to those that are there when it begins, and to new ones."""

    HONEST = "forwards"
    SILENT = "keeps connections, and forwards nothing more on them"
    CUTTING = "closes connections, new ones at once"
    LATE = "forwards each answer late"


@frozen(eq=False)
class _Pair:
    """One connection: the end of the client and the end of the server."""

    client: socket.socket
    server: socket.socket
    is_silent: threading.Event = field(factory=threading.Event)

    def cut(self) -> None:
        for end in (self.client, self.server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class SilentProxy:
    """Use as a context manager.

    Args:
        target: the directory of a PostgreSQL server's socket, or the host and port of another server.
        late_seconds: how long an answer is kept back while the mood is ``LATE``, at most until the mood ends.
    """

    def __init__(self, target: Path | tuple[str, int], *, late_seconds: float = 0.0) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="px"))
        self.late_pieces = 0
        """Pieces of answers that were kept back."""
        self._family = socket.AF_UNIX if isinstance(target, Path) else socket.AF_INET
        self._target = str(target / _SOCKET) if isinstance(target, Path) else target
        self.late_seconds = late_seconds
        self._listener = socket.socket(self._family)
        self._lock = threading.Lock()
        self._mood = Mood.HONEST
        self._mood_ends = threading.Event()
        self._pairs: list[_Pair] = []
        self._threads: list[threading.Thread] = []

    @property
    def connections(self) -> int:
        """Connections that were made so far."""
        with self._lock:
            return len(self._pairs)

    @property
    def endpoint(self) -> str:
        """How to reach a server that speaks HTTP through this."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def conninfo(self, of_server: str) -> str:
        """How to reach a PostgreSQL server through this."""
        return f"{of_server} host={self.directory}"

    def fall_silent(self) -> None:
        """On the connections that are there; new ones are forwarded."""
        with self._lock:
            for pair in self._pairs:
                pair.is_silent.set()

    def cut(self) -> None:
        """Close the connections that are there; new ones are forwarded."""
        with self._lock:
            for pair in self._pairs:
                pair.cut()

    def become(self, mood: Mood) -> None:
        """Change the mood. Connections that were silent stay so, as their bytes are lost."""
        with self._lock:
            self._mood = mood
            self._mood_ends.set()
            self._mood_ends = threading.Event()
        if mood is Mood.SILENT:
            self.fall_silent()
        if mood is Mood.CUTTING:
            self.cut()

    def __enter__(self) -> SilentProxy:
        self._listener.bind(str(self.directory / _SOCKET) if self._family == socket.AF_UNIX else ("127.0.0.1", 0))
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
            pair = _Pair(client, socket.socket(self._family))
            with self._lock:
                self._pairs.append(pair)
                mood = self._mood
            if mood is Mood.CUTTING:
                pair.cut()
                continue
            if mood is Mood.SILENT:
                pair.is_silent.set()
            try:
                pair.server.connect(self._target)
            except OSError:  # it has no server behind it just now
                pair.cut()
                continue
            self._start(self._forward, pair, client, pair.server)
            self._start(self._forward, pair, pair.server, client)

    def _forward(self, pair: _Pair, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                if source is pair.server:
                    self._keep_back()
                if pair.is_silent.is_set():
                    return  # what it had stays unsaid, and the connection stays
                target.sendall(data)
            if not pair.is_silent.is_set():
                target.shutdown(socket.SHUT_WR)
        except OSError:  # one end is gone without a farewell, as after a kill: the other end hears of it
            if not pair.is_silent.is_set():
                pair.cut()

    def _keep_back(self) -> None:
        with self._lock:
            is_late, ends = self._mood is Mood.LATE, self._mood_ends
            self.late_pieces += is_late
        if is_late:
            ends.wait(self.late_seconds)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.become(Mood.CUTTING)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self.cut()  # those that were accepted meanwhile
        for thread in self._threads:
            thread.join()
        for pair in self._pairs:
            pair.client.close()
            pair.server.close()
        self._listener.close()
        shutil.rmtree(self.directory, ignore_errors=True)
