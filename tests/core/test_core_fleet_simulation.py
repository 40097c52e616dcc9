"""Fleets of workers with sessions in a simulated world, with faults, then without; one seed per run."""

from __future__ import annotations

from typing import Any

import pytest
from simulated_fleet import FleetWorld
from simulated_world import CALM, Faults
from test_core_simulation import STORMY, assert_quiet, settle, storm


def fleet(seed: int, *, workers: int, shards: int, faults: Faults = CALM, **config: Any) -> FleetWorld:
    world = FleetWorld(seed, faults=faults, **config)
    for _ in range(shards):
        world.stream.add(world.rng.randint(0, 30))
    for number in range(workers):
        world.start_worker(f"w{number:02}")
    return world


def test_calm_fleet_converges_within_seconds_and_then_moves_nothing() -> None:
    world = fleet(1, workers=3, shards=7)
    world.run_until(3)
    assert sorted(len(worker.holdings.held) for worker in world.workers.values()) == [2, 2, 3]
    world.run_until(30)
    assert world.unsettled() == []
    assert_quiet(world, 180)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(5))
def test_laws_hold_in_a_storm_and_the_fleet_recovers(block: int) -> None:
    for seed in range(block * 8, block * 8 + 8):
        world = fleet(seed, workers=1 + seed % 4, shards=1 + seed % 7, faults=STORMY)
        storm(world, 150)
        settle(world)
        if seed % 5 == 0:
            assert_quiet(world, 60)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(5))
def test_laws_hold_beside_java_workers(block: int) -> None:
    for seed in range(block * 4, block * 4 + 4):
        world = fleet(seed, workers=1 + seed % 3, shards=3 + seed % 7, faults=STORMY)
        javas = [world.start_java_worker(f"j{number}") for number in range(1 + seed % 2)]
        storm(world, 100)
        javas[0].is_alive = seed % 3 != 0
        storm(world, 50)
        settle(world)
        if seed % 5 == 0:
            assert_quiet(world, 60)
