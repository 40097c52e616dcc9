"""Runs one plan from its beginning to the verdict."""

from __future__ import annotations

import traceback
from collections import Counter

from attrs import field, frozen

from streamclient.testing.simulation.fleet import SimulatedFleet
from streamclient.testing.simulation.laws import LawBroken, make_laws
from streamclient.testing.simulation.plan import Plan
from streamclient.testing.simulation.settling import Settling
from streamclient.testing.simulation.storm import Storm
from streamclient.testing.simulation.world import Observer, SimulatedWorld

LINES_OF_A_REPORT = 30
"""How many of the last lines about a lease a violation shows."""

RAISED = "the core does not raise"
"""Name of the law that any exception breaks."""


@frozen
class Violation:
    """A law that does not hold, and what led to it."""

    law: str
    lease_key: str
    at: float
    text: str
    lines: tuple[str, ...]
    """The last things that happened to the lease."""


@frozen(kw_only=True)
class HistoryVerdict:
    """What became of one history."""

    plan: Plan
    violation: Violation | None
    digest: str
    seconds: float
    """Simulated time."""
    events: int
    """Events that the cores handled."""
    recovery_seconds: float | None
    """From the end of the storm, and of the freezes that began in it, until everything was held, even and read."""
    injected: Counter[str] = field(factory=Counter)
    counts: Counter[str] = field(factory=Counter)


def run_plan(plan: Plan, observer: Observer | None = None) -> HistoryVerdict:
    """Run one history. The same plan gives the same verdict, digest included, on every machine."""
    world = SimulatedWorld(plan, make_laws, observer)
    fleet = SimulatedFleet(world)
    settling = Settling(fleet)
    violation = None
    try:
        storm = Storm(fleet)
        world.agenda.run_until(plan.storm_seconds)
        storm.calm()
        world.agenda.run_until(max(world.now, storm.last_thaw()))
        settling.run()
    except LawBroken as broken:
        violation = _violation(world, broken.law, broken.lease_key, broken.text)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({place.name}, line {place.lineno} of {place.filename.split('/')[-1]})"
        violation = _violation(world, RAISED, "", text)
    return HistoryVerdict(
        plan=plan,
        violation=violation,
        digest=world.trace.digest(),
        seconds=world.now,
        events=world.events,
        recovery_seconds=settling.recovery_seconds,
        injected=world.injected,
        counts=world.counts,
    )


def _violation(world: SimulatedWorld, law: str, lease_key: str, text: str) -> Violation:
    lines = tuple(world.trace.about(lease_key, LINES_OF_A_REPORT))
    return Violation(law, lease_key, round(world.now, 6), text, lines)
