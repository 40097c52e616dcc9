"""Fleets whose operator orders records parked or skipped: the laws hold, and orders reach every way past a page."""

from __future__ import annotations

from collections import Counter

import pytest
from attrs import evolve

from streamclient.core.consumer.transitions import Outcome, Phase
from streamclient.testing.simulation.drawing import Size, draw_plan
from streamclient.testing.simulation.plan import Plan
from streamclient.testing.simulation.runner import run_plan
from tests.rings import every
from tests.simulation.consumer_mutations import ordered

SEEDS = range(12)

DROPPED = {
    (Phase.READING, Outcome.ACCEPTED),
    (Phase.WAITING, Outcome.ACCEPTED),
    (Phase.WAITING, Outcome.CAUGHT_UP),
    (Phase.WAITING, Outcome.END_REACHED),
}
"""Lines of the table that only an order that drops all that is left of a page reaches."""


def plan_of(seed: int, then: str) -> Plan:
    plan = draw_plan(seed, Size.SMALL)
    assert isinstance(plan, Plan)
    return ordered(then)(plan)


@pytest.mark.parametrize("then", ["RESTART", "PARK", "STOP_SHARD"])
@pytest.mark.parametrize("seed", every(2, SEEDS))
def test_no_law_is_broken_where_an_operator_takes_records_out(seed: int, then: str) -> None:
    verdict = run_plan(plan_of(seed, then))

    assert verdict.violation is None, verdict.violation
    assert verdict.recovery_seconds is not None


def test_orders_are_given_and_obeyed() -> None:
    counts: Counter[str] = Counter()
    for seed in range(4):
        verdict = run_plan(plan_of(seed, "STOP_SHARD"))
        counts += verdict.counts

    assert counts["operator set orders"] > 20
    assert counts["ordered records taken out"] > 20
    assert counts["end orders"] > 20


def test_a_plan_without_orders_has_the_history_that_it_had() -> None:
    """Nothing about orders is drawn from the dice that draw the rest."""
    plan = draw_plan(3, Size.SMALL)
    assert isinstance(plan, Plan)

    assert run_plan(plan).counts["end orders"] == 0
    assert run_plan(evolve(plan, actions=plan.actions)).digest == run_plan(plan).digest
