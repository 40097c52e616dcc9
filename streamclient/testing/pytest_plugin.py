"""The pytest fixture ``stream_simulation``. Registered as ``pytest11``; costs nothing until a test asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from streamclient.testing.simulation.trials.trial_fixture import StreamSimulation


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that repeat one seed, or run more seeds than the test says."""
    group = parser.getgroup("streamclient", "simulations of record processors")
    group.addoption("--simulation-seed", type=int, metavar="SEED", help="run this seed alone, and print every step")
    group.addoption("--simulation-seeds", type=int, metavar="N", help="run N seeds, whatever the test says")


@pytest.fixture
def stream_simulation(request: pytest.FixtureRequest) -> StreamSimulation:
    """Run a record processor in simulated fleets of workers, under chosen faults."""
    # Imported here: pytest loads this module in every run wherever the package is installed.
    from streamclient.testing.simulation.trials.trial_fixture import StreamSimulation  # noqa: PLC0415

    return StreamSimulation(
        seed=request.config.getoption("--simulation-seed"),
        seeds=request.config.getoption("--simulation-seeds"),
        test=request.node.nodeid,
    )
