"""Leases in a status table or in memory: the worker that reads each shard, and its position."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamclient.base._lazy import loader
from streamclient.worker.lease.lease_store import LeaseStore, WriteAnswer, as_lease_store
from streamclient.worker.lease.memory_leases import MemoryLeaseManager

if TYPE_CHECKING:
    from streamclient.worker.lease.lease_manager import LeaseManager

__all__ = ["LeaseManager", "LeaseStore", "MemoryLeaseManager", "WriteAnswer", "as_lease_store"]


__getattr__ = loader(__name__, {"LeaseManager": "lease_manager"})
"""Loads ``LeaseManager`` on first use. Only users of the status table load the SDK, which takes a third of a second."""
