"""Keeping lease rows in line with the stream's shards, and saving own rows that vanished."""

from __future__ import annotations

from attrs import evolve

from streamclient.core import leases
from streamclient.core.events import ResolveAndCreate, Severity, ShardsListed
from streamclient.core.shards import NewLease, SyncPlan, has_its_parents, index_shards, plan_shard_sync
from streamclient.core.situation import Flight, Situation
from streamclient.core.tenancies import lose, send, settle_all
from streamclient.core.tenancy import HeldLease
from streamclient.model import Lease


def shards_listed(situation: Situation, event: ShardsListed) -> None:
    """Take in a complete listing."""
    situation.is_listing = False
    listing = index_shards(event.shards)
    if listing:
        previous, situation.listing = situation.listing, listing
        situation.view.forget_vanished(listing)
        situation.is_sync_planned = False
        plan_sync(situation, previous)
    _save_vanished(situation)
    settle_all(situation)
    situation.wants_listing = any(held.is_absent for held in situation.held.values()) and not listing


def plan_sync(situation: Situation, previous: dict[str, object] | None = None) -> None:
    """Plan creations and deletions once a scan and a listing are known."""


def create_missing(situation: Situation) -> None:
    """Create the rows whose parents' rows exist by now."""
