"""For tests: simulations, contract suites, fakes, and the judge of a fleet's deliveries. Imported by tests and samples.

``Faults``, ``Run``, ``SimulationFailed``, ``SimulationResult`` and ``StreamSimulation`` belong to the pytest fixture
``stream_simulation``; everything else has a module of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamclient._lazy import loader

if TYPE_CHECKING:
    from streamclient.testing.simulation.trials.faults import Faults
    from streamclient.testing.simulation.trials.fixture import SimulationFailed, SimulationResult, StreamSimulation
    from streamclient.testing.simulation.trials.settings import Run

__all__ = ["Faults", "Run", "SimulationFailed", "SimulationResult", "StreamSimulation"]

_HOMES = {
    "Faults": "simulation.trials.faults",
    "Run": "simulation.trials.settings",
    "SimulationFailed": "simulation.trials.fixture",
    "SimulationResult": "simulation.trials.fixture",
    "StreamSimulation": "simulation.trials.fixture",
}
"""Name to the module that has it, loaded when it is first used: pytest imports this package in every run."""


__getattr__ = loader(__name__, _HOMES)
