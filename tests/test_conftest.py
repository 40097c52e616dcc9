"""What holds for every test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def test_what_utf8_has_no_bytes_for_reaches_the_process_that_reports(tmp_path: Path) -> None:
    suite = tmp_path / "test_suite.py"
    suite.write_text(LOGS_A_FILE_NAME)
    command = [sys.executable, "-m", "pytest", "-n", "1", "-c", "/dev/null", "-p", "tests.conftest", str(suite)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )

    assert "1 failed, 1 passed" in done.stdout
    assert "test_suite.py:5 caf\\udce9.txt" in done.stdout
