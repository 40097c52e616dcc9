"""What a request is about, and how many rows it moved: for fault rules and counters.

Messages are parsed here once more, beside the engine: protobuf's parser is so much faster than anything in Python that
looking at the bytes by hand would cost more. These functions never raise: malformed input names no table and counts
no row, and the engine rejects it afterwards.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from streamclient.server.operation import no_rows, no_tables
from streamclient.server.operations import OPERATIONS

_UNREADABLE = (DecodeError, IndexError, struct.error, ValueError, TypeError)


def tables_of(operation: str, body: bytes) -> tuple[str, ...]:
    """The tables that a request names, in its order; empty where it names none or cannot be read."""
    known = OPERATIONS.get(operation)
    if known is None or known.tables is no_tables:
        return ()
    try:
        names = known.tables(known.messages.request.FromString(body))
    except _UNREADABLE:
        return ()
    return tuple(name for name in names if name and isinstance(name, str))


def rows_written(operation: str, body: bytes) -> int:
    """How many rows a request asks to write; rows that the server refuses count too."""
    known = OPERATIONS.get(operation)
    return 0 if known is None else _count(known.rows_written, known.messages.request, body)


def rows_read(operation: str, answer: bytes) -> int:
    """How many rows, or stream records, an answer of a reading operation holds."""
    known = OPERATIONS.get(operation)
    return 0 if known is None else _count(known.rows_read, known.messages.response, answer)


def _count(count: Callable[[Any], int], message_class: Any, data: bytes) -> int:
    if count is no_rows:
        return 0
    try:
        return count(message_class.FromString(data))
    except _UNREADABLE:
        return 0
