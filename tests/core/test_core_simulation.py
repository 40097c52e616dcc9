"""Fleets of ``Holdings`` in a simulated world, with faults, then without; one seed per run."""

from __future__ import annotations

import pytest
from simulated_world import CALM, Faults, World

from streamclient.model import Lease

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

LEVEL_SECONDS = 60.0
"""Three lease durations: enough for work to become even in a fleet without faults."""


def settle(world: World) -> None:
    """Heal everything and require that the fleet converges within the bound."""
    world.faults, world.is_table_reachable = CALM, True
    java_lives = any(java.is_alive for java in world.javas.values())
    if not java_lives and not any(worker.is_alive and not worker.is_stopping for worker in world.workers.values()):
        world.start_worker("last")
    deadline = world.now + SETTLE_SECONDS
    while world.unsettled() and world.now < deadline:
        world.run_until(world.now + 10)
    assert world.unsettled() == [], f"seed {world.seed}"


def assert_quiet(world: World, seconds: float) -> None:
    """Nothing but renewals and checkpoints for that long, once what was decided before has arrived."""
    world.run_until(world.now + LEVEL_SECONDS)
    world.history.clear()
    world.run_until(world.now + seconds)
    assert world.moves() == [], f"seed {world.seed}"


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
    moves = world.moves()
    assert_quiet(world, 180)
    assert len(moves) < 40


@pytest.mark.slow
def test_work_stays_even_while_shards_split_and_merge_all_the_time() -> None:
    """Leases of finished shards count as much as others; nobody ends up with only those. Afterwards nothing moves."""
    for seed in range(3):
        world = fleet(seed, workers=3, shards=6)
        for number in range(12):
            world.run_until(world.now + 20)
            world.stream.append(world.rng, 3)
            (world.stream.split, world.stream.merge)[number % 2](world.rng)
        world.run_until(world.now + LEVEL_SECONDS)
        assert world.unsettled() == []
        assert_quiet(world, 100)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_laws_hold_in_a_storm_and_the_fleet_recovers(block: int) -> None:
    """Thirty seeds each: one reader per shard, no checkpoint goes back, no child before its parents, convergence."""
    for seed in range(block * 20, block * 20 + 20):
        world = fleet(seed, workers=1 + seed % 4, shards=1 + seed % 7, faults=STORMY)
        storm(world, 150)
        settle(world)
        if seed % 5 == 0:
            assert_quiet(world, 60)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(5))
def test_laws_hold_beside_java_workers_and_leases_move_both_ways(block: int) -> None:
    taken = handed_over = 0
    for seed in range(block * 10, block * 10 + 10):
        world = fleet(seed, workers=1 + seed % 3, shards=3 + seed % 7, faults=STORMY)
        javas = [world.start_java_worker(f"j{number}") for number in range(1 + seed % 2)]
        storm(world, 100)
        javas[0].is_alive = seed % 3 != 0
        storm(world, 50)
        settle(world)
        if seed % 5 == 0:
            assert_quiet(world, 60)
        taken += sum(java.taken for java in javas)
        handed_over += sum(java.handed_over for java in javas)
    assert taken > 10
    assert handed_over > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_fleet_recovers_from_rows_deleted_and_reset_under_it(seed: int) -> None:
    """As unsynchronised Java shard syncs do it; afterwards every row exists, is held once, and is read to its end."""
    world = fleet(seed, workers=3, shards=6, faults=STORMY)
    world.is_vandalised = True
    for _ in range(15):
        world.run_until(world.now + world.rng.uniform(1, 12))
        if world.table:
            key = world.rng.choice(sorted(world.table))
            row = world.table.pop(key)
            if world.chance(0.5):
                world.table[key] = Lease(key, row.stream_id, parent_shard_ids=row.parent_shard_ids)
    settle(world)


def test_deleted_row_of_a_held_lease_comes_back_with_its_checkpoint() -> None:
    world = fleet(3, workers=1, shards=1)
    world.stream.append(world.rng, 200)
    world.run_until(20)
    deleted = world.table.pop("s01")
    world.run_until(40)

    assert world.table["s01"].owner == "w0"
    assert world.position(world.table["s01"]) >= world.position(deleted) > 0


def test_stopping_worker_spreads_its_leases_and_they_are_picked_up_at_the_next_scan() -> None:
    world = fleet(4, workers=3, shards=9)
    world.run_until(90)
    assert world.unsettled() == []
    world.stop(world.workers["w1"])
    world.run_until(world.now + 15)

    assert not world.workers["w1"].is_alive
    assert sorted(len(w.holdings.held) for w in world.workers.values() if w.is_alive) == [4, 5]


def test_no_healthy_lease_is_dropped_when_answers_are_lost() -> None:
    """Lost answers are read back; without that, each would cost a lease."""
    world = fleet(5, workers=2, shards=6, faults=Faults(lost_answer=0.3, false_refusal=0.1, delay_seconds=0.05))
    world.run_until(200)

    assert [report.text for report in world.reports if "took" not in report.text and "handed" not in report.text] == []
