"""The reduction of a plan to the parts that cause a violation.

A smaller plan is accepted if it breaks the same law. The reduction tries an earlier end of all faults first. Then it
removes whole workers, kinds of actions and kinds of faults, then parts of the list of actions from halves down to
single actions, then shards. The resulting plan is usually small enough to be read from beginning to end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attrs import evolve, fields

from streamclient.testing.simulation.plan import Action, HistoryPlan, Rates
from streamclient.testing.simulation.runner import HistoryVerdict, run_plan

MOST_RUNS = 600
"""The largest number of histories that one reduction may run. This number of runs takes a few minutes, and
most reductions need far fewer runs."""

Progress = Callable[[HistoryVerdict], None]


def shrink(verdict: HistoryVerdict, progress: Progress | None = None, most_runs: int = MOST_RUNS) -> HistoryVerdict:
    """Reduce the plan of ``verdict``, and return the verdict of the smallest plan found that breaks the same law.

    ``progress`` gets the verdict of each smaller plan.

    Raises:
        ValueError: ``verdict`` has no violation.
    """
    if verdict.violation is None:
        raise ValueError(f"seed {verdict.plan.seed} breaks no law, so there is nothing to shrink")
    law, best, runs = verdict.violation.law, verdict, 0
    is_better = True
    while is_better and runs < most_runs:
        is_better = False
        for smaller in _smaller(best.plan):
            runs += 1
            found = run_plan(smaller)
            if found.violation is not None and found.violation.law == law:
                best, is_better = found, True
                if progress is not None:
                    progress(best)
                break
            if runs >= most_runs:
                break
    return best


def _smaller(plan: HistoryPlan) -> Iterator[HistoryPlan]:
    """Yield plans that are smaller than ``plan`` by one step, the largest steps first."""
    yield from _shorter(plan)
    for name in plan.workers:
        yield _with_actions(plan, [action for action in plan.actions if action.who != name])
    for do in dict.fromkeys(action.do for action in plan.actions):
        yield _with_actions(plan, [action for action in plan.actions if action.do is not do])
    for each in fields(Rates):
        if getattr(plan.rates, each.name):
            yield evolve(plan, rates=evolve(plan.rates, **{each.name: 0.0}))
    yield from _fewer_actions(plan)
    yield from _simpler(plan)


def _with_actions(plan: HistoryPlan, actions: list[Action]) -> HistoryPlan:
    return evolve(plan, actions=tuple(actions))


def _shorter(plan: HistoryPlan) -> Iterator[HistoryPlan]:
    """Yield plans in which all faults end earlier, without the actions after this end."""
    for share in (0.5, 0.75, 0.9):
        end = round(plan.storm_seconds * share, 3)
        if end >= plan.duration_seconds / 4:
            actions = tuple(action for action in plan.actions if action.at < end)
            yield evolve(plan, storm_seconds=end, actions=actions)


def _fewer_actions(plan: HistoryPlan) -> Iterator[HistoryPlan]:
    """Yield plans without a part of the list of actions. The parts shrink from half of the list to one action."""
    actions = list(plan.actions)
    length = len(actions) // 2
    while length >= 1:
        for start in range(0, len(actions), length):
            yield _with_actions(plan, actions[:start] + actions[start + length :])
        length //= 2


def _simpler(plan: HistoryPlan) -> Iterator[HistoryPlan]:
    """Yield plans with fewer shards, or with one field set to its simpler value in ``CALMER``."""
    for shards in dict.fromkeys((1, plan.shards // 2, plan.shards - 1)):
        if 0 < shards < plan.shards:
            yield evolve(plan, shards=shards)
    for name, value in plan.CALMER:
        if getattr(plan, name) != value:
            yield evolve(plan, **{name: value})
