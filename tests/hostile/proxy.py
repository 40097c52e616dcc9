"""A proxy before a local server that answers one kind of request as a fault says, and hands on all others."""

from __future__ import annotations

import random
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from attrs import define

from streamclient.server import LocalTablestore
from tests.hostile.answers import PLAYS, End, Meeting, Script, Wait
from tests.hostile.exchange import PageHistory, PageSeen, Reply, Request, Sealer
from tests.hostile.table import Answer, Place
from tests.patience import PATIENCE_SECONDS

CERTIFICATE = Path(__file__).parents[1] / "stream" / "localhost.pem"
"""Of nobody but these tests, for ``localhost``."""

CLIENT_SECONDS = 3.0
"""The time-out of clients that talk to the proxy. An honest answer comes sooner, also on a busy machine."""

BYTE_SECONDS = 0.25
"""Between two bytes of a slow answer."""

READ_BYTES = 65_536


class ClientLeftError(Exception):
    """The client has closed the connection, or the proxy is being closed."""


@define(eq=False)
class Fault:
    """One hostile answer, played at each request of a place that it fits, so many times or until it is ended."""

    place: Place
    answer: Answer
    times: int | None
    dice: random.Random
    is_data: Callable[[str], bool]
    """Whether a table of this name is the data table; any other is the status table."""
    played: int = 0
    _is_ended: bool = False

    def end(self) -> None:
        """Be honest from now on."""
        self._is_ended = True

    @property
    def is_over(self) -> bool:
        """Whether it plays no more."""
        return self._is_ended or self.played == self.times

    def meets(self, request: Request) -> bool:
        """Whether it plays on, and the request is one of its place."""
        place = self.place
        if self.is_over or request.operation != place.operation:
            return False
        return not place.table or (place.table == "data") is self.is_data(request.table)


class HostileProxy:
    """Speaks plain HTTP, or TLS with the certificate of the tests. A context manager; a thread for each connection."""

    def __init__(self, local: LocalTablestore, fault: Fault | None = None, *, has_tls: bool = False) -> None:
        self._upstream = urlsplit(local.endpoint)
        self._sealer = Sealer(local.access_key_id, local.access_key_secret)
        self.fault = fault
        self._has_tls = has_tls
        self._lock = threading.Lock()
        self._history = PageHistory()
        self._channels: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self.swallowed: list[str] = []
        """What clients took that they should have given up."""
        self.failures: list[BaseException] = []
        """Of the proxy itself."""

    def __enter__(self) -> HostileProxy:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if self._has_tls else None
        if self._tls is not None:
            self._tls.load_cert_chain(CERTIFICATE)
        self._begin(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._lock:
            self._is_closed = True
            channels = list(self._channels)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for channel in channels:
            with suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)

    @property
    def endpoint(self) -> str:
        """Where clients are sent."""
        port = self._listener.getsockname()[1]
        return f"https://localhost:{port}" if self._has_tls else f"http://127.0.0.1:{port}"

    # --- connections --------------------------------------------------------------------------------------------------

    def _begin(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, name="hostile-proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                channel, _ = self._listener.accept()
            except OSError:
                return
            self._begin(self._serve, channel)

    def _serve(self, plain: socket.socket) -> None:
        channel: socket.socket = plain
        upstream = socket.create_connection((self._upstream.hostname or "", self._upstream.port or 0))
        try:
            channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                channel = self._tls.wrap_socket(plain, server_side=True)
            with self._lock:
                if self._is_closed:
                    return
                self._channels.add(channel)
            is_kept = False
            while self._exchange(channel, upstream, is_kept):
                is_kept = True
        except (OSError, ClientLeftError):
            pass
        except BaseException as error:
            self.failures.append(error)
        finally:
            with self._lock:
                self._channels.discard(channel)
            channel.close()
            upstream.close()

    def _exchange(self, channel: socket.socket, upstream: socket.socket, is_kept: bool) -> bool:
        """Answer one request; whether the connection goes on."""
        message = _message(channel)
        if message is None:
            return False
        head, body = message
        operation = head.split(b" ", 2)[1].decode("ascii").strip("/")
        request = Request(operation, body, is_kept)
        script = self._script(request, None)
        if script is not None:
            return self._play(channel, script, operation)
        upstream.sendall(head + body)
        answered = _message(upstream)
        if answered is None:
            return False
        script = self._script(request, _reply(*answered))
        if script is None:
            channel.sendall(answered[0] + answered[1])
            return True
        return self._play(channel, script, operation)

    def _script(self, request: Request, reply: Reply | None) -> Script | None:
        """The hostile answer, if the request gets one; without a reply, one in place of doing what is asked."""
        with self._lock:
            page = PageSeen.of(request, reply.body) if reply is not None and reply.status == 200 else None
            fault = self.fault
            script = None
            if fault is not None and fault.answer.is_done is (reply is not None) and fault.meets(request):
                given = Reply(200, {}, b"") if reply is None else reply
                meeting = Meeting(request, given, page, self._history, self._sealer, fault.dice)
                script = PLAYS[fault.answer.name](meeting)
                fault.played += script is not None
            if page is not None:
                self._history.note(page)
            return script

    def _play(self, channel: socket.socket, script: Script, operation: str) -> bool:
        for step in script.steps:
            if isinstance(step, Wait):
                _require_client(channel, BYTE_SECONDS)
            else:
                channel.sendall(step)
        if script.must_leave:
            answer = "an answer" if self.fault is None else self.fault.answer
            self.swallowed.append(f"the client took all of '{answer}' at {operation}")
        if script.end in (End.LEFT, End.DEAD):
            _require_client(channel, PATIENCE_SECONDS)
        if script.end is End.TORN:
            _tear(channel)
        return script.end is End.KEPT


def _message(channel: socket.socket) -> tuple[bytes, bytes] | None:
    """The next message of a connection, which says its length; ``None`` at the end."""
    data = b""
    while b"\r\n\r\n" not in data:
        came = channel.recv(READ_BYTES)
        if not came:
            return None
        data += came
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    missing = int(lengths[0].partition(b":")[2]) - len(body) if lengths else 0
    while missing > 0:
        came = channel.recv(READ_BYTES)
        if not came:
            return None
        body += came
        missing -= len(came)
    return head + b"\r\n\r\n", body


def _reply(head: bytes, body: bytes) -> Reply:
    lines = head.decode("latin-1").strip().split("\r\n")
    parts = (line.partition(": ") for line in lines[1:])
    return Reply(int(lines[0].split(" ")[1]), {name: value for name, _, value in parts}, body)


def _require_client(channel: socket.socket, seconds: float) -> None:
    """Wait, and notice a client that leaves."""
    channel.settimeout(seconds)
    try:
        came = channel.recv(1)
    except TimeoutError:
        return
    finally:
        channel.settimeout(None)
    if not came:
        raise ClientLeftError


def _tear(channel: socket.socket) -> None:
    """Close the connection below TLS: the client sees an end that nobody announced."""
    with suppress(OSError):
        socket.socket(fileno=channel.detach()).close()
