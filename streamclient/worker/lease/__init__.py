"""The stores of leases: a status table, or memory. A lease says which worker reads a shard, and from which position."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamclient.base._lazy import loader
from streamclient.worker.lease.lease_store import LeaseStore, WriteAnswer, as_lease_store
from streamclient.worker.lease.memory_leases import MemoryLeaseManager

if TYPE_CHECKING:
    from streamclient.worker.lease.lease_manager import LeaseManager

__all__ = ["LeaseManager", "LeaseStore", "MemoryLeaseManager", "WriteAnswer", "as_lease_store"]


__getattr__ = loader(__name__, {"LeaseManager": "lease_manager"})
"""Loads ``LeaseManager`` when it is first used, so that only users of the status table wait a third of a second for the
SDK."""
