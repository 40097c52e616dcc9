"""``streamclient mirror``: keep a lake or database table equal to a Tablestore table, as a configuration file says."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from typing import TYPE_CHECKING, Any

from streamclient.base.reasons import counted
from streamclient.cli.terminal.commands import EXIT_DONE, EXIT_REFUSED, CommandFailed, runs
from streamclient.cli.terminal.copy_progress import (
    EXIT_DIFFERENT,
    ShownDifferences,
    add_copy_options,
    call_given_up,
    run_until_signal,
    say_valid,
)
from streamclient.cli.terminal.output import (
    ProgressLine,
    id_shortener,
    log_to_terminal,
    print_json_line,
    print_text,
    shown_meanwhile,
)
from streamclient.errors import StreamClientError

if TYPE_CHECKING:
    from streamclient.copying.mirroring import Mirror


def add_command(commands: Any) -> None:
    """Register the subcommand ``mirror``."""
    parser = commands.add_parser(
        "mirror",
        help="keep a Delta or PostgreSQL table equal to a table",
        description="Copy a table into a Delta or PostgreSQL table, then merge its changes, until Ctrl-C or SIGTERM. "
        "Several processes share the work; run again after any stop. With --verify, exit code 3: rows differ.",
    )
    add_copy_options(parser, "TOML with [source], [destination] and optionally [mirror]")
    runs(parser, run)


def run(options: argparse.Namespace) -> int:
    """Check the configuration, verify the mirror, or run it until a signal comes; return the exit code."""
    from streamclient.copying.mirror_settings import load_mirror_settings  # noqa: PLC0415

    log_to_terminal(logging.WARNING)
    settings = load_mirror_settings(options.configuration, os.environ)
    mirror = settings.make()
    if options.check:
        return say_valid(options)
    return _verify(mirror, options) if options.verify else _mirror(mirror, options)


def _mirror(mirror: Mirror, options: argparse.Namespace) -> int:
    line = ProgressLine(sys.stderr if options.json else sys.stdout)
    try:
        ended, exit_code = run_until_signal("mirror", mirror.run, mirror.shutdown, lambda: line.show(_state(mirror)))
    finally:
        line.close()
    error = ended.exception()
    if options.json:
        print_json_line({"copied_rows": mirror.copied_rows, "error": None if error is None else str(error)})
    unanswered = call_given_up(error, exit_code)
    if isinstance(error, StreamClientError) and not unanswered:
        raise CommandFailed(f"ended: {error}", EXIT_REFUSED)
    if error is not None and not unanswered:
        raise error
    if not options.json:
        rows = counted(mirror.copied_rows, "row")
        print_text(f"stopped; copied by this process: {rows}{unanswered}. Run again to go on")
    return EXIT_DONE if exit_code is None else exit_code


def _state(mirror: Mirror) -> str:
    worker = mirror.worker
    if worker is None:
        return f"copying  {counted(mirror.copied_rows, 'row')} by this process"
    health, lag, statuses = mirror.work_health, mirror.lag_seconds, worker.shard_statuses()
    here = f"{counted(len(statuses), 'shard')} here"
    lag_text = "position not known yet" if lag is None else f"lag {lag:.0f} s"
    trouble = mirror.trouble if health.is_healthy else f"UNHEALTHY: {health.reason}"
    if not trouble:
        return f"merging changes  {here}  {lag_text}"
    # A terminal shows only the beginning of a line that is too long, so the trouble comes early.
    return f"{lag_text}, {id_shortener(statuses)(' '.join(trouble.split()))}  {here}"


def _verify(mirror: Mirror, options: argparse.Namespace) -> int:
    try:
        with shown_meanwhile("comparing"):
            comparison = mirror.verify()
    except StreamClientError as error:
        if options.json:
            print_json_line({**dict.fromkeys(("rows", "differences", "left_out", "pending")), "error": str(error)})
        raise CommandFailed(f"ended: {error}", EXIT_REFUSED) from error
    shown = ShownDifferences(options)
    for difference in comparison.differences:
        shown.show(difference)
    shown.end(comparison.count)
    if options.json:
        counts = {
            "rows": comparison.rows,
            "differences": comparison.count,
            "left_out": comparison.changed,
            "pending": comparison.pending,
        }
        print_json_line({**counts, "position": dict(comparison.position), "error": None})
    else:
        print_text(id_shortener(comparison.position)(str(comparison)))
    return EXIT_DONE if comparison.is_equal else EXIT_DIFFERENT
