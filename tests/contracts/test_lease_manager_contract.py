"""The contract of lease managers, over every manager there is, and proof that it finds broken ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from streamclient.interfaces import ILeaseManager
from streamclient.model import Lease
from streamclient.server import LocalTablestore
from streamclient.testing.contracts.lease_manager_contract import (
    LEASE_MANAGER_SCENARIOS,
    check_lease_manager,
    check_lease_manager_scenario,
)
from streamclient.worker.lease import MemoryLeaseManager
from streamclient.worker.lease.lease_manager import LeaseManager


def test_memory_keeps_the_whole_contract() -> None:
    check_lease_manager(MemoryLeaseManager)


class OverwritingCreate(MemoryLeaseManager):
    def create_lease(self, lease: Lease) -> bool:
        old = self.get_lease(lease.lease_key)
        return (old is None or self.delete_lease(old)) and super().create_lease(lease)


class CarelessRenew(MemoryLeaseManager):
    def renew_lease(self, lease: Lease) -> bool:
        seen = self.get_lease(lease.lease_key)
        return seen is not None and seen.counter == lease.counter and super().renew_lease(seen)


class GreedyTake(MemoryLeaseManager):
    def take_lease(self, lease: Lease, owner: str, *, checkpoint: str | None = None) -> bool:
        return super().take_lease(self.get_lease(lease.lease_key) or lease, owner, checkpoint=checkpoint)


class MindlessDelete(MemoryLeaseManager):
    def delete_lease(self, lease: Lease) -> bool:
        return super().delete_lease(self.get_lease(lease.lease_key) or lease)


class UnorderedListing(MemoryLeaseManager):
    def list_leases(self) -> list[Lease]:
        return list(super().list_leases())[::-1]


@pytest.mark.parametrize(
    ("broken", "scenario"),
    [
        (OverwritingCreate, "create_leaves_an_existing_row_as_it_is"),
        (CarelessRenew, "a_mark_is_noticed_by_the_next_renewal"),
        (CarelessRenew, "renewing_moves_only_the_counter"),
        (GreedyTake, "taking_sets_the_owner_and_clears_the_mark"),
        (GreedyTake, "of_rival_writes_exactly_one_wins"),
        (MindlessDelete, "deleting_needs_the_row_as_seen"),
        (UnorderedListing, "listing_is_complete_and_ordered"),
    ],
)
def test_the_contract_finds_a_broken_manager(broken: type[ILeaseManager], scenario: str) -> None:
    with pytest.raises(AssertionError, match=scenario):
        check_lease_manager_scenario(scenario, broken)


def test_scenarios_are_named_by_their_rule() -> None:
    assert all(" " not in name and not name.startswith("_") for name in LEASE_MANAGER_SCENARIOS)


@pytest.fixture(scope="module")
def server() -> Iterator[LocalTablestore]:
    with LocalTablestore() as local:
        yield local


@pytest.mark.slow
@pytest.mark.parametrize("scenario", LEASE_MANAGER_SCENARIOS)
def test_a_status_table_keeps_the_contract(server: LocalTablestore, scenario: str) -> None:
    """Over real HTTP, through the official SDK."""
    client = server.client()

    check_lease_manager_scenario(scenario, lambda stream_id: LeaseManager(client, "status", stream_id))
