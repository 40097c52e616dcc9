"""Leases over a status table or in memory: who reads which shard, and how far it got."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamclient.base._lazy import loader
from streamclient.worker.lease.lease_store import LeaseStore, WriteAnswer, as_lease_store
from streamclient.worker.lease.memory_leases import MemoryLeaseManager

if TYPE_CHECKING:
    from streamclient.worker.lease.lease_manager import LeaseManager

__all__ = ["LeaseManager", "LeaseStore", "MemoryLeaseManager", "WriteAnswer", "as_lease_store"]


__getattr__ = loader(__name__, {"LeaseManager": "lease_manager"})
"""Loads the SDK, which takes a third of a second, only for whoever uses the status table."""
