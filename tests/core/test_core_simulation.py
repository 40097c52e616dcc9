"""Fleets of ``Holdings`` in a simulated world, with faults, then without; one seed per run."""

from __future__ import annotations

import pytest
from simulated_world import CALM, Faults, World

STORMY = Faults(
    lost_answer=0.05,
    lost_request=0.05,
    late_request=0.05,
    false_refusal=0.03,
    unreadable=0.05,
    delay_seconds=0.4,
)
SETTLE_SECONDS = 400.0
"""Bound for convergence: two expiries, then rebalancing at a third of the need per pass."""


def settle(world: World) -> None:
    """Heal everything and require that the fleet converges within the bound."""
    world.faults, world.is_table_reachable = CALM, True
    if not any(worker.is_alive and not worker.is_stopping for worker in world.workers.values()):
        world.start_worker("last")
    deadline = world.now + SETTLE_SECONDS
    while world.unsettled() and world.now < deadline:
        world.run_until(world.now + 10)
    assert world.unsettled() == [], f"seed {world.seed}"


def fleet(seed: int, *, workers: int, shards: int, faults: Faults = CALM) -> World:
    world = World(seed, faults=faults)
    for _ in range(shards):
        world.stream.add(world.rng.randint(0, 30))
    for number in range(workers):
        world.start_worker(f"w{number}")
    return world


def storm(world: World, seconds: float) -> None:
    """Random crashes, restarts under the same or a new name, pauses, outages, stops, splits and merges."""
    rng, until = world.rng, world.now + seconds
    while world.now < until:
        world.run_until(world.now + rng.uniform(1, 15))
        world.stream.append(rng, 3)
        live = [worker for worker in world.workers.values() if worker.is_alive]
        action = rng.choice(("crash", "restart", "join", "pause", "outage", "heal", "split", "merge", "stop", "quiet"))
        if action in ("crash", "restart") and len(live) > 1:
            victim = rng.choice(live)
            world.crash(victim)
            if action == "restart":
                world.start_worker(victim.name)
        elif action == "join" and len(live) < 5:
            world.start_worker(f"w{len(world.workers)}")
        elif action == "pause" and live:
            world.pause(rng.choice(live), rng.uniform(1, 40))
        elif action in ("outage", "heal"):
            world.is_table_reachable = action == "heal"
        elif action == "split" and len(world.stream.shards) < 16:
            world.stream.split(rng)
        elif action == "merge" and len(world.stream.shards) < 16:
            world.stream.merge(rng)
        elif action == "stop" and len(live) > 1:
            world.stop(rng.choice(live))


def test_calm_fleet_converges_and_then_moves_nothing() -> None:
    world = fleet(1, workers=3, shards=7)
    world.run_until(120)

    assert world.unsettled() == []
    moves = [line for line in world.history if " renew " not in line and " checkpoint " not in line]
    world.history.clear()
    world.run_until(300)
    assert [line for line in world.history if " renew " not in line and " checkpoint " not in line] == []
    assert len(moves) < 40


@pytest.mark.slow
@pytest.mark.parametrize("block", range(int(__import__("os").environ.get("BLOCKS","10"))))
def test_laws_hold_in_a_storm_and_the_fleet_recovers(block: int) -> None:
    """Thirty seeds each: one reader per shard, no checkpoint goes back, no child before its parents, convergence."""
    for seed in range(block * 20, block * 20 + 20):
        world = fleet(seed, workers=1 + seed % 4, shards=1 + seed % 7, faults=STORMY)
        storm(world, 150)
        settle(world)
