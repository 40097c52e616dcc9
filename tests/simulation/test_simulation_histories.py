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

from streamclient.core import held
from streamclient.core.consumer import transitions
from streamclient.core.held import Consuming, Intention, RowState
from streamclient.core.shard_tree import ListedEnds
from streamclient.testing.simulation.drawing import Size, draw_plan
from streamclient.testing.simulation.plan import plan_from_json
from streamclient.testing.simulation.runner import RAISED, run_plan
from streamclient.testing.simulation.settling import Settling
from tests.rings import every
from tests.simulation.consumer_mutations import ordered
from tests.simulation.measuring import Reached, reached_leases
from tests.simulation.mutation import A_FEW, Mutation
from tests.simulation.mutations import MUTATIONS

FOUND = sorted((Path(__file__).parent / "found").glob("*.json"))

SEEDS = range(40)

REACHING = (5, 240, 302)
"""Seeds whose histories reach all lines of the table of held leases; the rarest: a shard that ends while it is being
paused, and a row that is gone before its shard is read. If a change moves them, any others that reach all will do."""

CONSUMERS_REACHING = (77, 183, 191, 235)
"""Seeds whose histories reach all lines of the table of consumers, in the same way, but for those below."""

ORDERS_REACHING = (106, 186)
"""Seeds whose histories with orders about records reach the lines for a page of which an order drops all that is left.
"""

DIGESTS = """
from streamclient.testing.simulation.drawing import Size, draw_plan
from streamclient.testing.simulation.plan import plan_from_json
from streamclient.testing.simulation.runner import run_plan
print([run_plan(draw_plan(seed, Size.SMALL)).digest for seed in range(6)])
"""


@pytest.mark.parametrize("seed", every(2, SEEDS))
def test_no_law_is_broken(seed: int) -> None:
    verdict = run_plan(draw_plan(seed, Size.SMALL))

    assert verdict.violation is None, f"streamclient simulate --seed {seed}: {verdict.violation}"
    assert verdict.events > 0
    assert verdict.recovery_seconds is not None


def test_histories_reach_every_line_of_the_table_of_held_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no state that is not there: that would break the law that the core does not raise."""
    monkeypatch.setattr(held, "NEXT", reached := reached_leases())
    verdicts = [run_plan(draw_plan(seed, Size.SMALL)) for seed in REACHING]

    assert reached.lines(reached.found) == reached.lines(reached)
    assert [verdict.violation for verdict in verdicts] == [None] * len(REACHING)


def test_histories_reach_every_line_of_the_table_of_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no other: that would break the law that the core does not raise."""
    monkeypatch.setattr(transitions, "TRANSITIONS", reached := Reached(transitions.TRANSITIONS))
    plans = [draw_plan(seed, Size.SMALL) for seed in CONSUMERS_REACHING]
    plans += [ordered("STOP_SHARD", 3)(draw_plan(seed, Size.SMALL)) for seed in ORDERS_REACHING]
    verdicts = [run_plan(plan) for plan in plans]

    assert reached.found == set(reached)
    assert [verdict.violation for verdict in verdicts] == [None] * len(plans)


@pytest.mark.parametrize("state", [Intention.READ, Intention.GIVE_AWAY])
def test_a_state_without_a_line_would_be_seen(state: Intention, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(held.NEXT, (state, Consuming.NO_CONSUMER, RowState.OWN))
    violation = run_plan(draw_plan(0, Size.SMALL)).violation

    assert violation is not None
    assert violation.law == RAISED


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_what_was_found_once_is_mended(path: Path) -> None:
    assert run_plan(plan_from_json(path.read_text())).violation is None


def test_old_lists_that_lack_a_young_shard_would_end_it_but_for_its_ancestors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ListedEnds, "_ancestors", lambda self, shard_id: iter(()))
    (path,) = (path for path in FOUND if path.stem == "old-lists-lack-a-young-shard-twice")
    violation = run_plan(plan_from_json(path.read_text())).violation

    assert violation is not None
    assert violation.law == "checkpoints follow processing"


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_moves_without_a_reason_would_be_seen(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also beside a Java worker, where rest begins anew with each shard that ends."""
    monkeypatch.setattr(Settling, "_moves", staticmethod(partial(next, count())))  # later, partial makes methods
    plan = evolve(plan_from_json(path.read_text()), balance_by="count")
    violation = run_plan(plan).violation

    assert violation is not None
    assert violation.law == "rest"


def test_a_plan_survives_being_stored() -> None:
    plan = draw_plan(7, Size.SMALL)

    assert plan_from_json(plan.to_json()) == plan


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
    seeds = range(mutation.seed, mutation.seed + A_FEW)

    assert mutation.caught(seeds) is not None, (
        f"not in histories {seeds}; `make simulate-mutations` tells where it is caught"
    )
