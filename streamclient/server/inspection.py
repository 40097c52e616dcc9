"""What a request is about, and how many rows it moved: for fault rules and counters.

A request is parsed here, once: the engine takes the message, if there is one. These functions never raise: malformed
input names no table and counts no row, and the engine rejects it afterwards.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from attrs import field, frozen
from google.protobuf.message import DecodeError

from streamclient.server.operation import no_rows
from streamclient.server.operations import OPERATIONS
from streamclient.server.server_limits import MESSAGE_FIELDS
from streamclient.wire import bounded

_UNREADABLE = (DecodeError, IndexError, struct.error, ValueError, TypeError)


@frozen
class Inspected:
    """What a request says of itself."""

    message: Any = field(default=None, repr=False)
    """As it was parsed, not judged yet; ``None`` if it cannot be."""
    tables: tuple[str, ...] = ()
    """Those that it names, in its order."""
    rows_written: int = 0
    """How many rows it asks to write; rows that the server refuses count too."""


_UNKNOWN = Inspected()


def inspect(operation: str, body: bytes) -> Inspected:
    """Look at a request."""
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


def rows_read(operation: str, answer: bytes) -> int:
    """How many rows an answer holds that was put together from parts, beside the engine."""
    known = OPERATIONS[operation]
    return 0 if known.rows_read is no_rows else _count(known.rows_read, known.messages.response.FromString(answer))


def _count(count: Callable[[Any], int], message: Any) -> int:
    try:
        return count(message)
    except _UNREADABLE:
        return 0
