"""Capacity units: what an answer says that the request consumed. Information only; nothing is ever refused for it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from streamclient.wire import schema

_UNIT_BYTES = 4096


def units(size_bytes: int) -> int:
    """Capacity units of so many bytes: one for each 4 KB begun, and at least one."""
    return max(1, -(-size_bytes // _UNIT_BYTES))


@lru_cache(maxsize=1024)
def consumed(*, read: int = 0, write: int = 0) -> Any:
    """The message that answers carry, to be copied and never changed.

    Both numbers are always set: the Go SDK reads them without looking.
    """
    return schema.ConsumedCapacity(capacity_unit=schema.CapacityUnit(read=read, write=write))
