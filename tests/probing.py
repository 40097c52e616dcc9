"""Probes of a health server, as an orchestrator sends them, and sockets of clients that do not behave."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection, HTTPMessage
from typing import Any

from attrs import frozen

from streamclient import WorkerHealth
from streamclient.base.probes import Lifecycle, Probed
from tests.patience import PATIENCE_SECONDS

PROBES = ("/live", "/ready", "/health")
NO_PAGES = ("/other", "/health/", "/healthz", "/live/", "/LIVE", "/he%61lth", "/metrics/x")
WELL = WorkerHealth(is_healthy=True)


@frozen
class Answered:
    """What a client got."""

    status: int
    headers: HTTPMessage
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def head(self) -> list[tuple[str, str]]:
        """All headers but the time."""
        return [(name, value) for name, value in self.headers.items() if name != "Date"]


def ask(
    port: int,
    path: str,
    method: str = "GET",
    body: bytes | None = None,
    *,
    seconds: float = PATIENCE_SECONDS,
    **headers: str,
) -> Answered:
    """Send a request; an answer that takes longer than ``seconds`` is a ``TimeoutError``."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=seconds)) as connection:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return Answered(response.status, response.headers, response.read())


def probed(port: int, seconds: float = PATIENCE_SECONDS) -> tuple[int, ...]:
    """The statuses of the three probes; each has the same head for HEAD, and says why it is not 200."""
    statuses = []
    for path in PROBES:
        answered = ask(port, f"{path}?verbose", seconds=seconds)
        assert answered.headers["Content-Type"] == "application/json"
        assert answered.headers["Cache-Control"] == "no-store"
        document = answered.document
        assert document["is_healthy"] is (answered.status == 200)
        assert bool(document["reason"]) is (answered.status == 503), document
        statuses.append(answered.status)
    return tuple(statuses)


def reason(port: int, path: str) -> str:
    return str(ask(port, path).document["reason"])


@contextmanager
def silent_clients(port: int, count: int, sends: bytes = b"") -> Iterator[Sequence[socket.socket]]:
    """Clients that connect, send this, and then nothing more."""
    with ExitStack() as stack:
        clients = []
        for _ in range(count):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS))
            client.sendall(sends)
            clients.append(client)
        yield clients


class Told(Probed):
    """Says what it is told to, or does what it is told to."""

    def __init__(self, judge: Any = lambda: WELL) -> None:
        self.judge = judge

    @property
    def work_health(self) -> WorkerHealth:
        health: WorkerHealth = self.judge()
        return health

    @property
    def liveness(self) -> WorkerHealth:
        return WELL

    def _lifecycle(self) -> Lifecycle:
        return Lifecycle(has_begun=True, is_stopping=False, has_ended=False, has_failed=False)
