"""Simulated fleets: the laws hold, one seed is one history, old findings stay found out, broken rules are seen."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from attrs import evolve

from streamclient.testing.simulation.drawing import Size, draw_plan
from streamclient.testing.simulation.plan import Plan
from streamclient.testing.simulation.runner import run_plan
from streamclient.testing.simulation.settling import Settling
from tests.simulation.mutations import MUTATIONS, Mutation

FOUND = sorted((Path(__file__).parent / "found").glob("*.json"))

SEEDS = range(40)

DIGESTS = """
from streamclient.testing.simulation.drawing import Size, draw_plan
from streamclient.testing.simulation.runner import run_plan
print([run_plan(draw_plan(seed, Size.SMALL)).digest for seed in range(6)])
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_no_law_is_broken(seed: int) -> None:
    verdict = run_plan(draw_plan(seed, Size.SMALL))

    assert verdict.violation is None, f"streamclient simulate --seed {seed}: {verdict.violation}"
    assert verdict.events > 0
    assert verdict.recovery_seconds is not None


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_what_was_found_once_is_mended(path: Path) -> None:
    assert run_plan(Plan.from_json(path.read_text())).violation is None


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_moves_without_a_reason_would_be_seen(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also beside a Java worker, where rest begins anew with each shard that ends."""
    monkeypatch.setattr(Settling, "_moves", partial(next, count()))
    plan = evolve(Plan.from_json(path.read_text()), balance_by="count")
    violation = run_plan(plan).violation

    assert violation is not None
    assert violation.law == "rest"


def test_a_plan_survives_being_stored() -> None:
    plan = draw_plan(7, Size.SMALL)

    assert Plan.from_json(plan.to_json()) == plan


def test_one_seed_is_one_history_whatever_the_order_of_hashes() -> None:
    first, second = (
        subprocess.run(
            [sys.executable, "-c", DIGESTS],
            env={**os.environ, "PYTHONHASHSEED": number},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for number in ("1", "2")
    )

    assert first == second
    assert len(set(first.split(", "))) == 6


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_broken_rule_is_seen_by_a_law_that_names_it(mutation: Mutation) -> None:
    assert mutation.caught() is not None
