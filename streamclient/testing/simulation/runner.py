"""The execution of one plan, from its beginning to the verdict."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial

from attrs import field, frozen

from streamclient.testing.history import LawBroken
from streamclient.testing.simulation.kernel import Observer, PlayedHistory
from streamclient.testing.simulation.laws import make_laws
from streamclient.testing.simulation.plan import HistoryPlan, LoopPlan, Plan, TunnelPlan
from streamclient.testing.simulation.settling import Settling
from streamclient.testing.simulation.simulated_faults import Excused
from streamclient.testing.simulation.storm import SimulatedFleet, Storm
from streamclient.testing.simulation.tunnels.tunnel_world import TunnelWorld
from streamclient.testing.simulation.world import SimulatedWorld

LINES_OF_A_REPORT = 30
"""The largest number of trace entries that a violation shows. They are the last entries about its lease."""

RAISED = "the core does not raise"
"""The name of the law that is broken by every exception except ``LawBroken``."""


@frozen
class Violation:
    """A violation of a law, and the events that led to the violation."""

    law: str
    lease_key: str
    at: float
    text: str
    lines: tuple[str, ...]
    """The last entries of the trace about the lease, as text."""


@frozen(kw_only=True)
class HistoryVerdict:
    """The result of one history: the violation, if a law was broken, and numbers about the history."""

    plan: HistoryPlan
    violation: Violation | None
    digest: str
    seconds: float
    """The duration of the history, in simulated seconds."""
    events: int
    """The number of events that the decision cores of the workers handled."""
    recovery_seconds: float | None
    """The time, in seconds, from the end of all faults until all shards were held, evenly distributed and read;
    ``None`` if the fleet did not recover."""
    injected: Counter[str] = field(factory=Counter)
    counts: Counter[str] = field(factory=Counter)
    excused: Excused = field(factory=Excused)


def run_plan(plan: HistoryPlan, observer: Observer | None = None) -> HistoryVerdict:
    """Run the history of a plan. The same plan gives the same verdict, digest included, on every machine."""
    return play_plan(plan, observer)[1]


def play_plan(plan: HistoryPlan, observer: Observer | None = None) -> tuple[PlayedHistory, HistoryVerdict]:
    """Run the history of a plan up to its end or its first violation; return the history and its verdict."""
    history, run = _history_of(plan, observer)
    broken = None
    try:
        run()
    except LawBroken as error:
        broken = error
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.name}, line {place.lineno} of {place.filename.split('/')[-1]}"
        broken = LawBroken(RAISED, "", f"{type(error).__name__}: {error} ({where})")
    return history, HistoryVerdict(
        plan=plan,
        violation=None if broken is None else _violation(history, broken),
        digest=history.trace.digest(),
        seconds=history.now,
        events=history.events,
        recovery_seconds=history.recovery_seconds,
        injected=history.injected,
        counts=history.counts,
        excused=history.excused,
    )


def _history_of(plan: HistoryPlan, observer: Observer | None) -> tuple[PlayedHistory, Callable[[], None]]:
    """Return a new history for a plan, and the function that runs this history."""
    if isinstance(plan, TunnelPlan):
        tunnel = TunnelWorld(plan, observer)
        return tunnel, tunnel.run
    if isinstance(plan, LoopPlan):
        from streamclient.testing.simulation.loops.loop_world import LoopWorld  # noqa: PLC0415  # loads the SDK

        loops = LoopWorld(plan, observer)
        return loops, loops.run
    assert isinstance(plan, Plan)
    world = SimulatedWorld(plan, make_laws, observer)
    return world, partial(run_fleet, world)


def run_fleet(world: SimulatedWorld) -> None:
    """Run the whole history of a fleet: the storm with its faults, the end of all freezes, and the recovery."""
    storm = Storm(SimulatedFleet(world))
    world.agenda.run_until(world.plan.storm_seconds)
    storm.calm()
    world.agenda.run_until(max(world.now, storm.last_thaw()))
    Settling(storm.fleet).run()


def _violation(history: PlayedHistory, broken: LawBroken) -> Violation:
    lines = tuple(history.trace.about(broken.lease_key, LINES_OF_A_REPORT))
    return Violation(broken.law, broken.lease_key, round(history.now, 6), broken.text, lines)
