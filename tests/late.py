"""Runs all tests with threads that come late: ``make test-late``.

On a machine that has time, a thread that is started has begun a moment later, and a test that counts on it passes for
years. Here some threads, calls in pools and threads that were waited for go on late, by chance, in the processes that
tests start, too. Each did begin, and will end: no test may see a difference.

usage: python -m tests.late [--share S] [--seconds S] [what pytest takes]
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import FrameType
from typing import Any

WAKING = 0.1
"""Of the share, for ends of waiting: there are many more of them."""

TAKING_TURNS = "streamclient.testing.simulation"
"""Where threads run one at a time, and so many that late ones would only take hours."""

CALLERS = 5
"""From a wait up to whoever asked for it, through ``Thread.start`` and ``Event.wait``."""

EVERY_PROCESS = """
import importlib.util
spec = importlib.util.spec_from_file_location("late", {file!r})
late = importlib.util.module_from_spec(spec)
spec.loader.exec_module(late)
late.come_late({share}, {seconds})
"""


def come_late(share: float, seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
    """From now on, in this process, such a share of all beginnings comes up to so many seconds late."""
    dice = random.Random(os.urandom(8))

    def come(chance: float) -> None:
        if dice.random() < chance and not _takes_turns():
            sleep(dice.random() * seconds)

    start, wait, running = threading.Thread.start, threading.Condition.wait, Future.set_running_or_notify_cancel

    def start_late(thread: threading.Thread) -> None:
        work, takes_turns = thread.run, _takes_turns()

        def run() -> None:
            come(0.0 if takes_turns else share)
            work()

        thread.run = run  # type: ignore[method-assign]
        start(thread)

    def wait_late(condition: threading.Condition, timeout: float | None = None) -> bool:
        is_told = wait(condition, timeout)
        come(share * WAKING)
        return is_told

    def running_late(future: Future[Any]) -> bool:
        come(share)
        return running(future)

    threading.Thread.start = start_late  # type: ignore[assignment, method-assign]
    threading.Condition.wait = wait_late  # type: ignore[assignment, method-assign]
    Future.set_running_or_notify_cancel = running_late  # type: ignore[assignment, method-assign]


def _takes_turns() -> bool:
    """Whether it is a simulation that starts a thread, or waits for one."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(CALLERS):
        if frame is None:
            return False
        if frame.f_globals.get("__name__", "").startswith(TAKING_TURNS):
            return True
        frame = frame.f_back
    return False


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.late", description="Run tests with threads that come late.")
    parser.add_argument("--share", type=float, default=0.3)
    parser.add_argument("--seconds", type=float, default=0.5)
    options, words = parser.parse_known_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        every = EVERY_PROCESS.format(file=__file__, share=options.share, seconds=options.seconds)
        (Path(directory) / "sitecustomize.py").write_text(every, encoding="utf-8")
        paths = [directory, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        return subprocess.run([sys.executable, "-m", "pytest", *words], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
