"""Requests and answers for observers: tests that examine the server's side, and the console."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen


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
