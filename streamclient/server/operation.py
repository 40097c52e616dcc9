"""What the server knows of one operation: its messages, its rules, what it does, and which tables and rows it is about.

Each module of ``operations`` defines one as ``OPERATION``. The engine, the counters and the fault rules find it there;
nothing else has to be told of a new one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import frozen

from streamclient.server.server_limits import Limits
from streamclient.server.server_state import ServerState
from streamclient.wire import schema


def own_table(request: Any) -> tuple[str, ...]:
    """The table that a request names in its own field ``table_name``."""
    return (request.table_name,)


def no_tables(request: Any) -> tuple[str, ...]:
    """For requests that name no table."""
    return ()


def no_rows(message: Any) -> int:
    """For messages that carry no rows."""
    return 0


def message_as_it_is(message: Any, limits: Limits) -> Any:
    """For requests that are judged where they are used."""
    return message


@frozen
class Counted:
    """An answer of which is known how many rows, or stream records, it holds: counting them in it would cost more."""

    answer: Any
    """A message, or its serialized form where building it would cost more."""
    rows_read: int


@frozen(kw_only=True)
class ServedOperation:
    """One operation of the server."""

    messages: schema.Operation
    """Its name, which is the request path without the first slash, and its messages."""
    act: Callable[[ServerState, Any], Any]
    """What it does with a validated request, under the engine's lock: the response message, or its bytes where building
    the message would cost more, or either of them ``Counted``."""
    validate: Callable[[Any, Limits], Any] = message_as_it_is
    """The request as ``act`` takes it, or a ``ServiceError``, before any state is met."""
    tables: Callable[[Any], tuple[str, ...]] = no_tables
    """The tables that a request message names, in its order."""
    rows_written: Callable[[Any], int] = no_rows
    """How many rows a request message asks to write."""
    rows_read: Callable[[Any], int] = no_rows
    """How many rows a response message holds, where ``act`` does not count them."""

    @property
    def name(self) -> str:
        """The request path without the first slash."""
        return self.messages.name
