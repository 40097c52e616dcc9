"""``streamclient run``: a worker from a shell, or several in processes of their own."""

from __future__ import annotations

import argparse

from streamclient.cli.options import connection_parent
from streamclient.cli.run_worker import endpoint, log_to_stderr, make_worker, run_worker
from streamclient.cli.terminal.commands import runs
from streamclient.cli.terminal.output import complain

LEVELS = ("debug", "info", "warning", "error")

LOOPBACK = "127.0.0.1"


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "run",
        help="run a worker with your record processor",
        description="Run one worker, or one in each of several processes, until Ctrl-C (exit code 0) or SIGTERM (143): "
        "they then end in order and hand their leases over. Exit code 1: failed.",
        parents=[connection_parent(tables=("data-table", "status-table"), json="")],
    )
    parser.add_argument(
        "factory",
        metavar="PACKAGE:FACTORY",
        help="factory of the record processors, as for Worker; this directory is searched, too",
    )
    parser.add_argument(
        "--worker",
        metavar="NAME",
        help="name of the worker, unique in its fleet (default: HOST-PID-RANDOM); a prefix of names with --processes",
    )
    parser.add_argument(
        "--from",
        dest="beginning",
        default="oldest",
        metavar="WHERE",
        help="where shards without a checkpoint begin: oldest (default), latest, a time, or 2h-ago",
    )
    parser.add_argument(
        "--lease-duration", type=float, metavar="SECONDS", help="the same for all workers of a fleet (default: 20)"
    )
    parser.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="run N workers, NAME-1 to NAME-N, each in a process that is started again when it dies",
    )
    parser.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="serve /metrics for Prometheus, and /health; several processes have a port each, PORT, PORT+1 "
        "and so on; 0 picks free ones; needs the extra prometheus",
    )
    parser.add_argument(
        "--metrics-address", default=LOOPBACK, metavar="ADDRESS", help="address to serve on (default: %(default)s)"
    )
    parser.add_argument("--is-one-of-processes", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--log", choices=LEVELS, default="warning", help="least level to log (default: %(default)s)")
    runs(parser, run)


def run(arguments: argparse.Namespace) -> int:
    """Run the worker, or the processes, until a signal comes; return the exit code."""
    if arguments.is_one_of_processes:
        from streamclient.cli.run_fleet import become_one_of_processes  # noqa: PLC0415

        become_one_of_processes(arguments)
    elif arguments.processes is not None:
        from streamclient.cli.run_fleet import run_processes  # noqa: PLC0415

        return run_processes(arguments)
    from streamclient.metrics.memory_metrics import MemoryMetrics  # noqa: PLC0415

    metrics = None if arguments.metrics_port is None else MemoryMetrics()
    worker = make_worker(arguments, metrics)

    def health() -> tuple[bool, str]:
        state = worker.health
        return state.is_healthy, state.reason

    with endpoint(arguments, metrics.snapshot if metrics is not None else tuple, health):
        log_to_stderr(arguments)
        complain(f"worker {worker.worker_identifier} reads table {arguments.data_table_name}; Ctrl-C ends it")
        return run_worker(worker)
