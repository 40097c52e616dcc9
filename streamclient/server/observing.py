"""Requests and answers for observers: tests that examine the server's side, and the console."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import TypedDict

from attrs import frozen

from streamclient.wire import schema

MOST_HEADS = 500
"""The largest number of requests that a ring remembers: a few screens, and about a hundred kilobytes."""

MOST_NAME_CHARACTERS = 255
"""The characters of a caller or a table that a head keeps: as many as a table's name may have."""


@frozen
class Exchange:
    """One request that was executed or refused, and its answer."""

    caller: str
    """The security token (``sts_token``) of the client; empty without a token. The server accepts any token, so tests
    give each client a token to distinguish clients that share the key pair."""
    operation: str
    tables: tuple[str, ...]
    request: bytes
    """The decompressed body: a message of the protocol."""
    http_status: int
    answer: bytes
    """The body: the operation's answer with status 200, an Error message otherwise."""
    rows: int = 0
    """The number of rows or stream records in the answer, and the number of rows that the request asked to write."""
    seconds: float = 0.0
    """The seconds of the execution, without the wait for an injected fault."""


Observer = Callable[[Exchange], None]
"""Receives each exchange, in the order in which requests take effect. It runs in the server's thread, so it must be
quick."""


class NotedRequest(TypedDict):
    """One request that was executed or refused."""

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
    """The newest requests, filled by the server's thread and read by the console's."""

    def __init__(self, now_micros: Callable[[], int]) -> None:
        self._now_micros = now_micros
        self._heads: deque[NotedRequest] = deque(maxlen=MOST_HEADS)
        self._last_id = 0
        self.since_micros: int | None = None
        """The time since which requests are noted; ``None`` without a viewer."""

    def begin(self) -> None:
        """Forget all requests, and note those that come from now on."""
        self._heads.clear()
        self.since_micros = self._now_micros()

    def end(self) -> None:
        """Forget all requests."""
        self._heads.clear()
        self.since_micros = None

    def note(self, exchange: Exchange) -> None:
        """Note one request."""
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
    """Return the code of an error answer, which some callers get as JSON; empty if it has none."""
    try:
        return str(json.loads(answer).get("Code", ""))[:MOST_NAME_CHARACTERS]
    except (ValueError, AttributeError):
        pass
    try:
        return str(schema.parse(schema.Error, answer).code)[:MOST_NAME_CHARACTERS]
    except Exception:  # an observer tells what it can of any bytes
        return ""
