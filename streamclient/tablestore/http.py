"""HTTP exchanges over kept connections, for as little CPU as Python can do it with.

A thousand idle shards are two hundred answers a second without content, so what an exchange itself costs decides what
they cost. The SDK's own way through urllib3, and ``http.client``, spend most of it on header objects that nobody looks
at. What is sent and understood here is what this service, and a gateway
before it, answers to a POST: a length, chunks, or the end of the connection; interim answers; anything else is refused.
"""

from __future__ import annotations

import select
import socket
import ssl
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from http.client import BadStatusLine, HTTPException, IncompleteRead, RemoteDisconnected
from io import BufferedReader
from urllib.parse import urlsplit

from attrs import frozen
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

LINE_BYTES = 65_536
"""Longest line of an answer's head; that of ``http.client``."""

MOST_HEADERS = 100
"""Most headers of an answer; that of ``http.client``."""

INTERIM = range(100, 200)
"""Statuses that announce another answer."""


@frozen
class HttpAnswer:
    """One answer, whatever its status."""

    status: int
    headers: Mapping[str, str]
    """By name in lower case, without spaces around the value; of a repeated one the last."""
    body: bytes


class KeptConnections:
    """Connections to one host, each used by one exchange at a time and kept for the next. Thread-safe.

    There are as many as exchanges were ever under way at once, at most ``most_idle`` of which are kept. Raises what
    ``urllib3`` raises if no connection can be had, as nothing was sent then; otherwise what ``http.client`` and
    ``socket`` raise.
    """

    def __init__(
        self, origin: str, *, timeout_seconds: float | None, most_idle: int, tls: ssl.SSLContext | None = None
    ) -> None:
        """``origin`` is ``http://HOST[:PORT]`` or ``https://...``, the latter with ``tls``. Connects to nobody."""
        parts = urlsplit(origin)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._head = f"Host: {parts.netloc}\r\n"
        self._timeout_seconds = timeout_seconds
        self._tls = tls
        self._idle: deque[_Connection] = deque(maxlen=max(1, most_idle))
        self._close_idle = weakref.finalize(self, _close_all, self._idle)

    def post(self, target: str, headers: Mapping[str, str], body: bytes, *, is_repeatable: bool) -> HttpAnswer:
        """One exchange. A kept connection that turns out to be closed is replaced once, if the call may come twice."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"POST {target} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n{lines}\r\n"
        message = head.encode("latin-1") + body
        kept = self._kept()
        if kept is not None:
            try:
                return self._exchange(kept, message)
            except (RemoteDisconnected, ConnectionError):
                # The service closes what was idle for long; that may happen while a request is on its way.
                if not is_repeatable:
                    raise
        return self._exchange(self._connect(), message)

    def close(self) -> None:
        """Close what is idle. Exchanges under way end undisturbed, and later ones connect anew."""
        _close_all(self._idle)

    def _exchange(self, connection: _Connection, message: bytes) -> HttpAnswer:
        try:
            answer, is_kept = connection.exchange(message)
        except BaseException:
            connection.close()
            raise
        if is_kept and len(self._idle) < (self._idle.maxlen or 1):
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def _kept(self) -> _Connection | None:
        """The connection used last, so that those beyond need time out at the service."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if not connection.is_dropped:
                return connection
            connection.close()

    def _connect(self) -> _Connection:
        try:
            plain = socket.create_connection((self._host, self._port), self._timeout_seconds)
        except TimeoutError as error:
            raise ConnectTimeoutError(
                f"{self._host}:{self._port} did not answer within {self._timeout_seconds} s"
            ) from error
        except socket.gaierror as error:
            text = f"cannot resolve the host name {self._host!r}: {error}"
            raise NewConnectionError(None, text) from error  # type: ignore[arg-type]
        except OSError as error:
            raise NewConnectionError(None, f"{self._host}:{self._port}: {error}") from error  # type: ignore[arg-type]
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is None:
            return _Connection(plain)
        try:
            return _Connection(self._tls.wrap_socket(plain, server_hostname=self._host))
        except BaseException:
            plain.close()
            raise

    def __repr__(self) -> str:
        return f"<connections to {self._host}:{self._port}, {len(self._idle)} idle>"


class _Connection:
    """One socket; one exchange at a time."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._reader: BufferedReader = channel.makefile("rb")
        self._unasked = select.poll()
        self._unasked.register(channel, select.POLLIN)

    @property
    def is_dropped(self) -> bool:
        """Whether something came unasked: the end of the connection, mostly."""
        return bool(self._unasked.poll(0))

    def exchange(self, message: bytes) -> tuple[HttpAnswer, bool]:
        """The answer, and whether the connection may be used again."""
        self._channel.sendall(message)
        version, status, headers = self._head()
        while status in INTERIM:
            version, status, headers = self._head()
        length = headers.get("content-length")
        if "chunked" in headers.get("transfer-encoding", "").lower():
            body, has_end = b"".join(self._chunks()), True
        elif length is not None:
            body, has_end = self._exactly(_count(length, 10)), True
        else:
            body, has_end = self._reader.read(), False
        asks_to_close = headers.get("connection", "" if version == "HTTP/1.1" else "close").lower() == "close"
        return HttpAnswer(status, headers, body), has_end and not asks_to_close

    def close(self) -> None:
        """Close the socket; harmless if it is closed."""
        self._reader.close()
        self._channel.close()

    def _head(self) -> tuple[str, int, dict[str, str]]:
        lines = self._lines()
        if not lines:
            raise RemoteDisconnected("the connection was closed without an answer")
        version, _, rest = lines[0].partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdecimal():
            raise BadStatusLine(lines[0])
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return version, int(rest[:3]), headers

    def _lines(self) -> list[str]:
        """The head of an answer, or the trailer of a chunked one, without the empty line that ends it."""
        there = self._reader.peek(1)
        end = there.find(b"\r\n\r\n")
        if end > 0:  # all of it came at once, as it mostly does
            lines = self._reader.read(end + 4)[:-4].decode("latin-1").split("\r\n")
        else:
            lines = list(iter(self._line, ""))
        if len(lines) > MOST_HEADERS:
            raise HTTPException(f"the answer has more than {MOST_HEADERS} headers")
        return lines

    def _line(self) -> str:
        line = self._reader.readline(LINE_BYTES + 1)
        if len(line) > LINE_BYTES:
            raise HTTPException(f"a line of the answer's head is longer than {LINE_BYTES} bytes")
        return line.decode("latin-1").rstrip("\r\n")

    def _chunks(self) -> Iterable[bytes]:
        while size := _count(self._line().partition(";")[0].strip(), 16):
            yield self._exactly(size)
            self._line()
        self._lines()

    def _exactly(self, size: int) -> bytes:
        data = self._reader.read(size)
        if len(data) != size:
            raise IncompleteRead(data, size - len(data))
        return data


def _count(text: str, base: int) -> int:
    try:
        return int(text, base)
    except ValueError as error:
        raise HTTPException(f"the answer says {text!r} where the length of its body belongs") from error


def _close_all(connections: deque[_Connection]) -> None:
    while connections:
        connections.pop().close()
