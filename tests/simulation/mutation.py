"""How one rule of the production core is broken while histories run, and whether a law sees it.

A mutation replaces a function of the core, or a part of one, while histories run. It is caught if one of the laws that
it names is broken within ``A_FEW`` seeds from where it was caught when it was last looked for. So the laws are known to
see what they are there for. ``make simulate-mutations`` looks from the first seed on, and says where each is caught.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from attrs import field, frozen

from streamclient.core import events, holdings
from streamclient.core.consumer import machine, transitions
from streamclient.core.consumer.transitions import Outcome, Phase
from streamclient.core.held import NEXT, Consuming, Intention, LeaseStep, RowState
from streamclient.core.write_rules import RULES, EpochWriteKind, Rule, WorkerWriteKind, WriteKind
from streamclient.testing.simulation.drawing import Size, draw_plan
from streamclient.testing.simulation.plan import Plan
from streamclient.testing.simulation.runner import run_plan
from streamclient.testing.simulation.simulated_faults import Do

MOST_SEEDS = 500

A_FEW = 10
"""Seeds in which every test run looks. Each law is broken again within so few wherever it was broken once; a mutation
that no history of them shows needs another ``seed``."""

AnyKind = WriteKind | WorkerWriteKind | EpochWriteKind

State = tuple[Intention, Consuming, RowState]

Patch = tuple[Any, str, Any]
"""What to change: a module or class, the name in it, what to put there."""


@frozen
class Mutation:
    """One rule, broken."""

    name: str
    laws: frozenset[str]
    """Any of these may catch it."""
    patches: Sequence[Patch]
    handlers: Sequence[tuple[type, Callable[..., None]]] = ()
    """Handlers of events, and of the answers to calls, that are replaced in ``Holdings`` and in consumers."""
    fits: Callable[[Plan], bool] = lambda plan: True
    """Plans in which the rule matters; others are passed over."""
    made_to_fit: Callable[[Plan], Plan] = lambda plan: plan
    """Changes a plan so that the rule matters more often."""
    rules: Mapping[AnyKind, Rule] = field(factory=dict)
    """Lines that are replaced in the table of rules."""
    steps: Mapping[State, LeaseStep] = field(factory=dict)
    """Lines that are replaced in the table of held leases."""
    phases: Mapping[tuple[Phase, Outcome], Phase] = field(factory=dict)
    """Lines that are replaced in the table of consumers."""
    size: Size = Size.SMALL
    """What kind of history shows it."""
    seed: int = 0
    """Where to look first: of a rule that matters rarely, the first seed that is known to show it."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The core with this rule broken."""
        undo = [patch.object(*each) for each in self.patches]
        answers = {call: handler for call, handler in self.handlers if issubclass(call, events.Call)}
        of_consumers = {event: handler for event, handler in self.handlers if event in machine._HANDLERS}
        others = {event: handler for event, handler in self.handlers if event not in answers.keys() | of_consumers}
        handlers = patch.dict(holdings._HANDLERS, others)
        rules, steps = patch.dict(RULES, self.rules), patch.dict(NEXT, self.steps)
        consumers = patch.dict(machine._HANDLERS, of_consumers)
        phases = patch.dict(transitions.TRANSITIONS, self.phases)  # type: ignore[arg-type]  # it is a dictionary
        for each in undo:
            each.start()
        try:
            with handlers, patch.dict(holdings._ANSWERS, answers), rules, steps, phases, consumers:
                yield
        finally:
            for each in reversed(undo):
                each.stop()

    def caught(self, seeds: Iterable[int]) -> tuple[int, str] | None:
        """The first of the seeds whose history breaks one of its laws, and that law."""
        with self.applied():
            for seed in seeds:
                plan = self.made_to_fit(draw_plan(seed, self.size))
                if not self.fits(plan):
                    continue
                violation = run_plan(plan).violation
                if violation is not None and violation.law in self.laws:
                    return seed, violation.law
        return None


def has(*kinds: Do) -> Callable[[Plan], bool]:
    return lambda plan: bool({action.do for action in plan.actions} & set(kinds))
