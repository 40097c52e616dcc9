"""The pytest fixtures of this package, registered as ``pytest11``. They cost nothing until a test uses one of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from streamclient.server import LocalTablestore
    from streamclient.testing.simulation.history_document import HistoryDocument
    from streamclient.testing.simulation.trials.trial_fixture import StreamSimulation


class HistoryHooks:
    """The hooks that give the history of a failed simulation to other plugins. This plugin itself keeps no history."""

    @pytest.hookspec(firstresult=True)
    def pytest_streamclient_history(self, config: pytest.Config, test: str, history: HistoryDocument) -> str | None:
        """Keep the history of the failed ``test``, and return a line for the report that says where the history is.

        Return ``None`` if this plugin does not keep the history.
        """


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the hooks of ``HistoryHooks``."""
    pluginmanager.add_hookspecs(HistoryHooks)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options ``--simulation-seed`` and ``--simulation-seeds``, which choose the seeds of simulations."""
    group = parser.getgroup("streamclient", "simulations of record processors")
    group.addoption("--simulation-seed", type=int, metavar="SEED", help="run this seed alone, and print every step")
    group.addoption("--simulation-seeds", type=int, metavar="N", help="run N seeds, whatever the test says")


@pytest.fixture
def stream_simulation(request: pytest.FixtureRequest) -> StreamSimulation:
    """Lend an object that runs record processors in simulated fleets of workers, under chosen faults."""
    # Imported only here, because pytest loads this module in every run wherever the package is installed.
    from streamclient.testing.simulation.trials.trial_fixture import StreamSimulation  # noqa: PLC0415

    config, test = request.config, request.node.nodeid
    return StreamSimulation(
        seed=config.getoption("--simulation-seed"),
        seeds=config.getoption("--simulation-seeds"),
        test=test,
        keep_history=lambda history: config.hook.pytest_streamclient_history(config=config, test=test, history=history),
    )


@pytest.fixture(scope="session")
def _session_tablestore() -> Iterator[LocalTablestore]:
    """Run one server for all tests of this process that use ``local_tablestore``."""
    from streamclient.server import LocalTablestore  # noqa: PLC0415

    with LocalTablestore() as local:
        yield local


@pytest.fixture
def local_tablestore(_session_tablestore: LocalTablestore) -> Iterator[LocalTablestore]:
    """Lend the empty local Tablestore of this test session. After each test, ``clear`` empties the server.

    The server runs in memory, on a free port of this machine. A clock that a test advanced stays advanced.
    """
    yield _session_tablestore
    _session_tablestore.clear()
