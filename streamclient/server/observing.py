"""Requests with their answers, as observers see them. The console observes requests, and tests can do the same."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypedDict

from attrs import frozen

from streamclient.base.kept_formats import parse_json
from streamclient.wire import schema

MOST_HEADS = 500
"""The largest number of requests that a ``Ring`` keeps. A full ring fills a few screens and about 100 kB of memory."""

MOST_NAME_CHARACTERS = 255
"""The largest number of characters that a ``Ring`` keeps of the name of a caller or a table: as many as a table name
may have."""


@frozen
class Exchange:
    """One request that was executed or refused, and its answer."""

    caller: str
    """The security token (``sts_token``) of the client; empty without a token. The server accepts any token. So tests
    can give each client its own token, to tell apart clients that share the key pair."""
    operation: str
    tables: tuple[str, ...]
    request: bytes
    """The decompressed body of the request: a message of the protocol."""
    http_status: int
    answer: bytes
    """The body of the answer: the operation's response for status 200, an Error message for every other status."""
    rows: int = 0
    """The number of rows or stream records in the answer, plus the number of rows that the request asked to write."""
    seconds: float = 0.0
    """The duration of the execution in seconds, without the wait for an injected fault."""


Observer = Callable[[Exchange], None]
"""A function that receives each exchange, in the order in which requests take effect. It runs in the server's thread,
so it must be quick."""


class NotedRequest(TypedDict):
    """One executed or refused request in a ``Ring``, as a JSON document for the console."""

    id: int
    at_micros: int
    operation: str
    tables: list[str]
    caller: str
    http_status: int
    code: str
    millis: float
    rows: int


class Ring:
    """A buffer of the newest requests. The server's thread adds them, and the console's thread reads them."""

    def __init__(self, now_micros: Callable[[], int]) -> None:
        self._now_micros = now_micros
        self._heads: deque[NotedRequest] = deque(maxlen=MOST_HEADS)
        self._last_id = 0
        self.since_micros: int | None = None
        """The time since which the ring notes requests; ``None`` while no viewer watches."""

    def begin(self) -> None:
        """Forget all requests, and set ``since_micros`` to the present time."""
        self._heads.clear()
        self.since_micros = self._now_micros()

    def end(self) -> None:
        """Forget all requests, and set ``since_micros`` to ``None``, because no viewer watches."""
        self._heads.clear()
        self.since_micros = None

    def note(self, exchange: Exchange) -> None:
        """Add one request to the ring."""
        self._last_id += 1
        self._heads.append(
            NotedRequest(
                id=self._last_id,
                at_micros=self._now_micros(),
                operation=exchange.operation,
                tables=[name[:MOST_NAME_CHARACTERS] for name in exchange.tables],
                caller=exchange.caller[:MOST_NAME_CHARACTERS],
                http_status=exchange.http_status,
                code="" if exchange.http_status < 400 else _code_of(exchange.answer),
                millis=round(exchange.seconds * 1000, 3),
                rows=exchange.rows,
            )
        )

    def newest(self) -> list[NotedRequest]:
        """Return the noted requests, newest first."""
        return list(self._heads.copy())[::-1]


def _code_of(answer: bytes) -> str:
    """Return the error code in the body of an error answer, which is JSON or protobuf; empty if there is no code."""
    try:
        return str(parse_json(answer).get("code", ""))[:MOST_NAME_CHARACTERS]
    except (ValueError, AttributeError):
        pass
    try:
        return str(schema.parse(schema.Error, answer).code)[:MOST_NAME_CHARACTERS]
    except Exception:  # the body may be any bytes; such a body has no code
        return ""
