"""Tests in a process of their own: those that fork.

A process that has run hundreds of others has their threads, whose locks a child may meet held, and all addresses that
libraries have reserved. Linux refuses a fork that would copy one mapping larger than the machine's memory.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[1]


def run_tests_of(file: Path) -> str:
    """Run all tests of a file; returns what pytest printed, and fails with it if one failed or there was none."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(file)]
    # Longer than the wait of a test in there, which then says what it waited for.
    seconds = 2 * PATIENCE_SECONDS
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
    return done.stdout
