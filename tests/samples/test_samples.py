"""Every sample runs, as its documentation says it does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streamclient.server import LocalTablestore
from streamclient.testing.contracts import check_lease_manager

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@contextmanager
def served() -> Iterator[str]:
    """A ``streamclient server`` of its own, as the README starts it, but on any free port; yields the endpoint."""
    command = [sys.executable, "-m", "streamclient.cli", "server", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        assert first.startswith("listening on http://"), first
        yield first.split()[-1]
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()
    assert process.returncode == 0


def run(arguments: list[str], *, endpoint: str | None = None, seconds: float = 120) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if endpoint is not None:
        environment["TABLESTORE_ENDPOINT"] = endpoint
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=seconds,
        cwd=ROOT,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def readme_blocks(language: str) -> list[str]:
    return [body for found, body in BLOCK.findall((ROOT / "README.md").read_text()) if found == language]


def printed_as(expected: str, actual: str) -> bool:
    pattern = ".*?".join(re.escape(part) for part in expected.strip().split("..."))
    return re.fullmatch(pattern, actual.strip(), re.DOTALL) is not None


@pytest.mark.slow
def test_console_sample_prints_what_the_readme_shows() -> None:
    shown = next(block for block in readme_blocks("text") if "worker1 reads from" in block)
    with served() as endpoint:
        actual = run(["samples/console.py"], endpoint=endpoint)

    assert printed_as(shown, actual), actual


def test_the_readme_shows_the_console_sample_itself() -> None:
    source = (ROOT / "samples" / "console.py").read_text()
    shown = next(block for block in readme_blocks("python") if "class RecordProcessor(" in block)

    assert shown.strip() in source


@pytest.mark.slow
def test_several_workers_share_a_table() -> None:
    assert run(["-m", "samples.several_workers"]).startswith("400 records")


@pytest.mark.slow
def test_sample_lease_manager_keeps_the_contract(tmp_path: Path) -> None:
    from samples.lease_manager import SqliteLeaseManager

    made: list[SqliteLeaseManager] = []

    def make(stream_id: str) -> SqliteLeaseManager:
        manager = SqliteLeaseManager(tmp_path / f"{len(made)}.sqlite")
        manager.create_lease_table_if_not_exists()
        made.append(manager)
        return manager

    check_lease_manager(make)
    for manager in made:
        manager.close()


@pytest.mark.slow
@pytest.mark.spark
def test_spark_sample_leaves_a_lake_that_equals_the_table(tmp_path: Path) -> None:
    with LocalTablestore() as local:
        output = run(["samples/spark_lake.py", str(tmp_path / "lake")], endpoint=local.endpoint, seconds=240)

    assert "lake and table are equal: True" in output
