"""A server that answers as told, over real HTTP: for answers that the local Tablestore has no reason to give."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tablestore import OTSClient

from streamclient.wire import schema, signature

KEY_ID, SECRET = "id", "secret"
CERTIFICATE = Path(__file__).parent / "localhost.pem"
"""Of nobody but these tests, and its key: made by itself for ``localhost``, for a hundred years."""

Answer = Callable[[Any], Any]
"""Parsed request to response message, to raw bytes, or to ``None`` for a connection that is cut."""


def headers_of_answer(path: str, body: bytes) -> dict[str, str]:
    """The signed headers that the service sends with this body."""
    headers = {
        "x-ots-date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "x-ots-requestid": "request-1",
        "x-ots-contenttype": "protocol buffer",
        "x-ots-contentmd5": signature.content_md5(body),
    }
    signed = signature.sign_response(SECRET, path, headers)
    return {**headers, "Authorization": signature.authorization(KEY_ID, signed)}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body in one write: two cost the client a delayed acknowledgement
    answer: Answer
    damage: Callable[[bytes], bytes]
    requests: list[Any]

    def do_POST(self) -> None:
        operation = self.path.strip("/")
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request = schema.parse(schema.OPERATIONS[operation].request, data)
        self.requests.append(request)
        answer = type(self).answer(request)
        if answer is None:
            self.close_connection = True
            return
        body = answer if isinstance(answer, bytes) else answer.SerializeToString()
        self.send_response(200)
        for name, value in headers_of_answer(self.path, body).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(type(self).damage(body))

    def log_message(self, *args: Any) -> None:
        """Stay silent."""


class Script:
    """What was asked, and a client to ask with."""

    def __init__(self, origin: str, requests: list[Any]) -> None:
        self.requests = requests
        self.client = OTSClient(origin, KEY_ID, SECRET, "scripted", logger_name="tests.scripted")


@contextmanager
def scripted(answer: Answer, *, damage: Callable[[bytes], bytes] = bytes, has_tls: bool = False) -> Iterator[Script]:
    """Serve until the block ends. ``damage`` is done to each body on its way, and keeps its length."""
    requests: list[Any] = []
    handler = type(
        "Handler", (_Handler,), {"answer": staticmethod(answer), "damage": staticmethod(damage), "requests": requests}
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if has_tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    origin = f"https://localhost:{server.server_port}" if has_tls else f"http://127.0.0.1:{server.server_port}"
    script = Script(origin, requests)
    try:
        yield script
    finally:
        script.client.connection.pool.clear()
        server.shutdown()
        server.server_close()
        thread.join()
