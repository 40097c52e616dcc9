"""HTTP exchanges over kept connections, for as little CPU as Python can do it with.

A thousand idle shards are two hundred answers a second without content, so what an exchange itself costs decides what
they cost. The SDK's own way through urllib3, and ``http.client``, spend most of it on header objects that nobody looks
at. What is sent and understood here is what this service, and a gateway
before it, answers to a POST: a length, chunks, or the end of the connection; interim answers; anything else is refused.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import struct
import time
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from http.client import BadStatusLine, HTTPException, IncompleteRead, RemoteDisconnected
from urllib.parse import urlsplit

from attrs import frozen
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from streamclient import checks
from streamclient.wire.signature import read_head

LINE_BYTES = 65_536
"""Longest line of an answer's head; that of ``http.client``."""

READ_BYTES = 16_384
"""Asked of a socket where nobody knows how much there will be: a head with all of a small body, or a record of TLS."""

HEAD_BYTES = 2_048
"""Of an answer that is expected to be long, its head is looked for in so much; the service's have 400 bytes."""

RESTED_SECONDS = 1.0
"""A service keeps idle connections for seconds at least. One that was used later than that is used again unasked."""

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
        """``origin`` is ``http://HOST[:PORT]`` or ``https://...``, the latter with ``tls``. Connects to nobody.

        Raises:
            ConfigurationError: nobody can connect there.
        """
        self._host, self._port = checks.host_and_port(origin)
        self._address = f"{self._host}:{self._port}"
        self._head = f"Host: {urlsplit(origin).netloc}\r\n"
        self._timeout_seconds = timeout_seconds
        self._tls = tls
        self._idle: deque[_Connection] = deque(maxlen=max(1, most_idle))
        self._close_idle = weakref.finalize(self, _close_all, self._idle)

    def post(self, target: str, lines: str, body: bytes, *, is_repeatable: bool) -> HttpAnswer:
        """One exchange. A kept connection that turns out to be closed is replaced once, if the call may come twice.

        ``lines`` are the headers but for host and length, each with its end.
        """
        head = f"POST {target} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n{lines}\r\n"
        message = head.encode("latin-1") + body
        kept = self._kept(is_repeatable)
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

    def _kept(self, is_repeatable: bool) -> _Connection | None:
        """The connection used last, so that those beyond need time out at the service.

        A call that may not come twice must not meet one that was closed, so it looks each time.
        """
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if (is_repeatable and not connection.has_rested) or not connection.is_dropped:
                return connection
            connection.close()

    def _connect(self) -> _Connection:
        try:
            plain = socket.create_connection((self._host, self._port), self._timeout_seconds)
        except TimeoutError as error:
            raise ConnectTimeoutError(f"{self._address} did not answer within {self._timeout_seconds} s") from error
        except (socket.gaierror, UnicodeError) as error:
            text = f"cannot resolve the host name {self._host!r}: {error}"
            raise NewConnectionError(self._address, text) from error  # type: ignore[arg-type]
        except OSError as error:
            raise NewConnectionError(self._address, str(error)) from error  # type: ignore[arg-type]
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
        """The time-out of the socket is that of each wait."""
        self._channel = channel
        self._ahead = b""
        """What came behind all that was read."""
        self._all = _wait_in_the_kernel(channel)
        self._is_much_expected = False
        self._unasked = select.poll()
        self._unasked.register(channel, select.POLLIN)
        self._used_at = time.monotonic()

    @property
    def is_dropped(self) -> bool:
        """Whether something came unasked: the end of the connection, mostly."""
        return bool(self._unasked.poll(0))

    @property
    def has_rested(self) -> bool:
        """Whether a service may have closed it by now."""
        return time.monotonic() - self._used_at > RESTED_SECONDS

    def exchange(self, message: bytes) -> tuple[HttpAnswer, bool]:
        """The answer, and whether the connection may be used again."""
        try:
            self._channel.sendall(message)
            answer = self._answer()
        except BlockingIOError as error:  # the kernel's word for a time-out of its own
            raise TimeoutError("timed out") from error
        self._used_at = time.monotonic()
        return answer

    def close(self) -> None:
        """Close the socket; harmless if it is closed."""
        self._channel.close()

    def _answer(self) -> tuple[HttpAnswer, bool]:
        version, status, headers = self._head()
        while status in INTERIM:
            version, status, headers = self._head()
        length = headers.get("content-length")
        if "chunked" in headers.get("transfer-encoding", "").lower():
            body, has_end = b"".join(self._chunks()), True
        elif length is not None:
            body, has_end = self._exactly(_count(length, 10)), True
        else:
            body, has_end = self._rest(), False
        asks_to_close = headers.get("connection", "" if version == "HTTP/1.1" else "close").lower() == "close"
        is_kept = has_end and not asks_to_close and not self._ahead
        self._is_much_expected = len(body) > READ_BYTES and bool(self._all)
        return HttpAnswer(status, headers, body), is_kept

    def _head(self) -> tuple[str, int, dict[str, str]]:
        if not self._ahead:
            self._ahead = self._beginning()
        usual = read_head(self._ahead)
        if usual is not None:
            status, headers, behind = usual
            self._ahead = self._ahead[behind:]
            return "HTTP/1.1", status, headers
        lines = self._lines()
        if not lines:
            raise RemoteDisconnected("the connection was closed without an answer")
        version, _, rest = lines[0].partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdecimal():
            raise BadStatusLine(lines[0])
        parts = [line.partition(":") for line in lines[1:]]
        return version, int(rest[:3]), {name.lower(): value.strip() for name, _, value in parts}

    def _lines(self) -> list[str]:
        """The head of an answer, or the trailer of a chunked one, without the empty line that ends it."""
        head, end, behind = self._ahead.partition(b"\r\n\r\n")
        if head and end:  # all of it came at once, as it mostly does
            self._ahead = behind
            lines = head.decode("latin-1").split("\r\n")
        else:
            lines = list(iter(self._line, ""))
        if len(lines) > MOST_HEADERS:
            raise HTTPException(f"the answer has more than {MOST_HEADERS} headers")
        return lines

    def _beginning(self) -> bytes:
        """What comes first. Where much is expected, the head alone, so that the body comes in one piece behind it."""
        size = READ_BYTES
        if self._is_much_expected:
            head, end, _ = self._channel.recv(HEAD_BYTES, socket.MSG_PEEK).partition(b"\r\n\r\n")
            size = len(head) + len(end) if end else HEAD_BYTES
        return self._channel.recv(size)

    def _line(self) -> str:
        """The next line without its end; empty at the end of the connection, too."""
        while b"\n" not in self._ahead and len(self._ahead) <= LINE_BYTES:
            came = self._channel.recv(READ_BYTES)
            if not came:
                break
            self._ahead += came
        line, _, self._ahead = self._ahead.partition(b"\n")
        if len(line) > LINE_BYTES:
            raise HTTPException(f"a line of the answer's head is longer than {LINE_BYTES} bytes")
        return line.decode("latin-1").rstrip("\r")

    def _chunks(self) -> Iterable[bytes]:
        while size := _count(self._line().partition(";")[0].strip(), 16):
            yield self._exactly(size)
            self._line()
        self._lines()

    def _exactly(self, size: int) -> bytes:
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        if len(data) == size:
            return data
        parts, missing = [data] if data else [], size - len(data)
        while missing:
            came = self._channel.recv(missing, self._all) if self._all else self._channel.recv(min(missing, READ_BYTES))
            if not came:
                raise IncompleteRead(b"".join(parts), missing)
            parts.append(came)
            missing -= len(came)
        return b"".join(parts)

    def _rest(self) -> bytes:
        """All up to the end of the connection."""
        parts, self._ahead = [self._ahead], b""
        while came := self._channel.recv(READ_BYTES):
            parts.append(came)
        return b"".join(parts)


def _wait_in_the_kernel(channel: socket.socket) -> int:
    """Have the socket itself keep its time-out, which saves a call before each one; ``MSG_WAITALL`` where it does.

    With that flag a whole body comes by one call. Where the kernel cannot, over TLS, and on Windows, which would take
    the seconds for milliseconds, Python waits as before.
    """
    seconds = channel.gettimeout()
    if isinstance(channel, ssl.SSLSocket) or os.name != "posix":
        return 0
    if seconds is not None:
        whole = max(1, round(seconds * 1_000_000))
        limit = struct.pack("@ll", *divmod(whole, 1_000_000))  # a struct timeval
        try:
            for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                channel.setsockopt(socket.SOL_SOCKET, direction, limit)
        except OSError:
            return 0
        channel.settimeout(None)
    return socket.MSG_WAITALL


def _count(text: str, base: int) -> int:
    try:
        count = int(text, base)
        if count >= 0:
            return count
    except ValueError:
        pass
    raise HTTPException(f"the answer says {text!r} where the length of its body belongs")


def _close_all(connections: deque[_Connection]) -> None:
    while connections:
        connections.pop().close()
