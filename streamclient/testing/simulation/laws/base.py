"""What a law is."""

from __future__ import annotations

from streamclient.testing.simulation.hooks import Hooks
from streamclient.testing.simulation.world import SimulatedWorld


class LawBroken(Exception):
    """A law does not hold in this history. Raised at the very event that breaks it."""

    def __init__(self, law: str, lease_key: str, text: str) -> None:
        super().__init__(f"{law}: {text}")
        self.law = law
        self.lease_key = lease_key
        self.text = text


class Law(Hooks):
    """One thing that must be true of every history. It sees everything, and changes nothing."""

    name = ""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world = world

    def broken(self, lease_key: str, text: str) -> LawBroken:
        """The exception to raise."""
        return LawBroken(self.name, lease_key, text)
