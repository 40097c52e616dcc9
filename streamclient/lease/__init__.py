"""Leases over a status table or in memory: who reads which shard, and how far it got."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamclient._lazy import loader
from streamclient.lease.memory import MemoryLeaseManager
from streamclient.lease.store import LeaseStore, WriteAnswer, as_lease_store

if TYPE_CHECKING:
    from streamclient.lease.manager import LeaseManager

__all__ = ["LeaseManager", "LeaseStore", "MemoryLeaseManager", "WriteAnswer", "as_lease_store"]


__getattr__ = loader(__name__, {"LeaseManager": "manager"})
"""Loads the SDK, which takes a third of a second, only for whoever uses the status table."""
