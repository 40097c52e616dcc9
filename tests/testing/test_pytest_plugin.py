"""The plug-ins, in a pytest of its own, which finds them as every installed pytest does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_SECONDS

TESTS = """
from streamclient.server import Fail, FaultRule, LocalTablestore

endpoints = set()


def fill(local: LocalTablestore) -> None:
    endpoints.add(local.endpoint)
    client = local.client()
    assert client.list_table() == ()
    assert local.faults() == ()
    from streamclient.tablestore import StreamSpecification, TablestoreStreamApi
    from tablestore import CapacityUnit, ReservedThroughput, TableMeta, TableOptions

    meta, throughput = TableMeta("orders", [("id", "STRING")]), ReservedThroughput(CapacityUnit(0, 0))
    TablestoreStreamApi(client).create_table(meta, TableOptions(), throughput, stream=StreamSpecification(True, 24))
    local.put("orders", id="a", amount=12)
    assert client.get_row("orders", [("id", "a")])[1] is not None
    local.add_fault(FaultRule("*", Fail("OTSServerBusy")))


def test_one(local_tablestore):
    fill(local_tablestore)


def test_a_failing_one(local_tablestore):
    fill(local_tablestore)
    raise OSError("the user's test fails")


def test_another(local_tablestore):
    fill(local_tablestore)


def test_the_server_is_the_same():
    assert len(endpoints) == 1
"""

UNUSED = """
import sys


def test_nothing_is_loaded_that_no_test_asks_for():
    assert "streamclient.server.local" not in sys.modules
    assert "streamclient.worker.shard_consumer" not in sys.modules
"""


SIMULATED = """
import pytest
from streamclient import IRecordProcessor
from streamclient.testing import SimulationFailed


class Full(IRecordProcessor):
    def initialize(self, given): ...
    def shutdown(self, given): ...
    def process_records(self, given):
        raise OSError("the disk is full")


def test_it(stream_simulation):
    with pytest.raises(SimulationFailed) as failure:
        stream_simulation.run(Full, workers=1, shards=1, records=5, keys=1)
    print(failure.value)
    raise OSError("shown")
"""


def run_pytest(folder: Path, program: str, *options: str) -> str:
    (folder / "test_mine.py").write_text(program)
    # The SDK warns on every Python for which it has no native codec.
    warnings = ["-W", "error", "-W", "ignore:OTS C++ SDK:ImportWarning"]
    command = [sys.executable, "-m", "pytest", *warnings, "-p", "no:cacheprovider", "-q", "test_mine.py", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_each_test_gets_the_one_server_empty(tmp_path: Path) -> None:
    printed = run_pytest(tmp_path, TESTS)

    assert "1 failed, 3 passed" in printed
    assert "the user's test fails" in printed


@pytest.mark.slow
def test_the_plug_in_costs_nothing_until_a_test_asks(tmp_path: Path) -> None:
    assert "1 passed" in run_pytest(tmp_path, UNUSED)


@pytest.mark.slow
def test_a_failed_simulation_leaves_a_page_if_asked(tmp_path: Path) -> None:
    printed = run_pytest(tmp_path, SIMULATED, "--simulation-page", "pages")
    (page,) = (tmp_path / "pages").iterdir()

    assert page.name == "test_mine.py-test_it-seed-0.html"
    assert f"its page: {Path('pages', page.name)}" in printed
    assert '"law":"nothing is lost"' in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_failed_simulation_leaves_nothing_unasked_and_tells_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert "its page" not in run_pytest(tmp_path, SIMULATED)
    assert "its page could not be written to file" in run_pytest(tmp_path, SIMULATED, "--simulation-page", "file")
