"""Memory and status table agree on every sequence of writes, whatever was seen before."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

import pytest
from attrs import evolve
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from streamclient.core import leases
from streamclient.core.leases import LeaseWrite
from streamclient.lease import MemoryLeaseManager
from streamclient.lease.manager import LeaseManager
from streamclient.model import Lease
from streamclient.server import LocalTablestore

KEYS = st.sampled_from(["s1", "s2"])
NAMES = st.sampled_from(["a", "b", "c"])
TEXTS = st.sampled_from(["TRIM_HORIZON", "x", "y", "SHARD_END"])


class Agreement(RuleBasedStateMachine):
    """Sends each write to both; sights come from rows of any earlier moment, so most conditions sometimes fail."""

    client: ClassVar[Any]

    @initialize()
    def start(self) -> None:
        self.stream = f"stream-{uuid.uuid4().hex}"
        self.memory = MemoryLeaseManager(self.stream)
        self.table = LeaseManager(self.client, "status", self.stream)
        self.seen = {key: [Lease(key, self.stream)] for key in ("s1", "s2")}

    def send(self, write: LeaseWrite) -> None:
        assert list(self.memory.write_many([write])) == list(self.table.write_many([write]))
        row = self.memory.get_lease(write.lease_key)
        if row is not None:
            self.seen[write.lease_key].append(row)

    def sight(self, key: str, age: int) -> Lease:
        return self.seen[key][-1 - age % len(self.seen[key])]

    @rule(key=KEYS, owner=st.sampled_from(["", "a"]), parents=st.frozensets(st.sampled_from(["p", "q"])))
    def create(self, key: str, owner: str, parents: frozenset[str]) -> None:
        self.send(leases.create(Lease(key, self.stream, owner=owner, parent_shard_ids=parents)))

    @rule(key=KEYS, age=st.integers(0, 2))
    def renew(self, key: str, age: int) -> None:
        self.send(leases.renew(self.sight(key, age)))

    @rule(key=KEYS, age=st.integers(0, 2), owner=NAMES, checkpoint=st.none() | TEXTS)
    def take(self, key: str, age: int, owner: str, checkpoint: str | None) -> None:
        self.send(leases.take(self.sight(key, age), owner, checkpoint=checkpoint))

    @rule(key=KEYS, age=st.integers(0, 2), stealer=NAMES)
    def steal(self, key: str, age: int, stealer: str) -> None:
        seen = self.sight(key, age)
        if seen.owner not in ("", stealer):
            self.send(leases.steal(seen, stealer))

    @rule(key=KEYS, age=st.integers(0, 2), new_owner=NAMES)
    def transfer(self, key: str, age: int, new_owner: str) -> None:
        self.send(leases.transfer(self.sight(key, age), new_owner))

    @rule(key=KEYS, age=st.integers(0, 2), value=TEXTS)
    def checkpoint(self, key: str, age: int, value: str) -> None:
        self.send(leases.checkpoint(self.sight(key, age), value))

    @rule(key=KEYS, age=st.integers(0, 2))
    def delete(self, key: str, age: int) -> None:
        self.send(leases.delete(self.sight(key, age)))

    @rule(age=st.integers(0, 2))
    def renew_both_and_a_stranger(self, age: int) -> None:
        wanted = [self.sight("s1", age), Lease("s3", self.stream), evolve(self.sight("s2", 0))]

        assert list(self.memory.renew_leases(wanted)) == list(self.table.renew_leases(wanted))

    @invariant()
    def both_hold_the_same_rows(self) -> None:
        if hasattr(self, "memory"):
            assert list(self.memory.list_leases()) == list(self.table.list_leases())


@pytest.mark.slow
def test_memory_and_table_agree_on_every_sequence_of_writes() -> None:
    with LocalTablestore() as local:
        Agreement.client = local.client()
        LeaseManager(Agreement.client, "status", "any").create_lease_table_if_not_exists()
        run_state_machine_as_test(
            Agreement, settings=settings(max_examples=40, stateful_step_count=25, deadline=None, database=None)
        )
