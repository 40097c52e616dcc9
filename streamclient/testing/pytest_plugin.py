"""The pytest fixtures of this package. Registered as ``pytest11``; they cost nothing until a test asks for one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from streamclient.server import LocalTablestore
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


@pytest.fixture(scope="session")
def _session_tablestore() -> Iterator[LocalTablestore]:
    """Run one server for all tests of this process that use ``local_tablestore``."""
    from streamclient.server import LocalTablestore  # noqa: PLC0415

    with LocalTablestore() as local:
        yield local


@pytest.fixture
def local_tablestore(_session_tablestore: LocalTablestore) -> Iterator[LocalTablestore]:
    """Lend the local Tablestore of this session, empty: after each test ``clear`` deletes everything in it.

    The server runs in memory, on a free port of this machine. A clock that a test advanced stays advanced.
    """
    yield _session_tablestore
    _session_tablestore.clear()
