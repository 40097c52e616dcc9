"""Tests in a process of their own: one that has run hundreds of others may have grown too large for a fork."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[1]


def run_tests_of(file: Path) -> str:
    """Run all tests of a file; returns what pytest printed, and fails with it if one failed or there was none."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
    return done.stdout
