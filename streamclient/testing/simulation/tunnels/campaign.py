"""Many histories of tunnel clients; importable, so that several processes can run them."""

from __future__ import annotations

from collections import Counter

from attrs import frozen

from streamclient.testing.simulation.tunnels.laws import TunnelViolation
from streamclient.testing.simulation.tunnels.world import TunnelWorld


@frozen
class History:
    """What one seed showed."""

    seed: int
    violation: str
    seconds: float
    """Simulated."""
    injected: Counter[str]


def history(seed: int) -> History:
    """Run one seed."""
    world = TunnelWorld(seed)
    violation = ""
    try:
        world.run()
    except TunnelViolation as broken:
        violation = str(broken)
    return History(seed, violation, world.agenda.now, world.injected)
