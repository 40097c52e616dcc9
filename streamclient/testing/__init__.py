"""For tests: simulations, contract suites, fakes, and the judge of a fleet's deliveries. Imported by tests and samples.

``Faults``, ``Run``, ``SimulationFailed``, ``SimulationResult`` and ``StreamSimulation`` belong to the pytest fixture
``stream_simulation``; everything else has a module of its own.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamclient.testing.simulation.trials.faults import Faults
    from streamclient.testing.simulation.trials.fixture import SimulationFailed, SimulationResult, StreamSimulation
    from streamclient.testing.simulation.trials.witness import Run

__all__ = ["Faults", "Run", "SimulationFailed", "SimulationResult", "StreamSimulation"]

_HOMES = {
    "Faults": "faults",
    "Run": "witness",
    "SimulationFailed": "fixture",
    "SimulationResult": "fixture",
    "StreamSimulation": "fixture",
}
"""Name to the module that has it, loaded when it is first used: pytest imports this package in every run."""


def __getattr__(name: str) -> Any:
    """Load a name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"streamclient.testing.simulation.trials.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
