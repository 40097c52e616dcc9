"""HTTP exchanges over kept connections, with little CPU time.

A worker of a thousand idle shards receives two hundred empty responses a second, so the cost of a single exchange
counts. urllib3, which the SDK uses, and ``http.client`` spend most of an exchange on header objects that no caller
reads. This module understands the responses that the service, or a gateway to it, gives to a POST. Such a response
may have a length, chunks, or no announced end, and interim responses may precede it. The module refuses any other
response. The size and the duration of a response are bounded. A response beyond a bound is a network error that names
the bound.

A connection belongs to the process that made it. A forked child begins without connections.
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
"""The idle seconds of a connection after which the kernel probes the peer. Each later probe follows after a third of
this time. The probes keep the connection known to network devices. A dead connection ends after a minute, even during
the wait for a response."""


class _ForkedHolder(Protocol):
    """An object with connections. After a fork, the child must not use the parent's connections."""

    def leave_to_parent(self) -> None:
        """In the child, stop using the parent's connections, and send nothing over them."""


_holders: weakref.WeakSet[_ForkedHolder] = weakref.WeakSet()


def tell_of_forks(holder: _ForkedHolder) -> None:
    """After every later fork, let the child process call ``holder.leave_to_parent``."""
    _holders.add(holder)


def _leave_all_to_parent() -> None:
    for holder in list(_holders):
        holder.leave_to_parent()


if hasattr(os, "register_at_fork"):  # absent on Windows, which does not fork
    os.register_at_fork(after_in_child=_leave_all_to_parent)


class KeptConnections:
    """Connections to one host, which are kept between exchanges. Thread-safe.

    Each running exchange has a connection of its own. At most ``most_idle`` idle connections are kept. If no connection
    can be made, nothing was sent, and the error is an error of ``urllib3``. Other errors come from ``http.client`` and
    ``socket``.
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
        """Prepare connections to ``origin``: ``http://HOST[:PORT]``, or ``https://...`` with ``tls``.

        This makes no connection yet. ``timeout_seconds`` bounds each wait. ``attempt_seconds`` bounds a whole exchange;
        the default is ``ATTEMPT_WAITS`` times ``timeout_seconds``. A connection that was idle for more than
        ``rest_seconds`` is not reused.

        Raises:
            ConfigurationError: ``origin`` is not the address of a host and port.
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
        """Send one request to the path ``target``; return the response.

        If a kept connection is dead, a repeatable request is sent once more, over a new connection. ``lines`` are the
        headers except ``Host`` and ``Content-Length``, each with its line end.
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
                # The service closes a connection after a long idle time, perhaps when a request is on its way.
                if not is_repeatable:
                    raise
        return self._exchange(self._connect(deadline), message, deadline)

    def close(self) -> None:
        """Close the idle connections. Running exchanges continue, and later exchanges make new connections."""
        _close_all(self._idle)

    def leave_to_parent(self) -> None:
        """Close this process's copies of its parent's sockets, including sockets that the parent is using.

        The parent's own sockets stay open. Closing a copy does not end the connection, and sends nothing, not even over
        TLS.
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
                self.close()  # the other idle connections are probably dead for the same reason
            raise
        idle = self._idle
        if not is_kept or len(idle) >= (idle.maxlen or 1):
            connection.close()
            return answer
        idle.append(connection)
        try:
            if connection.used_at - idle[0].used_at > self._rest_seconds:
                idle.popleft().close()  # It was idle longest. Closing one connection per exchange is enough.
        except IndexError:  # other threads have taken all idle connections meanwhile
            pass
        return answer

    def _kept(self, now: float, is_repeatable: bool) -> HttpChannel | None:
        """Return the idle connection that was used last and is still usable; ``None`` without such a connection.

        Because the last used connection is taken first, superfluous connections stay idle until they are closed. For a
        request that must not be repeated, each connection is checked first, because the service may have closed it.
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
        """Try the host's addresses in order; return a socket that is connected to the first address that accepts."""
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
        if hasattr(socket, name):  # not every operating system has every option
            plain.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _close_all(connections: deque[HttpChannel]) -> None:
    while connections:
        connections.pop().close()
