"""``streamclient run``: run a worker from a shell, or several workers, each in its own process."""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import TYPE_CHECKING

from streamclient.cli.options import connection_parent, parking_options
from streamclient.cli.terminal.commands import runs
from streamclient.cli.terminal.output import complain

if TYPE_CHECKING:
    from streamclient.cli.run_settings import RunSettings

LEVELS = ("debug", "info", "warning", "error")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand ``run``."""
    parser = commands.add_parser(
        "run",
        help="run a worker with your record processor",
        description="Run one worker, or one in each of several processes, until Ctrl-C (exit code 0), SIGTERM (143) or "
        "SIGHUP (129). Then the workers hand their leases over and end. Exit code 1: failed.",
        parents=[connection_parent(tables=("data-table", "status-table"), json="")],
    )
    add_settings(parser)
    parser.add_argument(
        "--check", action="store_true", help="say what the run would do, after asking the service; write nothing"
    )
    parser.add_argument("--is-one-of-processes", action="store_true", help=argparse.SUPPRESS)
    runs(parser, run)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the options that give settings. An option that is not given is parsed as ``None``, and not as its default."""
    parser.set_defaults(is_one_of_processes=False, config_text=None)
    parser.add_argument(
        "factory",
        nargs="?",
        metavar="PACKAGE:FACTORY",
        help="factory of the record processors, as for Worker; this directory is searched, too",
    )
    parser.add_argument("--config", metavar="FILE", help="TOML with settings; options and the environment win over it")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="a setting by its name in the file, such as client.lease_duration_millis=30000; repeatable",
    )
    parser.add_argument(
        "--worker",
        metavar="NAME",
        help="name of the worker, unique in its fleet (default: HOST-PID-RANDOM); with --processes, a prefix of names",
    )
    parser.add_argument("--group", metavar="NAME", help="keep leases in table <data table>_NAME, as loops do")
    parser.add_argument(
        "--from",
        dest="beginning",
        metavar="WHERE",
        help="where shards without a checkpoint begin: oldest (default), latest, a time, or 2h-ago",
    )
    parser.add_argument(
        "--max-records", type=int, metavar="N", help="largest number of records per read (default: 1000)"
    )
    parser.add_argument(
        "--lease-duration",
        type=float,
        metavar="SECONDS",
        help="lease duration, the same for all workers of a fleet (default: 20)",
    )
    parser.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="run N workers, NAME-1 to NAME-N, each in a process that is started again when it dies",
    )
    _add_failure(parser)
    _add_serving(parser)


def _add_failure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--on-failure",
        choices=("restart", "stop", "park"),
        help="after the retries of a failed batch: a new processor (default), stop at the record, or park it",
    )
    parser.add_argument(
        "--retries", type=int, metavar="N", help="retries of a failed batch (default: 0; with --on-failure: 3)"
    )
    parking_options(parser)


def _add_serving(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="serve /metrics for Prometheus, and /live, /ready and /health for probes; several processes have a port "
        "each, PORT, PORT+1 and so on; 0 picks free ones; needs the extra prometheus",
    )
    parser.add_argument("--metrics-address", metavar="ADDRESS", help="address to serve on (default: 127.0.0.1)")
    parser.add_argument("--log", choices=LEVELS, help="least level to log (default: warning)")
    parser.add_argument("--log-format", choices=("text", "json"), help="lines on standard error (default: text)")


def run(arguments: argparse.Namespace) -> int:
    """Run the worker, or the processes, until a signal comes; return the exit code."""
    if arguments.is_one_of_processes:
        from streamclient.cli.run_fleet import become_one_of_processes  # noqa: PLC0415

        become_one_of_processes(arguments)
    from streamclient.cli.run_settings import RunSettings  # noqa: PLC0415

    settings = RunSettings.read(arguments, os.environ)
    if arguments.check:
        from streamclient.cli.run_check import check  # noqa: PLC0415

        return check(settings)
    is_supervisor = ("run", "processes") in settings.found and not arguments.is_one_of_processes
    _speak(arguments, settings, worker="" if is_supervisor else settings.worker)
    if is_supervisor:
        from streamclient.cli.run_fleet import run_processes  # noqa: PLC0415

        return run_processes(arguments, settings)
    return _run_one(arguments, settings)


def _speak(arguments: argparse.Namespace, settings: RunSettings, worker: str) -> None:
    """Store the function that prints the command's own lines in ``arguments.tell``.

    If the settings ask for a log in JSON, that function prints JSON, ``arguments.complain`` prints errors as JSON, and
    the log begins now. A log as text begins later, so that the user's program can set up its own logging when it is
    imported.
    """
    arguments.tell = complain
    if settings.is_json_log:
        from streamclient.cli.terminal.json_log import log_as_json  # noqa: PLC0415

        handler = log_as_json(settings.log_level, worker)
        arguments.tell, arguments.complain = handler.tell, partial(handler.tell, level="error")


def _run_one(arguments: argparse.Namespace, settings: RunSettings) -> int:
    from streamclient.cli.run_worker import endpoint, log_to_stderr, metrics_of, run_worker  # noqa: PLC0415

    arguments.metrics_port, arguments.metrics_address = (settings.value("serve", name) for name in ("port", "address"))
    metrics = metrics_of(arguments)
    worker = settings.make_worker(metrics)
    with endpoint(arguments, worker, metrics):
        if not settings.is_json_log:
            log_to_stderr(settings.log_level)
        table = settings.value("stream", "data_table_name")
        arguments.tell(f"worker {worker.worker_identifier} reads table {table}; Ctrl-C ends it")
        return run_worker(worker)
