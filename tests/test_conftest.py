"""What holds for every test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import together
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[1]

LOGS_A_FILE_NAME = r"""
import logging

def test_log():
    logging.error("caf\udce9.txt")
    assert not "caf\udce9.txt"

def test_next():
    pass
"""


LOGS_AS_SPARK_DOES = """
import logging, pytest
from pyspark.logger import PySparkLogger

def log(name):
    logger = PySparkLogger.getLogger(name)
    logger.propagate = False
    logger.error("an error of Spark")

@pytest.fixture
def logged_before():
    log("setup")

def test_before(logged_before, caplog):
    logging.error("an ordinary line")
    assert caplog.text.startswith("ERROR ")
    log("call")

def test_next(caplog):
    logging.error("an ordinary line")
    assert caplog.text.startswith("ERROR ")
"""


def run(suite: str, folder: Path) -> str:
    """What pytest prints of tests of its own, run by another process, beside the conftest of this folder."""
    program = folder / "test_suite.py"
    program.write_text(suite)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "1", "-c", "/dev/null", "-p", "tests.conftest", str(program)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    return done.stdout


def test_what_utf8_has_no_bytes_for_reaches_the_process_that_reports(tmp_path: Path) -> None:
    printed = run(LOGS_A_FILE_NAME, tmp_path)

    assert "1 failed, 1 passed" in printed
    assert "test_suite.py:5 caf\\udce9.txt" in printed


def test_loggers_of_spark_leave_those_of_the_tests_alone(tmp_path: Path) -> None:
    printed = run(LOGS_AS_SPARK_DOES, tmp_path)

    assert "2 passed" in printed, printed


def test_cases_of_a_table_and_drills_are_spread_and_others_stay_with_their_file() -> None:
    case = "tests/hostile/test_hostile_cases.py::test_nothing_is_lost[worker: cut head at GetRow, MD5 over http, once]"

    assert together(case) == "tests/hostile/test_hostile_cases.py::test_nothing_is_lost[worker"
    assert together("tests/mirror/test_mirror.py::test_it[a: b]") == "tests/mirror/test_mirror.py"
    assert together("tests/a/test_a_drill.py::test_it[one]") != together("tests/a/test_a_drill.py::test_it[two]")
    assert together("tests/a/test_spark_flow.py::test_it") == together("tests/b/test_spark_fold.py::test_it")
