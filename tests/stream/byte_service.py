"""A server that answers as told, byte by byte, also over TLS: for answers that no HTTP library would send."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from attrs import define, field
from scripted_service import CERTIFICATE, KEY_ID, SECRET, headers_of_answer
from tablestore import OTSClient


@define
class ByteServer:
    """Answers each request with the next bytes; ``None`` closes the connection without any."""

    answers: list[bytes | None]
    closes: bool = False
    """Whether the connection ends after each answer; over TLS without saying so."""
    has_tls: bool = False
    port: int = 0
    connections: int = 0
    requests: list[bytes] = field(factory=list)

    def client(self, **options: Any) -> OTSClient:
        """A client of the SDK for this server."""
        origin = f"https://localhost:{self.port}" if self.has_tls else f"http://127.0.0.1:{self.port}"
        return OTSClient(origin, KEY_ID, SECRET, "instance", logger_name="tests.silent", **options)

    def serve(self, listener: socket.socket) -> None:
        while self.answers:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            channel = self.wrapped(plain)
            with channel, channel.makefile("rb") as reader:
                while self.answers and self.one(channel, reader):
                    pass

    def wrapped(self, plain: socket.socket) -> socket.socket:
        if not self.has_tls:
            return plain
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        return context.wrap_socket(plain, server_side=True)

    def one(self, channel: socket.socket, reader: object) -> bool:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = reader.readline()  # type: ignore[attr-defined]
            if not line:
                return False
            head += line
        size = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        self.requests.append(head + reader.read(size))  # type: ignore[attr-defined]
        answer = self.answers.pop(0)
        if answer is None:
            return False
        try:
            channel.sendall(answer)
        except OSError:  # the client has had enough of it
            return False
        return not self.closes


@contextmanager
def serving(*answers: bytes | None, closes: bool = False, has_tls: bool = False) -> Iterator[ByteServer]:
    server = ByteServer(list(answers), closes, has_tls)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server.port = listener.getsockname()[1]
        thread = threading.Thread(target=server.serve, args=(listener,), daemon=True)
        thread.start()
        yield server


def head_of_answer(path: str, body: bytes, status: int = 200) -> bytes:
    """The head that the service sends with this body, but for the length and the empty line."""
    lines = headers_of_answer(path, body)
    return "\r\n".join([f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in lines.items()), ""]).encode()
