"""A tunnel endpoint over real HTTP that answers as told, and a gateway to a local Tablestore that changes answers."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from attrs import define, field
from tablestore import OTSClient

from streamclient.server import LocalTablestore
from streamclient.tablestore.read_retry import ReadRetry
from streamclient.tunnel import TunnelClient, TunnelType
from streamclient.wire import schema

TRIMMED_TEXT = "Requested stream data is already trimmed or does not exist."
INNER_ID = "0005a1b2-c3d4-e5f6-0a0b-1c2d3e4f5061"
LOST = f"OTSTrimmedDataAccess {TRIMMED_TEXT} {INNER_ID}"
"""Text of the answer to a read before the retained log, as it was observed."""

Reply = tuple[int, dict[str, str], bytes] | None
"""Status, headers and body; ``None`` for a connection that is cut."""

QUICK = ReadRetry(retries=5, shortest_pause_millis=1, longest_pause_millis=2, total_millis=30_000)
NEEDED = {"x-ots-requestid": "request-1"}
"""All that the tunnel endpoints are known to send: no date, no digest, no signature."""


@define
class Server:
    """What is answered next, and what was asked; the last reply is repeated."""

    replies: list[Reply]
    paths: list[str] = field(factory=list)
    headers: list[dict[str, str]] = field(factory=list)
    port: int = 0

    def next(self) -> Reply:
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]

    def client(self, **options: Any) -> OTSClient:
        return OTSClient(f"http://127.0.0.1:{self.port}", "id", "secret", "inst", logger_name="tests.tunnel", **options)

    def tunnels(self, **options: Any) -> TunnelClient:
        return TunnelClient(self.client(**options), retry=QUICK, data_retry=QUICK)


Answering = Callable[[str, dict[str, str], bytes], Reply]
"""The reply to a path, the headers and the body of a request."""


@contextmanager
def answering(answer: Answering) -> Iterator[int]:
    """A server; its port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            reply = answer(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            if reply is None:
                self.close_connection = True
                return
            status, headers, content = reply
            length = {} if headers.get("Connection") == "close" else {"Content-Length": str(len(content))}
            self.close_connection = not length
            self.send_response(status)
            for name, value in {**headers, **length}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: Any) -> None:
            """Stay silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def serving() -> Iterator[Callable[..., Server]]:
    """Starts servers that give replies in turn."""
    with ExitStack() as running:

        def start(*replies: Reply) -> Server:
            script = Server(list(replies))

            def answer(path: str, headers: dict[str, str], body: bytes) -> Reply:
                script.paths.append(path)
                script.headers.append(headers)
                return script.next()

            script.port = running.enter_context(answering(answer))
            return script

        yield start


Meddling = Callable[[Any, Reply], Reply]
"""Makes another reply of a request, as a message, and of the local Tablestore's reply to it."""


@define
class Gateway:
    """Before a local Tablestore: what is said of one verb may be changed, and is counted."""

    local: LocalTablestore
    port: int = 0
    meddling: dict[str, Meddling] = field(factory=dict)
    """By verb."""
    asked: list[tuple[str, Any]] = field(factory=list)
    """Verbs and requests, as they came."""

    def tunnels(self, **options: Any) -> TunnelClient:
        """A client that goes through the gateway."""
        local = self.local
        names = (local.access_key_id, local.access_key_secret, local.instance)
        ots = OTSClient(f"http://127.0.0.1:{self.port}", *names, logger_name="tests.tunnel")
        return TunnelClient(ots, **options)

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> Reply:
        """Pass a request on, and change its answer."""
        connection = HTTPConnection(self.local.endpoint.removeprefix("http://"))
        try:
            connection.request("POST", path, body, {**headers, "host": self.local.endpoint.removeprefix("http://")})
            came = connection.getresponse()
            kept = {name: value for name, value in came.getheaders() if name.lower() == "x-ots-requestid"}
            reply: Reply = (came.status, kept, came.read())
        finally:
            connection.close()
        verb = path.removeprefix("/tunnel/")
        request = schema.parse(schema.TUNNEL_OPERATIONS[f"tunnel/{verb}"].request, body)
        self.asked.append((verb, request))
        meddle = self.meddling.get(verb)
        return reply if meddle is None else meddle(request, reply)


@contextmanager
def gateway(local: LocalTablestore) -> Iterator[Gateway]:
    """A gateway that changes nothing yet."""
    made = Gateway(local)
    with answering(made.answer) as port:
        made.port = port
        yield made


def page(next_token: str = "finished") -> Reply:
    return 200, NEEDED, schema.ReadRecordsResponse(next_token=next_token).SerializeToString()


def refusal(status: int, code: str, more: bytes = b"", text: str = "no") -> Reply:
    return status, NEEDED, schema.Error(code=code, message=text).SerializeToString() + more


def without_end(reply: Reply, *, has_digest: bool = False) -> Reply:
    """An answer that ends with its connection, as a cut one does."""
    assert reply is not None
    status, headers, body = reply
    digest = {"x-ots-contentmd5": base64.b64encode(hashlib.md5(body).digest()).decode()} if has_digest else {}
    return status, {**headers, **digest, "Connection": "close"}, body


CALLS: dict[str, Callable[[TunnelClient], object]] = {
    "connect": lambda tunnels: tunnels.connect("t", timeout_seconds=30, client_tag="tag"),
    "heartbeat": lambda tunnels: tunnels.heartbeat("t", "c", []),
    "getcheckpoint": lambda tunnels: tunnels.get_checkpoint("t", "c", "ch"),
    "checkpoint": lambda tunnels: tunnels.checkpoint("t", "c", "ch", "token", 1),
    "readrecords": lambda tunnels: tunnels.read_records("t", "c", "ch", "token"),
    "list": lambda tunnels: tunnels.list_tunnel(),
    "describe": lambda tunnels: tunnels.describe_tunnel("table", "name"),
    "shutdown": lambda tunnels: tunnels.shutdown("t", "c"),
    "delete": lambda tunnels: tunnels.delete_tunnel("table", "name"),
    "schedule": lambda tunnels: tunnels.schedule("t", []),
    "create": lambda tunnels: tunnels.create_tunnel("table", "name", TunnelType.STREAM),
}
VERBS = tuple(CALLS)


def call_of(tunnels: TunnelClient, verb: str) -> Callable[[], object]:
    return lambda: CALLS[verb](tunnels)
