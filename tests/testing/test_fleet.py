"""Processes of a fleet stop, freeze and die as they are told."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from streamclient.testing.fleet import Fleet
from tests.patience import PATIENCE_SECONDS, until

TICKING = """
import signal, sys, threading
stopped, pause = [], threading.Event()
signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
with open(sys.argv[1], "a") as ticks:
    while not stopped:
        pause.wait(0.01)
        ticks.write(".")
        ticks.flush()
"""
"""The handler sets no event: one that interrupts the wait for the same event would wait for itself."""


def wait_for_growth(path: Path) -> None:
    size = path.stat().st_size if path.exists() else 0
    until(lambda: path.exists() and path.stat().st_size != size, f"{path} grows")


@pytest.mark.slow
def test_frozen_process_does_nothing_until_it_is_thawed(tmp_path: Path) -> None:
    ticks = tmp_path / "ticks"
    with Fleet(tmp_path) as fleet:
        process = fleet.start("a", ["-c", TICKING, str(ticks)])
        wait_for_growth(ticks)
        process.freeze()
        threading.Event().wait(0.05)
        size = ticks.stat().st_size
        threading.Event().wait(0.1)
        assert (ticks.stat().st_size, process.is_running, process.is_frozen) == (size, True, True)

        process.thaw()
        wait_for_growth(ticks)
        process.ask_to_stop()

        assert (process.wait(PATIENCE_SECONDS), process.is_stopping) == (0, True)


@pytest.mark.slow
def test_frozen_process_does_not_outlive_its_fleet(tmp_path: Path) -> None:
    with Fleet(tmp_path) as fleet:
        process = fleet.start("a", ["-c", TICKING, str(tmp_path / "ticks")])
        wait_for_growth(tmp_path / "ticks")
        process.freeze()

    assert process.exit_code == -9
