"""Every law can be broken: by a mutation of the core, or, where another law would be first, by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve

from streamclient.core import leases
from streamclient.model import CheckpointPosition, Lease
from streamclient.testing.history import LawBroken
from streamclient.testing.simulation.laws import SAFETY, make_laws
from streamclient.testing.simulation.laws.progress_laws import NothingIsLost
from streamclient.testing.simulation.plan import Plan
from streamclient.testing.simulation.simulated_faults import Excuse, Excused
from streamclient.testing.simulation.simulated_table import Outsider
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
    return SimpleNamespace(shard=world.stream.shards[shard_id], lease_key=shard_id, epoch=1, process=WORKER, orders=())


WORKER = Outsider("w1", "w1#1", "worker", is_python=True)


def test_every_law_is_broken_by_some_mutation_or_below() -> None:
    named = {law for mutation in MUTATIONS for law in mutation.laws}

    assert {law.name for law in SAFETY} - named - BY_HAND == set()


def test_every_law_says_what_it_demands() -> None:
    for law in SAFETY:
        assert law.name
        assert (law.__doc__ or "").strip().endswith(".")


def test_a_change_that_was_passed_over_is_out_of_order(world: SimulatedWorld) -> None:
    world.sink.write(reader(world), 0, 1)

    with pytest.raises(LawBroken, match="no reader had change 2") as broken:
        world.sink.write(reader(world), 2, 3)
    assert broken.value.law == NothingIsLost.order


def test_what_nobody_wrote_in_the_end_is_lost_unless_nobody_needs_to(world: SimulatedWorld) -> None:
    row = Lease("s001", "stream")
    world.table.land(WORKER, leases.create(row))
    world.sink.write(reader(world), 0, 2)
    world.laws.recovered({"s001"})

    with pytest.raises(LawBroken, match="nothing is lost: no worker ever wrote change 3 of key 7"):
        world.laws.recovered(())


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


def test_what_would_break_a_law_is_counted_when_it_is_excused(world: SimulatedWorld) -> None:
    world.plan = evolve(world.plan, is_two_phase=True)
    world.touched.add("s001")
    world.sink.write(reader(world), 0, 2)
    assert world.excused == {}
    world.sink.write(reader(world), 1, 3)

    assert world.excused == {"nothing is repeated: changed from outside": 1}


def test_a_row_that_was_destroyed_excuses_its_owner_until_it_writes_again(world: SimulatedWorld) -> None:
    world.table.land(WORKER, leases.create(Lease("s001", "stream")))
    assert not world.excuses("one reader", WORKER, "s001", Excuse.ROW_DESTROYED)
    world.agenda.run_until(1.0)
    world.destroyed("s001")

    assert world.excuses("one reader", WORKER, "s001", Excuse.ROW_DESTROYED)
    assert world.excused == {"one reader: row destroyed": 1}


def test_a_law_is_excused_only_by_what_is_declared() -> None:
    with pytest.raises(ValueError, match="'begins later' is not declared to excuse the law 'patience'"):
        Excused().note("patience", Excuse.BEGINS_LATER)


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
