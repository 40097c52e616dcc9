"""Capacity units: the consumption that an answer states. They are information only; no request is refused for them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from streamclient.wire import schema

_UNIT_BYTES = 4096


def units(size_bytes: int) -> int:
    """Return the capacity units of ``size_bytes``: one for each 4 KB begun, and at least one."""
    return max(1, -(-size_bytes // _UNIT_BYTES))


@lru_cache(maxsize=1024)
def consumed(*, read: int = 0, write: int = 0) -> Any:
    """Return the message of consumed capacity that answers carry; copy the message and never change it.

    Both numbers are always set, because the Go SDK reads them without a check.
    """
    return schema.ConsumedCapacity(capacity_unit=schema.CapacityUnit(read=read, write=write))
