"""Fleets that are followed closely: calm ones, stopped workers, rows that vanish, shards that split all the time."""

from __future__ import annotations

import pytest

from streamclient.core.write_rules import WriteKind
from streamclient.testing.simulation.laws import make_laws
from streamclient.testing.simulation.plan import Action, Plan, Rates
from streamclient.testing.simulation.runner import HistoryVerdict, run_plan
from streamclient.testing.simulation.simulated_faults import Do
from streamclient.testing.simulation.simulated_stream import place_of
from streamclient.testing.simulation.storm import OUTSIDER, SimulatedFleet
from streamclient.testing.simulation.world import SimulatedWorld

MOVES = (WriteKind.TAKE.value, WriteKind.STEAL.value, WriteKind.TRANSFER.value)


def starts(workers: int, *, java: int = 0) -> tuple[Action, ...]:
    fleet = [Action(at=0.0, do=Do.START, who=f"w{number}") for number in range(workers)]
    return (*fleet, *(Action(at=1.0, do=Do.START, who=f"j{number}", java=True) for number in range(java)))


def begun(workers: int, shards: int, *, until: float) -> SimulatedFleet:
    """A calm fleet, some time after its start."""
    plan = Plan(seed=1, shards=shards, delay_seconds=0.01, signal_interval_millis=400)
    fleet = SimulatedFleet(SimulatedWorld(plan, make_laws))
    for number in range(workers):
        fleet.start(f"w{number}")
    fleet.world.agenda.run_until(until)
    return fleet


def moves(verdict: HistoryVerdict) -> int:
    return sum(verdict.counts[kind] for kind in MOVES)


@pytest.mark.parametrize("has_sessions", [True, False])
def test_a_calm_fleet_shares_its_shards_and_then_moves_nothing(has_sessions: bool) -> None:
    plan = Plan(seed=1, shards=7, actions=starts(3), storm_seconds=120.0, has_sessions=has_sessions, delay_seconds=0.01)
    verdict = run_plan(plan)

    assert verdict.violation is None
    assert verdict.recovery_seconds is not None
    assert verdict.recovery_seconds <= 10.0
    assert moves(verdict) < 40


def test_workers_with_sessions_share_within_seconds() -> None:
    fleet = begun(3, 7, until=3.0)

    assert sorted(len(process.holdings.held) for process in fleet.living()) == [2, 2, 3]


@pytest.mark.parametrize("has_sessions", [True, False])
def test_work_stays_even_while_shards_split_and_merge_all_the_time(has_sessions: bool) -> None:
    """Leases of finished shards count as much as others; nobody ends up with only those."""
    changes = [
        Action(at=20.0 * (number + 1), do=(Do.SPLIT, Do.MERGE)[number % 2], where=0.37 * (number % 3))
        for number in range(12)
    ]
    plan = Plan(
        seed=3,
        shards=6,
        actions=(*starts(3), *changes),
        storm_seconds=250.0,
        has_sessions=has_sessions,
        write_seconds=5.0,
    )
    verdict = run_plan(plan)

    assert verdict.violation is None
    assert verdict.injected["split"] == 6
    assert verdict.injected["merge"] > 3


def test_java_workers_take_and_are_given_leases() -> None:
    plan = Plan(seed=5, shards=9, actions=starts(2, java=2), storm_seconds=300.0)
    verdict = run_plan(plan)

    assert verdict.violation is None
    assert verdict.counts["java take"] > 3
    assert verdict.counts["java steal"] > 0
    assert verdict.counts["java batches"] > 50


def test_a_deleted_row_of_a_held_lease_comes_back_with_its_checkpoint() -> None:
    world = begun(1, 1, until=60.0).world
    deleted = world.table.rows["s001"]
    world.destroyed("s001")
    world.table.put(OUTSIDER, "delete row", "s001", None)
    world.agenda.run_until(90.0)

    row = world.table.rows["s001"]
    assert row.owner == "w0"
    assert place_of(row.checkpoint) >= place_of(deleted.checkpoint) > 0


def test_a_stopping_worker_spreads_its_leases_and_they_are_picked_up() -> None:
    fleet = begun(3, 9, until=90.0)
    fleet.living()[1].stop()
    fleet.world.agenda.run_until(fleet.world.now + 15.0)

    assert [process.name for process in fleet.living()] == ["w0", "w2"]
    assert sorted(len(process.holdings.held) for process in fleet.living()) == [4, 5]


def test_no_healthy_lease_is_dropped_when_answers_are_lost() -> None:
    """Lost answers are read back; without that, each would cost a lease. Many in a row look like a name used twice."""
    rates = Rates(lost_answer=0.1, false_refusal=0.1)
    plan = Plan(seed=6, shards=6, actions=starts(2), rates=rates, storm_seconds=200.0, has_sessions=False)
    verdict = run_plan(plan)

    assert verdict.violation is None
    assert verdict.injected["lost answer"] > 20
    assert verdict.counts["checkpoint lease_lost"] * 20 < verdict.injected["lost answer"]
