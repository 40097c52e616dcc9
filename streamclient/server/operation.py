"""The definition of an operation: its messages, its rules, its action, and its tables and rows.

Each module of ``operations`` defines an operation as ``OPERATION``. The engine, the counters and the fault rules find
it there; a new operation needs no other registration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import frozen

from streamclient.server.capacity import NO_UNITS, Units
from streamclient.server.server_limits import Limits
from streamclient.server.server_state import ServerState
from streamclient.wire import schema


def own_table(request: Any) -> tuple[str, ...]:
    """Return the table in a request's own field ``table_name``."""
    return (request.table_name,)


def no_tables(request: Any) -> tuple[str, ...]:
    """Return no tables, for requests that do not name tables."""
    return ()


def no_rows(message: Any) -> int:
    """Return 0, for messages that carry no rows."""
    return 0


def no_units(answer: Any) -> Units:
    """Return no units, for answers that do not state units."""
    return NO_UNITS


def message_as_it_is(message: Any, limits: Limits) -> Any:
    """Return the request unchanged, for operations that check it where they use it."""
    return message


@frozen
class Counted:
    """An answer with the numbers that the counters need of it. Used if counting in the message would cost more."""

    answer: Any
    """The answer's message, or its serialized form where building the message would cost more."""
    rows_read: int
    """The number of rows or stream records in the answer."""
    units: Units
    """The capacity units that the answer states."""


@frozen(kw_only=True)
class ServedOperation:
    """One operation of the server."""

    messages: schema.Operation
    """The messages and the name of the operation. The name is the request path without the first slash."""
    act: Callable[[ServerState, Any], Any]
    """Executes a validated request under the engine's lock. It returns the response message, or the message's bytes if
    building the message would cost more. Both may be ``Counted``."""
    validate: Callable[[Any, Limits], Any] = message_as_it_is
    """Validates a request before any state is read. It returns the request in the form for ``act``, or raises
    ``ServiceError``."""
    tables: Callable[[Any], tuple[str, ...]] = no_tables
    """Returns the tables that a request message names, in its order."""
    rows_written: Callable[[Any], int] = no_rows
    """Returns the number of rows that a request message asks to write."""
    rows_read: Callable[[Any], int] = no_rows
    """Returns the number of rows in a response message. Used if ``act`` does not count the rows."""
    units: Callable[[Any], Units] = no_units
    """Returns the capacity units that a response message states. Used if ``act`` does not count the units."""

    @property
    def name(self) -> str:
        """The request path without the first slash."""
        return self.messages.name
