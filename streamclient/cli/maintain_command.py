"""``streamclient maintain``: compact, clean and verify a Delta table in use, at the times of cron expressions."""

from __future__ import annotations

import argparse
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from streamclient.base.reasons import counted
from streamclient.cli.terminal.commands import EXIT_DONE, EXIT_REFUSED, CommandFailed, runs
from streamclient.cli.terminal.output import print_text
from streamclient.cli.verify_command import (
    add_application_option,
    add_store_option,
    finding_lines,
    require_commits,
    store_options,
)

if TYPE_CHECKING:
    from streamclient.destinations.delta.maintenance import Cleaning, Compaction, Maintenance
    from streamclient.destinations.proof.verification import Proof

    Result = Compaction | Cleaning | Proof | Exception

TASKS = ("compact", "clean", "verify")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand ``maintain``."""
    parser = commands.add_parser(
        "maintain",
        help="compact, clean and verify a Delta table by cron expressions",
        description="Compact, clean and verify a Delta table beside its writers, at the times of cron expressions in "
        "UTC, until Ctrl-C; or once, now. Exit code with --once: 0 if all is well, 1 if a proof found something, 2 if "
        "there is nothing to prove.",
    )
    parser.add_argument("destination", help="directory or address of a Delta table")
    parser.add_argument("--compact", metavar="CRON", help='join small files, for example "0 * * * *"')
    parser.add_argument("--clean", metavar="CRON", help="remove old files and log entries")
    parser.add_argument("--verify", metavar="CRON", help="prove the log")
    parser.add_argument("--rows", action="store_true", help="with --verify: also read, count and compare all rows")
    parser.add_argument("--keep-hours", type=int, metavar="N", help="how long removed files are kept; default: a week")
    parser.add_argument("--once", action="store_true", help="run the named tasks now, and end; CRON may be anything")
    add_store_option(parser)
    add_application_option(parser)
    runs(parser, _maintain)


def _maintain(arguments: argparse.Namespace) -> int:
    from streamclient.destinations import DeltaDestination  # noqa: PLC0415
    from streamclient.destinations.delta.maintenance import KEEP_HOURS, Maintenance  # noqa: PLC0415
    from streamclient.worker.running import wait_awake  # noqa: PLC0415

    named = {task: getattr(arguments, task) for task in TASKS if getattr(arguments, task) is not None}
    if not named:
        raise CommandFailed("nothing to do: name at least one of --compact, --clean and --verify")
    destination = DeltaDestination(
        arguments.destination, application=arguments.application, storage_options=store_options(arguments)
    )
    maintenance = Maintenance(
        destination,
        **({} if arguments.once else named),
        keep_hours=KEEP_HOURS if arguments.keep_hours is None else arguments.keep_hours,
        verify_rows=arguments.rows,
        heard=partial(_say, arguments.application),
    )
    if arguments.once:
        return _run_once(maintenance, [*named], arguments.application)
    with suppress(KeyboardInterrupt), maintenance:  # the user usually ends the command by Ctrl-C
        due = maintenance.next_runs()
        for task in named:
            print_text(f"{task}: next at {due[task]:%Y-%m-%d %H:%M} UTC", flush=True)
        wait_awake(threading.Event())
    return EXIT_DONE


def _run_once(maintenance: Maintenance, tasks: list[str], application: str) -> int:
    from streamclient.destinations.proof.verification import Proof  # noqa: PLC0415

    code = EXIT_DONE
    for task in tasks:
        result = maintenance.run(task)
        if isinstance(result, Proof):
            require_commits(result, application)
        _say(application, task, result)
        if not getattr(result, "is_whole", True):
            code = EXIT_REFUSED
    return code


def _say(application: str, task: str, result: Result) -> None:
    first, *others = _lines_of(result, application)
    print_text(f"{task}: {first}", *others, flush=True)


def _lines_of(result: Result, application: str) -> list[str]:
    from streamclient.destinations.delta.maintenance import Cleaning, Compaction  # noqa: PLC0415

    if isinstance(result, Compaction):
        refused = ", as another writer was quicker" if result.is_refused else ""
        are = "is" if result.files_before == 1 else "are"
        return [f"{counted(result.files_before, 'file')} {are} now {result.files_after}{refused}"]
    if isinstance(result, Cleaning):
        return [f"{counted(result.files, 'file')} and {counted(result.log_entries, 'log entry')} removed"]
    if isinstance(result, Exception):
        return [f"failed: {result}"]
    try:
        require_commits(result, application)
    except CommandFailed as error:  # with cron expressions, go on: the first commit may come later
        return [f"failed: {error}"]
    return [str(result).partition("\n")[0], *finding_lines(result)]
