"""``streamclient replicate``: copy a table as a configuration file says."""

from __future__ import annotations

import argparse
import logging
import math
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from streamclient.errors import ConfigurationError, StreamClientError
from streamclient.terminal.output import ProgressLine, complain, print_json_line, print_text
from streamclient.terminal.running import EXIT_DONE, EXIT_REFUSED, CommandFailed, runs

SHOWN_DIFFERENCES = 100
"""Differences printed by ``--verify`` unless ``--all`` is given; all are counted."""

VERIFY_PROGRESS_SECONDS = 1.0
"""Between two changes of the progress line: often enough to be seen moving."""

EXIT_DIFFERENT = 3


def add_command(commands: Any) -> None:
    """Add the subcommand to the command line."""
    parser = commands.add_parser(
        "replicate",
        help="copy a table: what is there, then what changes",
        description="Copy one table into another: what is there, then what changes, until endTime or for ever. "
        "Run again after any stop: it goes on where it was.",
    )
    parser.add_argument("configuration", type=Path, help="JSON or TOML with the objects ots-reader and ots-writer")
    parser.add_argument("--verify", action="store_true", help="only compare source and destination, row by row")
    parser.add_argument("--all", action="store_true", help="with --verify: print every difference")
    parser.add_argument("--check", action="store_true", help="only check the configuration; nothing is called")
    parser.add_argument("--json", action="store_true", help="one JSON object at the end, for programs")
    parser.add_argument("--poll-seconds", type=float, default=None, help=argparse.SUPPRESS)
    runs(parser, run)


def run(options: argparse.Namespace) -> int:
    """Carry out the subcommand; its exit code."""
    from streamclient.replicate.settings import load_settings  # noqa: PLC0415  # the SDK takes a third of a second
    from streamclient.wire.sdk_logging import SILENT  # noqa: PLC0415

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger(SILENT.name).setLevel(logging.CRITICAL)
    settings = load_settings(options.configuration, os.environ)
    if options.check:
        if options.json:
            print_json_line({"valid": True})
        else:
            print_text("the configuration is valid")
        return EXIT_DONE
    return _verify(settings, options) if options.verify else _replicate(settings, options)


def _replicate(settings: Any, options: argparse.Namespace) -> int:
    from streamclient.replicate.run import POLL_SECONDS, Outcome, Replication  # noqa: PLC0415

    stop = threading.Event()
    stopped_by: list[int] = []

    def end_in_order(number: int, _: object) -> None:
        stopped_by.append(number)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end_in_order)
    line = _line(options)
    end = settings.end_time_micros
    if end is not None and end <= time.time_ns() // 1_000:
        line.say("endTime is past: changes after it are not copied, but full data is read as it is now")
    try:
        outcome = Replication(settings, line.say, line.show, stop, options.poll_seconds or POLL_SECONDS).run()
    except ConfigurationError:
        raise
    except StreamClientError as failure:
        outcome = Outcome(is_complete=False, rows=0, refused_rows=0, error=failure)  # before anything was copied
    finally:
        line.close()
    if options.json:
        error = None if outcome.error is None else str(outcome.error)
        counts = {"rows": outcome.rows, "refused_rows": outcome.refused_rows}
        print_json_line({"complete": outcome.is_complete, **counts, "error": error})
    if outcome.error is not None:
        raise CommandFailed(f"ended: {outcome.error}", EXIT_REFUSED)
    if not options.json:
        state = "complete" if outcome.is_complete else "stopped; run again to go on"
        print_text(f"replication {state}: {outcome.rows} rows written, {outcome.refused_rows} refused")
    if stopped_by and not outcome.is_complete:
        return 128 + stopped_by[0]  # as shells and container runtimes say it
    return EXIT_REFUSED if outcome.refused_rows else EXIT_DONE


def _line(options: argparse.Namespace) -> ProgressLine:
    """For people; beside a document for programs it goes to standard error."""
    return ProgressLine(sys.stderr if options.json else sys.stdout)


class _Comparison:
    """What a comparison has found so far, and says on standard error while it goes on."""

    def __init__(self) -> None:
        self.rows = self.differences = 0
        self.line = ProgressLine(sys.stderr)
        self._told_at = -math.inf

    def went_on(self, rows: int) -> None:
        """So many rows were compared; tells it if it was not told lately."""
        self.rows = rows
        if time.monotonic() - self._told_at >= VERIFY_PROGRESS_SECONDS:
            self._told_at = time.monotonic()
            self.line.show(f"comparing  {rows} rows  {self.differences or 'no'} differences so far")


def _verify(settings: Any, options: argparse.Namespace) -> int:
    from streamclient.replicate.run import client_for  # noqa: PLC0415
    from streamclient.replicate.verify import compare_tables  # noqa: PLC0415

    source, destination = settings.reader, settings.writer
    tables = (client_for(source), source.table_name, client_for(destination), destination.table_name)
    found, say = _Comparison(), complain if options.json else print_text
    error: StreamClientError | None = None
    found.went_on(0)
    try:
        for difference in compare_tables(*tables, found.went_on):
            found.differences += 1
            if options.all or found.differences <= SHOWN_DIFFERENCES:
                found.line.erase()
                say(str(difference))
    except ConfigurationError:
        raise
    except StreamClientError as ended:
        error = ended
    finally:
        found.line.erase()
    if found.differences > SHOWN_DIFFERENCES and not options.all:
        say(f"... and {found.differences - SHOWN_DIFFERENCES} more; --all prints every one")
    if options.json:
        reason = None if error is None else str(error)
        print_json_line({"rows": found.rows, "differences": found.differences, "error": reason})
    if error is not None:
        raise CommandFailed(f"ended after {found.rows} rows: {error}", EXIT_REFUSED)
    if not options.json:
        print_text(f"compared {found.rows} rows: {found.differences or 'no'} differences")
    return EXIT_DIFFERENT if found.differences else EXIT_DONE
