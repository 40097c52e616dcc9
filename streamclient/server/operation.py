"""The definition of an operation of the server: its messages, its validation, its action, and its counts.

Each module of ``operations`` defines one operation as its constant ``OPERATION``, or several operations as its constant
``OPERATIONS``. The engine, the counters and the fault rules find the operations by these constants. A new operation
needs no other registration.
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
    """Return the one table that a request names in its field ``table_name``."""
    return (request.table_name,)


def no_tables(request: Any) -> tuple[str, ...]:
    """Return an empty tuple, for requests that do not name tables."""
    return ()


def no_rows(message: Any) -> int:
    """Return 0, for messages that carry no rows."""
    return 0


def no_units(answer: Any) -> Units:
    """Return zero capacity units, for answers that do not state units."""
    return NO_UNITS


def message_as_it_is(message: Any, limits: Limits) -> Any:
    """Return the request unchanged, for operations that check their requests in ``act``."""
    return message


@frozen
class Counted:
    """An answer with the numbers for the request counters.

    An operation returns this object if counting the rows and units in a finished message would be slow.
    """

    answer: Any
    """The message of the answer, or the serialized answer if building a message would be slow."""
    rows_read: int
    """The number of rows or stream records in the answer."""
    units: Units
    """The capacity units that the answer states."""


@frozen(kw_only=True)
class ServedOperation:
    """The definition of one operation of the server."""

    messages: schema.Operation
    """The messages and the name of the operation. The name is the request path without the first slash."""
    act: Callable[[ServerState, Any], Any]
    """The function that executes a validated request under the engine's lock. It returns the response message, or the
    serialized response if building a message would be slow. Either result may be wrapped in ``Counted``."""
    validate: Callable[[Any, Limits], Any] = message_as_it_is
    """The function that validates a request without reading any state. It returns the request in the form that ``act``
    takes, or raises ``ServiceError``."""
    tables: Callable[[Any], tuple[str, ...]] = no_tables
    """The function that returns the tables that a request message names, in the order of the message."""
    rows_written: Callable[[Any], int] = no_rows
    """The function that returns the number of rows that a request message asks to write."""
    rows_read: Callable[[Any], int] = no_rows
    """The function that counts the rows in a response message. The engine calls this function only if ``act`` does not
    return a ``Counted``."""
    units: Callable[[Any], Units] = no_units
    """The function that returns the capacity units of a response message. The engine calls this function only if
    ``act`` does not return a ``Counted``."""

    @property
    def name(self) -> str:
        """The name of the operation: the request path without the first slash."""
        return self.messages.name
