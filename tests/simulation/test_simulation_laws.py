"""Every law can be broken: by a mutation of the core, or, where another law would be first, by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve

from streamclient.core import leases
from streamclient.model import CheckpointPosition, Lease
from streamclient.testing.simulation.laws import SAFETY, LawBroken, make_laws
from streamclient.testing.simulation.laws.progress import NothingIsLost
from streamclient.testing.simulation.plan import Plan
from streamclient.testing.simulation.table import Outsider
from streamclient.testing.simulation.world import SimulatedWorld
from tests.simulation.mutations import MUTATIONS

BY_HAND = {"nothing is lost", "nothing is repeated", "nothing is skipped", "checkpoints follow processing"}


@pytest.fixture
def world() -> SimulatedWorld:
    """One shard with three changes of one key, and nobody who reads it."""
    world = SimulatedWorld(Plan(seed=1), make_laws)
    world.is_writing = False
    shard = world.stream.shards["s001"]
    for column, values in ((shard.keys, [7, 7, 7]), (shard.numbers, [1, 2, 3]), (shard.times, [0.0, 0.0, 0.0])):
        column[:] = values  # type: ignore[index]
    return world


def reader(world: SimulatedWorld, shard_id: str = "s001") -> Any:
    return SimpleNamespace(shard=world.stream.shards[shard_id], lease_key=shard_id, epoch=1)


WORKER = Outsider("w1", "w1#1", "worker", is_python=True)


def test_every_law_is_broken_by_some_mutation_or_below() -> None:
    named = {law for mutation in MUTATIONS for law in mutation.laws}

    assert {law.name for law in SAFETY} - named - BY_HAND == set()


def test_every_law_says_what_it_demands() -> None:
    for law in SAFETY:
        assert law.name
        assert (law.__doc__ or "").strip().endswith(".")


def test_a_change_that_was_passed_over_is_lost(world: SimulatedWorld) -> None:
    world.sink.write(reader(world), 0, 1)

    with pytest.raises(LawBroken, match="change 2 was never written") as broken:
        world.sink.write(reader(world), 2, 3)
    assert broken.value.law == "nothing is lost"


def test_a_parents_change_after_its_childs_is_out_of_order(world: SimulatedWorld) -> None:
    world.sink.write(reader(world), 0, 2)
    child, _ = world.stream.split("s001", 1.0)
    entry = world.stream.shards[child]
    entry.keys.append(7)
    entry.numbers.append(3)
    world.sink.write(reader(world, child), 0, 1)

    with pytest.raises(LawBroken, match="again after") as broken:
        world.laws.records_written(reader(world), 0, 1)
    assert broken.value.law == NothingIsLost.order


def test_a_repetition_breaks_the_law_of_checkpoints_in_two_phases(world: SimulatedWorld) -> None:
    world.plan = evolve(world.plan, is_two_phase=True)
    world.sink.write(reader(world), 0, 2)

    with pytest.raises(LawBroken, match="nothing is repeated"):
        world.sink.write(reader(world), 1, 3)


@pytest.mark.parametrize("value", ["2:x", CheckpointPosition.SHARD_END])
def test_a_checkpoint_ahead_of_what_was_processed_is_no_checkpoint(world: SimulatedWorld, value: str) -> None:
    row = Lease("s001", "stream")
    world.table.land(WORKER, leases.create(row))
    world.table.land(WORKER, leases.take(row, "w1"))
    world.sink.write(reader(world), 0, 1)

    with pytest.raises(LawBroken, match="checkpoints follow processing"):
        world.table.land(WORKER, leases.checkpoint(world.table.rows["s001"], value))


def test_a_child_does_not_start_at_its_latest_record(world: SimulatedWorld) -> None:
    world.table.land(WORKER, leases.create(Lease("s001", "stream")))
    child, _ = world.stream.split("s001", 1.0)

    with pytest.raises(LawBroken, match="nothing is skipped"):
        world.table.land(WORKER, leases.create(Lease(child, "stream", checkpoint="1:x")))
