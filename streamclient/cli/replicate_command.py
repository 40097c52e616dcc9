"""``streamclient replicate``: copy a table into another table, as a configuration file describes."""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
import time
from typing import Any

from streamclient.base.reasons import counted
from streamclient.base.times import now_micros
from streamclient.cli.terminal.commands import EXIT_DONE, EXIT_REFUSED, CommandFailed, runs
from streamclient.cli.terminal.copy_progress import (
    EXIT_DIFFERENT,
    ShownDifferences,
    add_copy_options,
    call_given_up,
    run_until_signal,
    say_valid,
)
from streamclient.cli.terminal.output import ProgressLine, log_to_terminal, print_json_line, print_text
from streamclient.errors import StreamClientError

VERIFY_PROGRESS_SECONDS = 1.0
"""The time, in seconds, between two updates of the progress line. A person still sees the line move."""


def add_command(commands: Any) -> None:
    """Register the subcommand ``replicate``."""
    parser = commands.add_parser(
        "replicate",
        help="copy a table: its rows, then its changes",
        description="Copy one table into another: its rows, then its changes, until endTime or for ever. "
        "Run again after any stop: it goes on where it was.",
    )
    add_copy_options(parser, "JSON or TOML with the objects ots-reader and ots-writer")
    parser.add_argument("--poll-seconds", type=float, default=None, help=argparse.SUPPRESS)
    runs(parser, run)


def run(options: argparse.Namespace) -> int:
    """Check the configuration, compare the tables, or copy until a signal comes; return the exit code."""
    from streamclient.copying.replication_settings import load_settings  # noqa: PLC0415  # the SDK takes a third of a second
    from streamclient.wire.sdk_logging import SILENT  # noqa: PLC0415

    log_to_terminal(logging.WARNING)
    logging.getLogger(SILENT.name).setLevel(logging.CRITICAL)
    settings = load_settings(options.configuration, os.environ)
    if options.check:
        return say_valid(options)
    return _verify(settings, options) if options.verify else _replicate(settings, options)


def _replicate(settings: Any, options: argparse.Namespace) -> int:
    from streamclient.copying.replication import (  # noqa: PLC0415
        POLL_SECONDS,
        PoisonFile,
        Replication,
        ReplicationOutcome,
    )
    from streamclient.copying.replication_settings import PoisonRow  # noqa: PLC0415

    if settings.poison_row is PoisonRow.SKIP and settings.poison_file is not None:
        PoisonFile(settings.poison_file).make()  # here, because a wrong setting has another exit code than a failed run
    exit_code: int | None = None
    line = ProgressLine(sys.stderr if options.json else sys.stdout)  # with --json, stdout has only the document
    end = settings.end_time_micros
    if end is not None and end <= now_micros():
        line.say("endTime is past: changes after it are not copied, but full data is read as it is now")
    try:
        replication = Replication(settings, line.say, line.show, poll_seconds=options.poll_seconds or POLL_SECONDS)
        ended, exit_code = run_until_signal("replicate", replication.run, replication.stop.set, line.require_reader)
        outcome = ended.result()
    except StreamClientError as failure:
        outcome = ReplicationOutcome(
            is_complete=False, rows=0, refused_rows=0, error=failure
        )  # the replication failed before it copied a row
    finally:
        line.close()
    if options.json:
        error = None if outcome.error is None else str(outcome.error)
        counts = {"rows": outcome.rows, "refused_rows": outcome.refused_rows}
        print_json_line({"complete": outcome.is_complete, **counts, "error": error})
    unanswered = call_given_up(outcome.error, exit_code)
    if outcome.error is not None and not unanswered:
        raise CommandFailed(f"ended: {outcome.error}", EXIT_REFUSED)
    if not options.json:
        state = "complete" if outcome.is_complete else "stopped; run again to go on"
        rows = counted(outcome.rows, "row")
        print_text(f"replication {state}: {rows} written, {outcome.refused_rows} refused{unanswered}")
    if exit_code is not None and not outcome.is_complete:
        return exit_code
    return EXIT_REFUSED if outcome.refused_rows else EXIT_DONE


class _Comparison:
    """The progress of a comparison: the numbers of compared rows and differences, shown on standard error."""

    def __init__(self) -> None:
        self.rows = self.differences = 0
        self.line = ProgressLine(sys.stderr)
        self._shown_at = -math.inf

    def went_on(self, rows: int) -> None:
        """Set the number of compared rows to ``rows``; show it at most once in ``VERIFY_PROGRESS_SECONDS``."""
        self.rows = rows
        if time.monotonic() - self._shown_at >= VERIFY_PROGRESS_SECONDS:
            self._shown_at = time.monotonic()
            so_far = counted(self.differences or "no", "difference")
            self.line.show(f"comparing  {counted(rows, 'row')}  {so_far} so far")


def _verify(settings: Any, options: argparse.Namespace) -> int:
    from streamclient.copying.differences import compare_tables  # noqa: PLC0415

    source, destination = settings.reader, settings.writer
    tables = (source.quiet_client(), source.table_name, destination.quiet_client(), destination.table_name)
    comparison, shown = _Comparison(), ShownDifferences(options)
    error: StreamClientError | None = None
    comparison.went_on(0)
    try:
        for difference in compare_tables(*tables, comparison.went_on):
            comparison.differences += 1
            shown.show(difference)
    except StreamClientError as ended:
        error = ended
    finally:
        comparison.line.erase()
    shown.end(comparison.differences)
    if options.json:
        reason = None if error is None else str(error)
        print_json_line({"rows": comparison.rows, "differences": comparison.differences, "error": reason})
    if error is not None:
        raise CommandFailed(f"ended after {counted(comparison.rows, 'row')}: {error}", EXIT_REFUSED)
    if not options.json:
        differences = counted(comparison.differences or "no", "difference")
        print_text(f"compared {counted(comparison.rows, 'row')}: {differences}")
    return EXIT_DIFFERENT if comparison.differences else EXIT_DONE
