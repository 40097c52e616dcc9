"""What was asked and answered, as observers are told it: for tests that judge what happened on the server's side."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen


@frozen
class Exchange:
    """One request that was executed or refused, and its answer."""

    caller: str
    """The security token (``sts_token``) that the client sent along; empty without one. The server takes any, so tests
    use it to tell clients apart that share the one key pair."""
    operation: str
    tables: tuple[str, ...]
    request: bytes
    """Body, inflated: a message of the protocol."""
    http_status: int
    answer: bytes
    """Body: the operation's answer with status 200, an Error message otherwise."""


Observer = Callable[[Exchange], None]
"""Told of each exchange, in the order in which requests take effect. Runs in the server's thread: it must be quick."""
