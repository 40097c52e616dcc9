"""The tables of a request and the number of its rows, for fault rules and counters.

This module parses each request, and the engine uses the parsed message. ``inspect`` never raises: a malformed request
counts as a request without tables and rows, and the engine refuses it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from attrs import field, frozen
from google.protobuf.message import DecodeError

from streamclient.server.engine import EngineAnswer
from streamclient.server.operations import OPERATIONS
from streamclient.server.server_limits import MESSAGE_FIELDS
from streamclient.wire import bounded

_UNREADABLE = (DecodeError, IndexError, struct.error, ValueError, TypeError)


@frozen
class Inspected:
    """A parsed request with its tables and the number of its rows."""

    message: Any = field(default=None, repr=False)
    """The parsed message, not yet validated; ``None`` if the request cannot be parsed."""
    tables: tuple[str, ...] = ()
    """The tables that the request names, in the order of the request."""
    rows_written: int = 0
    """The number of rows that the request asks to write, including rows that the server refuses."""


_UNKNOWN = Inspected()


def inspect(operation: str, body: bytes) -> Inspected:
    """Parse a request, and return it with its tables and the number of its rows."""
    known = OPERATIONS.get(operation)
    if known is None:
        return _UNKNOWN
    try:
        message = bounded.read(known.messages.request, body, MESSAGE_FIELDS)
    except _UNREADABLE:
        return _UNKNOWN
    return Inspected(message, _tables(known.tables, message), _count(known.rows_written, message))


def _tables(tables: Callable[[Any], tuple[str, ...]], message: Any) -> tuple[str, ...]:
    try:
        names = tables(message)
    except _UNREADABLE:
        return ()
    return tuple(name for name in names if name and isinstance(name, str))


def counted(operation: str, answer: bytes) -> EngineAnswer:
    """Parse a serialized answer; return it with the numbers of its rows and capacity units."""
    known = OPERATIONS[operation]
    message = known.messages.response.FromString(answer)
    return EngineAnswer(answer, known.rows_read(message), known.units(message))


def _count(count: Callable[[Any], int], message: Any) -> int:
    try:
        return count(message)
    except _UNREADABLE:
        return 0
