"""Leases over a status table or in memory: who reads which shard, and how far it got."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from streamclient.lease.memory import MemoryLeaseManager
from streamclient.lease.store import LeaseStore, WriteAnswer, as_lease_store

if TYPE_CHECKING:
    from streamclient.lease.manager import LeaseManager

__all__ = ["LeaseManager", "LeaseStore", "MemoryLeaseManager", "WriteAnswer", "as_lease_store"]


def __getattr__(name: str) -> Any:
    """Load the SDK, which takes a third of a second, only for whoever uses the status table."""
    if name == "LeaseManager":
        return import_module("streamclient.lease.manager").LeaseManager
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
