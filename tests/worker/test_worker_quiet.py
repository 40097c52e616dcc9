"""What a program does not read in its log."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from streamclient.base.outages import REPEAT_SECONDS, OutageLog

ROOT = Path(__file__).resolve().parents[2]


def test_importing_the_sdk_through_the_package_prints_nothing(tmp_path: Path) -> None:
    program = "from streamclient import TablestoreStreamApi, Worker, LeaseManager\nimport tablestore\n"
    loud = "import logging; logging.basicConfig(level=logging.DEBUG)\n"
    for code in (program, loud + program):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT)},
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "")
        assert "Native C++" not in done.stderr


def test_an_outage_is_said_once_a_minute_with_what_was_left_out(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    outages = OutageLog(logging.getLogger("test.outages"), monotonic=lambda: now[0])
    with caplog.at_level(logging.INFO, "test.outages"):
        for second in range(int(REPEAT_SECONDS) + 1):
            now[0] = float(second)
            outages.log(logging.WARNING, "busy", "shard %s: reading failed", second)
        outages.log(logging.WARNING, "no connection", "shard %s: another trouble", 1)

    assert [record.getMessage() for record in caplog.records] == [
        "shard 0: reading failed",
        "shard 60: reading failed (59 more like this were left out)",
        "shard 1: another trouble",
    ]


def test_what_is_left_out_can_be_read_at_the_level_of_debugging(caplog: pytest.LogCaptureFixture) -> None:
    outages = OutageLog(logging.getLogger("test.outages"), monotonic=lambda: 0.0)
    with caplog.at_level(logging.DEBUG, "test.outages"):
        outages.log(logging.WARNING, "busy", "one")
        outages.log(logging.WARNING, "busy", "two")

    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "one"),
        ("DEBUG", "two"),
    ]
