"""Rounds with real processes, in every test run; ``make rounds`` plays many more, and longer ones."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from tests.drill_kit import chosen_ways, deal
from tests.rounds.lap import play
from tests.rounds.plan import FAULTS, WAYS, Kind, make_plan
from tests.rounds.scene import SETTING

SHORT_STEPS = 110
"""Nine seconds of writing: long enough for a freeze that outlasts the lease."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_fleet_that_is_killed_frozen_and_lied_to_loses_repeats_and_reorders_nothing(seed: int, tmp_path: Path) -> None:
    """And nothing is accepted from a worker that woke up without its lease."""
    lap = play(seed, tmp_path / "round", SHORT_STEPS)

    assert lap.problems == []
    assert min(lap.counts[name] for name in ("kills", "freezes", "splits")) > 0, str(lap)
    assert sum(lap.counts.get(fault, 0) for fault in FAULTS) > 0, str(lap)
    assert set(lap.ways) == set(WAYS), str(lap)


@pytest.mark.parametrize("seed", range(20))
def test_the_seed_deals_out_the_ways_and_each_before_any_comes_again(seed: int) -> None:
    first, again = (list(itertools.islice(deal(random.Random(seed), WAYS), 8)) for _ in range(2))

    assert first == again
    assert set(first[:4]) == set(first[4:]) == set(WAYS)


def test_an_unknown_way_is_named() -> None:
    assert chosen_ways("async,loop", WAYS) == ("async", "loop")
    with pytest.raises(SystemExit, match="'fast' is unknown; there are java, kcl, loop, async"):
        chosen_ways("loop,fast", WAYS)


def test_the_same_seed_makes_the_same_plan() -> None:
    first, second, other = (make_plan(random.Random(seed), 170, SETTING) for seed in (7, 7, 8))

    assert first == second != other


@pytest.mark.parametrize("seed", range(20))
def test_every_plan_has_a_kill_a_freeze_that_outlasts_the_lease_and_faults(seed: int) -> None:
    plan = make_plan(random.Random(seed), 170, SETTING)
    kinds = {happening.kind for happening in plan}
    longest = max(happening.steps for happening in plan if happening.kind is Kind.FREEZE) * 0.08

    assert kinds == set(Kind)
    assert longest >= SETTING.lease_seconds
    assert all(0 <= happening.step < 170 for happening in plan)
