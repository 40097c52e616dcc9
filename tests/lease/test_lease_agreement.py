"""Memory and status table agree on every sequence of writes, whatever was seen before."""

from __future__ import annotations

import uuid
from itertools import count
from typing import Any, ClassVar

import pytest
from attrs import evolve
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from streamclient.core import leases
from streamclient.core.leases import LeaseWrite
from streamclient.model import Lease, Pause, PendingCheckpoint, Progress, RecordOrder
from streamclient.server import LocalTablestore
from streamclient.worker.lease import MemoryLeaseManager
from streamclient.worker.lease.lease_manager import LeaseManager

KEYS = st.sampled_from(["s1", "s2"])
NAMES = st.sampled_from(["a", "b", "c"])
TEXTS = st.sampled_from(["TRIM_HORIZON", "x", "y", "SHARD_END"])
LOOKS = st.tuples(st.sampled_from([0, 0, 1, 2]), st.sampled_from([None, None, "", "a"]))


def orders_of(names: set[str]) -> tuple[RecordOrder, ...]:
    return tuple(RecordOrder(name, "änn", "line\nfeed", 1, 2, (name, "x"), "parked") for name in sorted(names))


class Agreement(RuleBasedStateMachine):
    """Sends each write to both; sights come from rows of any earlier moment, so most conditions sometimes fail."""

    client: ClassVar[Any]

    @initialize()
    def start(self) -> None:
        self.stream = f"stream-{uuid.uuid4().hex}"
        self.memory = MemoryLeaseManager(self.stream)
        self.table = LeaseManager(self.client, "status", self.stream)
        self.seen = {key: [Lease(key, self.stream)] for key in ("s1", "s2")}
        self.numbers = count(0, 1_000)

    def send(self, write: LeaseWrite) -> None:
        assert list(self.memory.write_many([write])) == list(self.table.write_many([write]))
        row = self.memory.get_lease(write.lease_key)
        if row is not None:
            self.seen[write.lease_key].append(row)

    def sight(self, key: str, look: tuple[int, str | None]) -> Lease:
        """A row as it once was, sometimes under an owner that it never had."""
        age, owner = look
        seen = self.seen[key][-1 - age % len(self.seen[key])]
        return seen if owner is None else evolve(seen, owner=owner)

    @rule(key=KEYS, owner=st.sampled_from(["", "a"]), parents=st.frozensets(st.sampled_from(["p", "q"])))
    def create(self, key: str, owner: str, parents: frozenset[str]) -> None:
        """Counters differ in each life of a row: who saw counter and owner saw the columns that move with them."""
        self.send(leases.create(Lease(key, self.stream, owner, next(self.numbers), parent_shard_ids=parents)))

    @rule(key=KEYS, look=LOOKS)
    def create_again(self, key: str, look: tuple[int, str | None]) -> None:
        self.send(leases.create(evolve(self.sight(key, look), counter=next(self.numbers))))

    @rule(key=KEYS, look=LOOKS)
    def renew(self, key: str, look: tuple[int, str | None]) -> None:
        self.send(leases.renew(self.sight(key, look)))

    @rule(key=KEYS, look=LOOKS, owner=NAMES, checkpoint=st.none() | TEXTS)
    def take(self, key: str, look: tuple[int, str | None], owner: str, checkpoint: str | None) -> None:
        self.send(leases.take(self.sight(key, look), owner, checkpoint=checkpoint))

    @rule(key=KEYS, look=LOOKS, stealer=NAMES)
    def steal(self, key: str, look: tuple[int, str | None], stealer: str) -> None:
        seen = self.sight(key, look)
        if seen.owner not in ("", stealer):
            self.send(leases.steal(seen, stealer))

    @rule(key=KEYS, look=LOOKS, new_owner=NAMES)
    def transfer(self, key: str, look: tuple[int, str | None], new_owner: str) -> None:
        self.send(leases.transfer(self.sight(key, look), new_owner))

    @rule(key=KEYS, look=LOOKS, value=TEXTS)
    def checkpoint(self, key: str, look: tuple[int, str | None], value: str) -> None:
        self.send(leases.checkpoint(self.sight(key, look), value))

    @rule(key=KEYS, look=LOOKS, value=TEXTS, records=st.integers(0, 3))
    def checkpoint_with_progress(self, key: str, look: tuple[int, str | None], value: str, records: int) -> None:
        self.send(leases.checkpoint(self.sight(key, look), value, Progress(1, records, 2**40)))

    @rule(key=KEYS, look=LOOKS, value=TEXTS, state=st.binary(max_size=3))
    def prepare(self, key: str, look: tuple[int, str | None], value: str, state: bytes) -> None:
        self.send(leases.prepare(self.sight(key, look), PendingCheckpoint(value, state, 5, 1)))

    @rule(key=KEYS, look=LOOKS, until=st.none() | st.integers(0, 9))
    def set_pause(self, key: str, look: tuple[int, str | None], until: int | None) -> None:
        self.send(leases.set_pause(self.sight(key, look), Pause(f"r{until}", "änn", "line\nfeed", until)))

    @rule(key=KEYS, look=LOOKS)
    def end_pause(self, key: str, look: tuple[int, str | None]) -> None:
        self.send(leases.set_pause(self.sight(key, look), None))

    @rule(key=KEYS, look=LOOKS)
    def take_pause(self, key: str, look: tuple[int, str | None]) -> None:
        seen = self.sight(key, look)
        if seen.pause is not None:
            self.send(leases.take_pause(seen))

    @rule(key=KEYS, look=LOOKS)
    def leave_pause(self, key: str, look: tuple[int, str | None]) -> None:
        self.send(leases.leave_pause(self.sight(key, look)))

    @rule(key=KEYS, look=LOOKS, names=st.sets(st.sampled_from(["o1", "o2"])))
    def set_orders(self, key: str, look: tuple[int, str | None], names: set[str]) -> None:
        self.send(leases.set_orders(self.sight(key, look), orders_of(names)))

    @rule(key=KEYS, look=LOOKS, names=st.sets(st.sampled_from(["o1", "o2"])))
    def end_orders(self, key: str, look: tuple[int, str | None], names: set[str]) -> None:
        self.send(leases.end_orders(self.sight(key, look), orders_of(names)))

    @rule(key=KEYS, look=LOOKS, value=TEXTS)
    def rewind(self, key: str, look: tuple[int, str | None], value: str) -> None:
        self.send(leases.rewind(self.sight(key, look), value))

    @rule(key=KEYS, look=LOOKS)
    def release(self, key: str, look: tuple[int, str | None]) -> None:
        self.send(leases.release(self.sight(key, look)))

    @rule(key=KEYS, look=LOOKS, earlier=LOOKS)
    def restore(self, key: str, look: tuple[int, str | None], earlier: tuple[int, str | None]) -> None:
        known = self.sight(key, earlier)
        if known.owner:
            self.send(leases.restore(self.sight(key, look), known))

    @rule(keys=st.lists(KEYS, unique=True))
    def draw_epochs(self, keys: list[str]) -> None:
        assert list(self.memory.draw_epochs(keys)) == list(self.table.draw_epochs(keys))

    @rule(key=KEYS)
    def forget_epoch(self, key: str) -> None:
        self.memory.forget_epochs([key])
        self.table.forget_epochs([key])

    @rule(key=KEYS, look=LOOKS)
    def delete(self, key: str, look: tuple[int, str | None]) -> None:
        self.send(leases.delete(self.sight(key, look)))

    @rule(look=LOOKS)
    def renew_both_and_a_stranger(self, look: tuple[int, str | None]) -> None:
        wanted = [self.sight("s1", look), Lease("s3", self.stream), self.sight("s2", (0, None))]

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
        # Not shrunk: every step is several HTTP calls, and 30 short steps can be read as they are.
        phases = (Phase.explicit, Phase.generate)
        run_state_machine_as_test(
            Agreement,
            settings=settings(max_examples=30, stateful_step_count=30, deadline=None, database=None, phases=phases),
        )
