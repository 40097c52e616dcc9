"""The base class of the laws of a simulated fleet."""

from __future__ import annotations

from streamclient.testing.history import Fact, Judge, LawBroken
from streamclient.testing.simulation.hooks import Hooks
from streamclient.testing.simulation.simulated_faults import Excuse
from streamclient.testing.simulation.simulated_table import Actor
from streamclient.testing.simulation.world import SimulatedWorld


class Law(Hooks):
    """One condition that must hold in every history. A law observes everything, and changes nothing."""

    name = ""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world = world

    def broken(self, lease_key: str, text: str) -> LawBroken:
        """Return the exception to raise."""
        return LawBroken(self.name, lease_key, text)

    def excuses(self, process: Actor, lease_key: str, *candidates: Excuse) -> bool:
        """Return whether one of these excuses a process that would break the law; if so, count it."""
        return self.world.excuses(self.name, process, lease_key, *candidates)

    @staticmethod
    def tell(judge: Judge, fact: Fact) -> None:
        """Pass a fact to a judge that drills use, too."""
        for broken in judge.see(fact):
            raise broken
