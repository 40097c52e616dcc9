"""The data source in drivers of their own: one that is killed, and a cluster that gets the package shipped."""

from __future__ import annotations

import pytest

from tests.datasource.drill import RECORDS, drill

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.long
@pytest.mark.parametrize("by_tunnel", [False, True], ids=["stream", "tunnel"])
def test_a_query_survives_a_kill(by_tunnel: bool) -> None:
    """By ``kill -9`` of driver, Java and workers at once; then every change is compared with the stream's."""
    with drill(1, on_cluster=False, by_tunnel=by_tunnel) as made:
        made.is_killed = lambda number: True

        assert made.restart(0) == "kill -9"
        assert made.compare() == 3 * RECORDS


@pytest.mark.long
def test_a_standalone_cluster_finds_the_source_by_its_name() -> None:
    """Nothing registers it; the driver has the package on its path, and the executors get it shipped."""
    with drill(3, on_cluster=True, is_found=True) as made:
        made.driver.ask("write", "written (200, 39800, 200)")

        assert made.restart(0) == "in order"
        assert made.compare() == 3 * RECORDS


@pytest.mark.long
def test_a_standalone_cluster_runs_what_is_shipped_to_it() -> None:
    """Master, workers and executors are processes of their own, which have the package from the driver alone.

    They run the source through a restart, the writer, the reader, and a transform of changes.
    """
    with drill(2, on_cluster=True) as made:
        made.driver.ask("write", "written (200, 39800, 200)")
        made.driver.ask("transform", "transformed (200, 39800, True)")

        assert made.restart(0) == "in order"
        assert made.compare() == 3 * RECORDS
