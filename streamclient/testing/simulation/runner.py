"""The execution of one plan, from its beginning to the verdict."""

from __future__ import annotations

import traceback
from collections import Counter
from typing import Protocol

from attrs import field, frozen

from streamclient.testing.history import LawBroken
from streamclient.testing.simulation.laws import make_laws
from streamclient.testing.simulation.plan import HistoryPlan, Plan, TunnelPlan
from streamclient.testing.simulation.settling import Settling
from streamclient.testing.simulation.simulated_faults import Excused
from streamclient.testing.simulation.simulated_fleet import SimulatedFleet
from streamclient.testing.simulation.storm import Storm
from streamclient.testing.simulation.trace import Observer, Trace
from streamclient.testing.simulation.tunnels.tunnel_world import TunnelWorld
from streamclient.testing.simulation.world import SimulatedWorld

LINES_OF_A_REPORT = 30
"""Number of the last lines about a lease that a violation shows."""

RAISED = "the core does not raise"
"""Name of the law that any exception breaks."""


@frozen
class Violation:
    """A broken law, and the events that led to it."""

    law: str
    lease_key: str
    at: float
    text: str
    lines: tuple[str, ...]
    """The last events of the lease."""


@frozen(kw_only=True)
class HistoryVerdict:
    """The result of one history."""

    plan: HistoryPlan
    violation: Violation | None
    digest: str
    seconds: float
    """Simulated time."""
    events: int
    """Events that the cores handled."""
    recovery_seconds: float | None
    """Time from the end of the storm, and of the freezes that began in it, until everything was held, even and read."""
    injected: Counter[str] = field(factory=Counter)
    counts: Counter[str] = field(factory=Counter)
    excused: Excused = field(factory=Excused)


class PlayedHistory(Protocol):
    """One history, of any kind."""

    trace: Trace
    injected: Counter[str]
    counts: Counter[str]
    excused: Excused

    @property
    def events(self) -> int:
        """Number of events that the cores handled."""

    @property
    def now(self) -> float:
        """True time."""

    @property
    def recovery_seconds(self) -> float | None:
        """Time from the end of the storm to the recovery; ``None`` if that was not reached."""

    def run(self) -> None:
        """Run from the beginning to the end; raise ``LawBroken`` for a broken law."""


def run_plan(plan: HistoryPlan, observer: Observer | None = None) -> HistoryVerdict:
    """Run one history. The same plan gives the same verdict, digest included, on every machine."""
    history: PlayedHistory
    if isinstance(plan, TunnelPlan):
        history = TunnelWorld(plan, observer)
    else:
        assert isinstance(plan, Plan)
        history = FleetHistory(plan, observer)
    violation = None
    try:
        history.run()
    except LawBroken as broken:
        violation = _violation(history, broken.law, broken.lease_key, broken.text)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({place.name}, line {place.lineno} of {place.filename.split('/')[-1]})"
        violation = _violation(history, RAISED, "", text)
    return HistoryVerdict(
        plan=plan,
        violation=violation,
        digest=history.trace.digest(),
        seconds=history.now,
        events=history.events,
        recovery_seconds=history.recovery_seconds,
        injected=history.injected,
        counts=history.counts,
        excused=history.excused,
    )


class FleetHistory:
    """The history of a fleet: its storm, then calm."""

    def __init__(self, plan: Plan, observer: Observer | None) -> None:
        self.world = SimulatedWorld(plan, make_laws, observer)
        self.fleet = SimulatedFleet(self.world)
        self._settling = Settling(self.fleet)
        self.trace, self.excused = self.world.trace, self.world.excused
        self.injected, self.counts = self.world.injected, self.world.counts

    @property
    def now(self) -> float:
        """See ``PlayedHistory``."""
        return self.world.now

    @property
    def events(self) -> int:
        """Number of events that the cores handled."""
        return self.world.events

    @property
    def recovery_seconds(self) -> float | None:
        """See ``PlayedHistory``."""
        return self._settling.recovery_seconds

    def run(self) -> None:
        """See ``PlayedHistory``."""
        storm, world = Storm(self.fleet), self.world
        world.agenda.run_until(world.plan.storm_seconds)
        storm.calm()
        world.agenda.run_until(max(world.now, storm.last_thaw()))
        self._settling.run()


def _violation(history: PlayedHistory, law: str, lease_key: str, text: str) -> Violation:
    lines = tuple(history.trace.about(lease_key, LINES_OF_A_REPORT))
    return Violation(law, lease_key, round(history.now, 6), text, lines)
