"""``streamclient replicate``: copy a table as a configuration file says."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import threading
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from streamclient.errors import ConfigurationError, StreamClientError

SHOWN_DIFFERENCES = 100
"""Differences printed by ``--verify`` unless ``--all`` is given; all are counted."""

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
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Carry out the subcommand; its exit code."""
    from streamclient.replicate.settings import load_settings  # noqa: PLC0415  # the SDK takes a third of a second
    from streamclient.wire.sdk_logging import SILENT  # noqa: PLC0415

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger(SILENT.name).setLevel(logging.CRITICAL)
    try:
        settings = load_settings(options.configuration, os.environ)
        if options.check:
            print("the configuration is valid")
            return 0
        return _verify(settings, options) if options.verify else _replicate(settings, options)
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2
    except StreamClientError as error:
        print(f"replication failed: {error}", file=sys.stderr)
        return 1


def _replicate(settings: Any, options: argparse.Namespace) -> int:
    from streamclient.replicate.run import POLL_SECONDS, Replication  # noqa: PLC0415

    stop = threading.Event()
    stopped_by: list[int] = []

    def end_in_order(number: int, _: object) -> None:
        stopped_by.append(number)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end_in_order)
    end = settings.end_time_micros
    if end is not None and end <= time.time_ns() // 1_000:
        print("endTime is past: changes after it are not copied, but full data is read as it is now")
    replication = Replication(settings, print, _Line(), stop, options.poll_seconds or POLL_SECONDS)
    outcome = replication.run()
    if options.json:
        error = None if outcome.error is None else str(outcome.error)
        print(
            json.dumps(
                {
                    "complete": outcome.is_complete,
                    "rows": outcome.rows,
                    "refused_rows": outcome.refused_rows,
                    "error": error,
                }
            )
        )
    if outcome.error is not None:
        print(f"replication ended: {outcome.error}", file=sys.stderr)
        return 1
    state = "complete" if outcome.is_complete else "stopped; run again to go on"
    print(f"replication {state}: {outcome.rows} rows written, {outcome.refused_rows} refused")
    if stopped_by and not outcome.is_complete:
        return 128 + stopped_by[0]  # as shells and container runtimes say it
    return 1 if outcome.refused_rows else 0


class _Line:
    """A line that is written over on a terminal, and appended elsewhere when it says something new."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._last = ""

    def __call__(self, text: str) -> None:
        if self._is_terminal:
            print(f"\r\x1b[K{text}", end="", flush=True)
        elif text != self._last:
            stamp = datetime.now(timezone.utc).strftime("%H:%M:%S")
            print(f"{stamp}  {text}", flush=True)
        self._last = text


def _verify(settings: Any, options: argparse.Namespace) -> int:
    from streamclient.replicate.run import client_for  # noqa: PLC0415
    from streamclient.replicate.verify import compare_tables  # noqa: PLC0415

    rows = 0

    def progress(count: int) -> None:
        nonlocal rows
        rows = count

    differences = 0
    source, destination = settings.reader.table_name, settings.writer.table_name
    for difference in compare_tables(
        client_for(settings.reader), source, client_for(settings.writer), destination, progress
    ):
        differences += 1
        if options.all or differences <= SHOWN_DIFFERENCES:
            print(difference)
    if differences > SHOWN_DIFFERENCES and not options.all:
        print(f"... and {differences - SHOWN_DIFFERENCES} more; --all prints every one")
    if options.json:
        print(json.dumps({"rows": rows, "differences": differences}))
    else:
        print(f"compared {rows} rows: {differences or 'no'} differences")
    return EXIT_DIFFERENT if differences else 0
