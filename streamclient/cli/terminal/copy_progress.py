"""The common parts of commands that copy tables: options, the end by a signal, the output of a comparison."""

from __future__ import annotations

import argparse
import math
import signal
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

from streamclient.base.interrupts import ENDING_SIGNALS
from streamclient.cli.terminal.commands import EXIT_DONE, EXIT_REFUSED
from streamclient.cli.terminal.output import complain, print_json_line, print_text
from streamclient.errors import DependencyException

Answer = TypeVar("Answer")

SHOWN_DIFFERENCES = 100
"""The largest number of differences that ``--verify`` prints without ``--all``. Further differences are only
counted."""

EXIT_DIFFERENT = 3
"""The exit code of a comparison that was carried out and found rows that differ."""

LOOK_SECONDS = 0.2
"""The time, in seconds, between two checks of the progress and of signals. A person notices no delay, and the checks
cost little."""


def add_copy_options(parser: argparse.ArgumentParser, configuration: str) -> None:
    """Add the options of a command that copies; ``configuration`` describes the configuration file in ``--help``."""
    parser.add_argument("configuration", type=Path, help=configuration)
    parser.add_argument("--verify", action="store_true", help="only compare source and destination, row by row")
    parser.add_argument("--all", action="store_true", help="with --verify: print every difference")
    parser.add_argument("--check", action="store_true", help="only check the configuration; nothing is called")
    parser.add_argument("--json", action="store_true", help="one JSON object at the end, for programs")
    parser.set_defaults(unread=EXIT_REFUSED)  # if the output is no longer read, the copy or comparison is incomplete


def say_valid(options: argparse.Namespace) -> int:
    """Print for ``--check`` that the configuration is valid; return the exit code."""
    if options.json:
        print_json_line({"valid": True})
    else:
        print_text("the configuration is valid")
    return EXIT_DONE


def run_until_signal(
    name: str, work: Callable[[], Answer], stop: Callable[[], object], look: Callable[[], object]
) -> tuple[Future[Answer], int | None]:
    """Run ``work`` in a thread called ``name``; call ``look`` meanwhile, and ``stop`` at a signal or at the work's end.

    Return the future of the work, and the exit code of the first signal, or ``None`` without a signal. Only the main
    thread, which gets the signals, may call this function. Afterwards the former handlers are restored.
    """
    stopped_by: list[int] = []
    # An ignored signal stays ignored, as under nohup and in background jobs of some shells.
    before = {number: handler for number in ENDING_SIGNALS if (handler := signal.getsignal(number)) != signal.SIG_IGN}
    for number in before:
        signal.signal(number, lambda number, _: stopped_by.append(number))
    try:
        with ThreadPoolExecutor(1, thread_name_prefix=name) as pool:
            running = pool.submit(work)
            try:
                while not wait([running], timeout=LOOK_SECONDS).done and not stopped_by:
                    look()
            finally:
                stop()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return running, 128 + stopped_by[0] if stopped_by else None  # the exit code that shells give for the signal


def call_given_up(error: BaseException | None, exit_code: int | None) -> str:
    """Return words about a call that was given up because a signal came; empty if ``error`` is of another kind.

    In an outage a call is repeated until the signal. The last failure of the call is then no failure of the copy, which
    goes on at the next run. ``exit_code`` is the exit code of the signal, or ``None`` without a signal.
    """
    is_given_up = exit_code is not None and isinstance(error, DependencyException) and error.retriable
    return f" (the service did not answer: {error})" if is_given_up else ""


class ShownDifferences:
    """A printer of the differences that ``--verify`` finds: the first ``SHOWN_DIFFERENCES``, or all with ``--all``."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.say = complain if options.json else print_text
        self._most = math.inf if options.all else SHOWN_DIFFERENCES
        self._shown = 0

    @property
    def is_full(self) -> bool:
        """Whether as many differences were printed as are allowed, so that further differences are only counted."""
        return self._shown >= self._most

    def show(self, difference: object) -> None:
        """Print the difference, unless ``is_full``."""
        if not self.is_full:
            self._shown += 1
            self.say(str(difference))

    def end(self, count: int) -> None:
        """Print how many of ``count`` differences were not printed, if any."""
        if count > self._shown:
            self.say(f"... and {count - self._shown} more{'; --all prints every one' if self.is_full else ''}")
