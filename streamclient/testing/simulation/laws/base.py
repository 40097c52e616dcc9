"""What a law of a simulated fleet is."""

from __future__ import annotations

from streamclient.testing.history import Fact, Judge, LawBroken
from streamclient.testing.simulation.hooks import Hooks
from streamclient.testing.simulation.simulated_faults import Excuse
from streamclient.testing.simulation.simulated_table import Actor
from streamclient.testing.simulation.world import SimulatedWorld


class Law(Hooks):
    """One thing that must be true of every history. It sees everything, and changes nothing."""

    name = ""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world = world

    def broken(self, lease_key: str, text: str) -> LawBroken:
        """The exception to raise."""
        return LawBroken(self.name, lease_key, text)

    def excuses(self, process: Actor, lease_key: str, *candidates: Excuse) -> bool:
        """Whether one of these excuses who would break the law otherwise; it is counted then."""
        return self.world.excuses(self.name, process, lease_key, *candidates)

    @staticmethod
    def tell(judge: Judge, fact: Fact) -> None:
        """Show a fact to what judges drills, too."""
        for broken in judge.see(fact):
            raise broken
