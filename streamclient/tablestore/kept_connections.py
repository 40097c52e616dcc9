"""HTTP exchanges over kept connections, for as little CPU as Python can do it with.

A thousand idle shards are two hundred answers a second without content, so what an exchange itself costs decides what
they cost. The SDK's own way through urllib3, and ``http.client``, spend most of it on header objects that nobody looks
at. What is sent and understood here is what this service, and a gateway before it, answers to a POST: a length, chunks,
or the end of the connection; interim answers; anything else is refused. All of it is bounded, in bytes and in
time: what goes beyond a bound is an error of the network, which tells the bound.

A connection belongs to the process that made it. A child that was forked begins without any.
"""

from __future__ import annotations

import os
import socket
import ssl
import time
import weakref
from collections import deque
from http.client import RemoteDisconnected
from math import inf
from typing import Any, Protocol
from urllib.parse import urlsplit

from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from streamclient.base import checks
from streamclient.tablestore.channel import RESTED_SECONDS, HttpAnswer, HttpChannel, SilentError
from streamclient.tablestore.connection_limits import ATTEMPT_WAITS, REST_SECONDS

__all__ = ["HttpAnswer", "KeptConnections", "tell_of_forks"]

KEEPALIVE_SECONDS = 30
"""The kernel asks a silent peer after so many seconds, and from then on in thirds, whether it is there: boxes on the
way remember the connection, and a dead one ends after a minute, also while an answer is being waited for."""


class _ForkedHolder(Protocol):
    """Holds connections; told in a child process that they are its parent's."""

    def leave_to_parent(self) -> None:
        """Use none of them again, and tell the other end nothing."""


_holders: weakref.WeakSet[_ForkedHolder] = weakref.WeakSet()


def tell_of_forks(holder: _ForkedHolder) -> None:
    """Have ``leave_to_parent`` called in every child that is forked from now on."""
    _holders.add(holder)


def _leave_all_to_parent() -> None:
    for holder in list(_holders):
        holder.leave_to_parent()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_leave_all_to_parent)


class KeptConnections:
    """Connections to one host, each used by one exchange at a time and kept for the next. Thread-safe.

    There are as many as exchanges were ever under way at once, at most ``most_idle`` of which are kept. Raises what
    ``urllib3`` raises if no connection can be had, as nothing was sent then; otherwise what ``http.client`` and
    ``socket`` raise.
    """

    def __init__(
        self,
        origin: str,
        *,
        timeout_seconds: float | None,
        most_idle: int,
        tls: ssl.SSLContext | None = None,
        rest_seconds: float = REST_SECONDS,
        attempt_seconds: float | None = None,
    ) -> None:
        """``origin`` is ``http://HOST[:PORT]`` or ``https://...``, the latter with ``tls``. Connects to nobody.

        ``timeout_seconds`` bounds each wait, ``attempt_seconds`` one exchange with all its waits, by default a multiple
        of it. A connection that was unused for more than ``rest_seconds`` is not used again.

        Raises:
            ConfigurationError: nobody can connect there.
        """
        self._host, self._port = checks.host_and_port(origin)
        self._address = f"{self._host}:{self._port}"
        self._head = f"Host: {urlsplit(origin).netloc}\r\n"
        wait_seconds = inf if timeout_seconds is None else timeout_seconds
        self._attempt_seconds = ATTEMPT_WAITS * wait_seconds if attempt_seconds is None else attempt_seconds
        self._wait_seconds = min(wait_seconds, self._attempt_seconds)
        self._rest_seconds = rest_seconds
        self._tls = tls
        self._idle: deque[HttpChannel] = deque(maxlen=max(1, most_idle))
        self._open: weakref.WeakSet[HttpChannel] = weakref.WeakSet()
        self._close_idle = weakref.finalize(self, _close_all, self._idle)
        tell_of_forks(self)

    def post(self, target: str, lines: str, body: bytes, *, is_repeatable: bool) -> HttpAnswer:
        """One exchange. A kept connection that turns out to be dead is replaced once, if the call may come twice.

        ``lines`` are the headers but for host and length, each with its end.
        """
        head = f"POST {target} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n{lines}\r\n"
        message = head.encode("latin-1") + body
        now = time.monotonic()
        deadline = now + self._attempt_seconds
        kept = self._kept(now, is_repeatable)
        if kept is not None:
            is_doubted = is_repeatable and now - kept.used_at > RESTED_SECONDS
            try:
                return self._exchange(kept, message, deadline, is_doubted=is_doubted)
            except (RemoteDisconnected, ConnectionError, SilentError):
                # The service closes what was idle for long; that may happen while a request is on its way.
                if not is_repeatable:
                    raise
        return self._exchange(self._connect(deadline), message, deadline)

    def close(self) -> None:
        """Close what is idle. Exchanges under way end undisturbed, and later ones connect anew."""
        _close_all(self._idle)

    def leave_to_parent(self) -> None:
        """Close this process's copies of its parent's sockets, also of those in use there.

        The parent keeps its own: closing a copy ends no connection, and sends nothing, not even over TLS.
        """
        self._idle.clear()
        for connection in list(self._open):
            connection.close()
        self._open.clear()

    def _exchange(
        self, connection: HttpChannel, message: bytes, deadline: float, *, is_doubted: bool = False
    ) -> HttpAnswer:
        is_new = connection.is_new
        try:
            answer, is_kept = connection.exchange(message, deadline, is_doubted=is_doubted)
        except BaseException as error:
            connection.close()
            if isinstance(error, TimeoutError) and not is_new:
                self.close()  # what made one connection silent has probably met all that rested with it
            raise
        idle = self._idle
        if not is_kept or len(idle) >= (idle.maxlen or 1):
            connection.close()
            return answer
        idle.append(connection)
        try:
            if connection.used_at - idle[0].used_at > self._rest_seconds:
                idle.popleft().close()  # the one that rested longest; one for each exchange is enough
        except IndexError:  # other threads took all of them meanwhile
            pass
        return answer

    def _kept(self, now: float, is_repeatable: bool) -> HttpChannel | None:
        """The connection used last, so that those beyond need rest until they are closed.

        A call that may not come twice must not meet one that was closed, so it looks each time.
        """
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            rested = now - connection.used_at
            is_busy = is_repeatable and rested <= RESTED_SECONDS
            if rested <= self._rest_seconds and (is_busy or not connection.is_dropped):
                return connection
            connection.close()

    def _connect(self, deadline: float) -> HttpChannel:
        plain = self._reached(deadline)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _keep_alive(plain)
            channel = plain if self._tls is None else self._tls.wrap_socket(plain, server_hostname=self._host)
            connection = HttpChannel(channel, self._wait_seconds, self._attempt_seconds)
        except BaseException:
            plain.close()
            raise
        self._open.add(connection)
        return connection

    def _reached(self, deadline: float) -> socket.socket:
        """A socket that is connected to the first address of the host that accepts it."""
        try:
            addresses = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError) as error:
            text = f"cannot resolve the host name {self._host!r}: {error}"
            raise NewConnectionError(self._address, text) from error  # type: ignore[arg-type]
        refused: OSError | None = None
        for family, kind, protocol, _, address in addresses:
            seconds = min(self._wait_seconds, max(0.001, deadline - time.monotonic()))
            try:
                return _connected(socket.socket(family, kind, protocol), address, seconds)
            except OSError as error:
                refused = error
        if isinstance(refused, TimeoutError):
            raise ConnectTimeoutError(f"{self._address} did not answer within {seconds:.3g} s") from refused
        raise NewConnectionError(self._address, str(refused)) from refused  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"<connections to {self._host}:{self._port}, {len(self._idle)} idle>"


def _connected(plain: socket.socket, address: Any, seconds: float) -> socket.socket:
    try:
        plain.settimeout(None if seconds == inf else seconds)
        plain.connect(address)
    except BaseException:
        plain.close()
        raise
    return plain


def _keep_alive(plain: socket.socket) -> None:
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {
        "TCP_KEEPIDLE": KEEPALIVE_SECONDS,
        "TCP_KEEPINTVL": KEEPALIVE_SECONDS // 3,
        "TCP_KEEPCNT": 3,
    }.items():
        if hasattr(socket, name):  # each system knows others
            plain.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _close_all(connections: deque[HttpChannel]) -> None:
    while connections:
        connections.pop().close()
