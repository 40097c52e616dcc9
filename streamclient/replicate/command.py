"""``streamclient replicate``: copy a table as a configuration file says."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from streamclient.errors import ConfigurationError, StreamClientError
from streamclient.terminal.output import ProgressLine, print_json_line, print_text
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
        print("the configuration is valid")
        return EXIT_DONE
    try:
        return _verify(settings, options) if options.verify else _replicate(settings, options)
    except ConfigurationError:
        raise
    except StreamClientError as error:
        raise CommandFailed(str(error), EXIT_REFUSED) from error


def _replicate(settings: Any, options: argparse.Namespace) -> int:
    from streamclient.replicate.run import POLL_SECONDS, Replication  # noqa: PLC0415

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


def _verify(settings: Any, options: argparse.Namespace) -> int:
    from streamclient.replicate.run import client_for  # noqa: PLC0415
    from streamclient.replicate.verify import compare_tables  # noqa: PLC0415

    rows, differences, line = 0, 0, _line(options)
    shown = time.monotonic()

    def progress(count: int) -> None:
        nonlocal rows, shown
        rows = count
        if time.monotonic() - shown >= VERIFY_PROGRESS_SECONDS:
            shown = time.monotonic()
            line.show(f"compared {rows} rows: {differences or 'no'} differences")

    source, destination = settings.reader, settings.writer
    tables = (client_for(source), source.table_name, client_for(destination), destination.table_name)
    try:
        for difference in compare_tables(*tables, progress):
            differences += 1
            if options.all or differences <= SHOWN_DIFFERENCES:
                line.say(str(difference))
    finally:
        line.close()
    if differences > SHOWN_DIFFERENCES and not options.all:
        line.say(f"... and {differences - SHOWN_DIFFERENCES} more; --all prints every one")
    if options.json:
        print_json_line({"rows": rows, "differences": differences})
    else:
        print_text(f"compared {rows} rows: {differences or 'no'} differences")
    return EXIT_DIFFERENT if differences else EXIT_DONE
