"""The session of those who bring none: who starts it, who stops it, and which Python it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamclient.spark.session import SharedSession, running_session
from tests.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.spark, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import sys
from streamclient.spark import SparkRecordProcessorFactory
from streamclient.spark.session import running_session

first, second = [SparkRecordProcessorFactory(lambda frame, context: None) for _ in range(2)]
first.create_processor()
second.create_processor()
first.close()
first.close()
session = running_session()
print("rows", session.range(3).count())
print("python", session.sparkContext.parallelize([1], 1).map(lambda _: sys.executable).collect()[0])
second.close()
print("running", running_session())
"""


def run(program: str = PROGRAM, **environment: str) -> dict[str, str]:
    """What a program prints, in a process whose Spark nobody has started yet."""
    known = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**known, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


def test_the_last_factory_to_close_stops_the_session_and_its_workers_run_the_same_python() -> None:
    printed = run()

    assert (printed["rows"], printed["running"]) == ("3", "None")
    assert os.path.realpath(printed["python"]) == os.path.realpath(sys.executable)


def test_a_python_that_the_environment_names_runs_the_workers(tmp_path: Path) -> None:
    other = tmp_path / "python-of-the-environment"
    other.write_text(f'#!/bin/sh\nexport STARTED_BY="$0"\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    program = PROGRAM.replace("sys.executable)", "__import__('os').environ['STARTED_BY'])")

    assert run(program, PYSPARK_PYTHON=str(other))["python"] == str(other)


def test_a_session_that_ran_before_is_never_stopped(spark: object) -> None:
    shared = SharedSession()
    assert shared.hold() is shared.hold()
    shared.release()
    shared.release()

    assert running_session() is not None
    assert spark.range(3).count() == 3  # type: ignore[attr-defined]
