"""What commands that copy a table into another share: options, an end by a signal, what a comparison prints."""

from __future__ import annotations

import argparse
import math
import signal
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

from streamclient.cli.terminal.commands import EXIT_DONE, EXIT_REFUSED
from streamclient.cli.terminal.output import complain, print_json_line, print_text

Answer = TypeVar("Answer")

SHOWN_DIFFERENCES = 100
"""Differences printed by ``--verify`` unless ``--all`` is given; all are counted."""

EXIT_DIFFERENT = 3
"""The comparison was carried out, and rows differ."""

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What ends a copy in order."""

LOOK_SECONDS = 0.2
"""Between two looks at what is to be shown, and at whether a signal came: little for a person, and no load."""


def add_copy_options(parser: argparse.ArgumentParser, configuration: str) -> None:
    """The configuration file, described so, and what may be done with it."""
    parser.add_argument("configuration", type=Path, help=configuration)
    parser.add_argument("--verify", action="store_true", help="only compare source and destination, row by row")
    parser.add_argument("--all", action="store_true", help="with --verify: print every difference")
    parser.add_argument("--check", action="store_true", help="only check the configuration; nothing is called")
    parser.add_argument("--json", action="store_true", help="one JSON object at the end, for programs")
    parser.set_defaults(unread=EXIT_REFUSED)  # neither a copy nor a comparison is done then


def say_valid(options: argparse.Namespace) -> int:
    """Answer ``--check``; its exit code."""
    if options.json:
        print_json_line({"valid": True})
    else:
        print_text("the configuration is valid")
    return EXIT_DONE


def run_until_signal(
    name: str, work: Callable[[], Answer], stop: Callable[[], object], look: Callable[[], object]
) -> tuple[Future[Answer], int | None]:
    """Run the work in a thread of this name, ``look`` meanwhile, and ``stop`` it once a signal comes or it has ended.

    Main thread only: it gets the signals, and so it waits for nothing that a handler would have to set. Gives how the
    work ended, and the exit code of the signal if there was one. Who handled the signals before does so again.
    """
    stopped_by: list[int] = []
    # One that is ignored stays so: nohup asks for that, and a shell for what runs in its background.
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
    return running, 128 + stopped_by[0] if stopped_by else None  # as shells and container runtimes say it


class ShownDifferences:
    """The differences that a comparison finds, as ``--verify`` prints them: the first ones, or with ``--all`` each."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.say = complain if options.json else print_text
        self._most = math.inf if options.all else SHOWN_DIFFERENCES
        self._shown = 0

    @property
    def is_full(self) -> bool:
        """Whether further ones are only counted."""
        return self._shown >= self._most

    def show(self, difference: object) -> None:
        """Print it, unless enough are printed."""
        if not self.is_full:
            self._shown += 1
            self.say(str(difference))

    def end(self, count: int) -> None:
        """Say how many of so many were not printed."""
        if count > self._shown:
            self.say(f"... and {count - self._shown} more{'; --all prints every one' if self.is_full else ''}")
