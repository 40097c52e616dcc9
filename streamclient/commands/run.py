"""``streamclient run``: a worker from a shell, or several in processes of their own."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING

from streamclient.errors import StreamClientError
from streamclient.tablestore.connect import connection_of, connection_parent, option_value
from streamclient.terminal.output import complain
from streamclient.terminal.running import EXIT_DONE, EXIT_REFUSED, EXIT_TERMINATED, CommandFailed, Terminated, runs

if TYPE_CHECKING:
    from streamclient.config import ClientConfig
    from streamclient.interfaces import IMetrics
    from streamclient.metrics.memory import Series
    from streamclient.model import InitialPosition
    from streamclient.worker import Worker

LEVELS = ("debug", "info", "warning", "error")

BEATS_PER_LEASE = 3.3
"""Heartbeats and scans in a lease duration: the defaults of ``ClientConfig`` have the same ratio."""

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
        help="what makes the record processors, as for Worker; looked for in this directory, too",
    )
    parser.add_argument(
        "--worker",
        metavar="NAME",
        help="name of the worker, unique in its fleet (default: HOST-PID-RANDOM); names begin so with --processes",
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
        help="serve /metrics for Prometheus, of all processes, and /health; 0 picks a port; needs the extra prometheus",
    )
    parser.add_argument(
        "--metrics-address", default=LOOPBACK, metavar="ADDRESS", help="of this machine (default: %(default)s)"
    )
    parser.add_argument("--log", choices=LEVELS, default="warning", help="what is logged (default: %(default)s)")
    runs(parser, run)


def run(arguments: argparse.Namespace) -> int:
    """Run the worker, or the processes, until a signal; the exit code."""
    if arguments.processes is not None:
        from streamclient.commands.processes import run_processes  # noqa: PLC0415

        return run_processes(arguments)
    from streamclient.metrics.memory import MemoryMetrics  # noqa: PLC0415

    metrics = None if arguments.metrics_port is None else MemoryMetrics()
    worker = make_worker(arguments, metrics)

    def health() -> tuple[bool, str]:
        found = worker.health
        return found.is_healthy, found.reason

    with endpoint(arguments, metrics.snapshot if metrics is not None else tuple, health):
        log_to_stderr(arguments)
        complain(f"worker {worker.worker_identifier} reads table {arguments.data_table_name}; Ctrl-C ends it")
        return run_worker(worker)


def log_to_stderr(arguments: argparse.Namespace) -> None:
    """Log as the arguments say."""
    logging.basicConfig(level=arguments.log.upper(), format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)


def run_worker(worker: Worker) -> int:
    """Run it until a signal; the exit code.

    Raises:
        CommandFailed: the worker failed; the cause is its error.
    """
    try:
        worker.run()
    except Terminated:
        return EXIT_TERMINATED
    except KeyboardInterrupt:
        return EXIT_DONE
    except StreamClientError as error:
        raise CommandFailed(str(error), EXIT_REFUSED) from error
    return EXIT_DONE


def endpoint(
    arguments: argparse.Namespace, series: Callable[[], Iterable[Series]], health: Callable[[], tuple[bool, str]]
) -> AbstractContextManager[object]:
    """What serves metrics and health while the block runs, if the arguments ask for it, and has said where.

    Raises:
        CommandFailed: it cannot listen there.
        ConfigurationError: ``prometheus_client`` is not installed.
    """
    port, address = arguments.metrics_port, arguments.metrics_address
    if port is None:
        return nullcontext()
    from streamclient.metrics.prometheus import HEALTH_PATH, serve_series  # noqa: PLC0415

    try:
        server = serve_series(series, health, port, address)
    except (OSError, OverflowError) as error:
        raise CommandFailed(f"cannot serve metrics on {address} port {port}: {error}") from error
    complain(f"metrics: http://{address}:{server.port}/metrics, health: {HEALTH_PATH}")
    return server


def make_worker(arguments: argparse.Namespace, metrics: IMetrics | None = None) -> Worker:
    """The worker that the arguments describe; calls nobody yet.

    Raises:
        StreamClientError: the factory is not there, or a setting cannot work.
    """
    from streamclient.config import StreamConfig  # noqa: PLC0415
    from streamclient.parking.replay import processor_named  # noqa: PLC0415
    from streamclient.worker import Worker  # noqa: PLC0415

    if "" not in sys.path:
        sys.path.insert(0, "")  # as for `python -m`: a program beside which the command is called
    factory = processor_named(arguments.factory, import_module)
    arguments.data_table_name = option_value("data-table", arguments)
    stream = StreamConfig(
        client=connection_of(arguments).client(logger_name="streamclient.sdk"),
        data_table_name=arguments.data_table_name,
        status_table_name=option_value("status-table", arguments),
        initial_position=_position(arguments.beginning),
    )
    return Worker(worker_name(arguments), _client_config(arguments.lease_duration, metrics), stream, factory)


def worker_name(arguments: argparse.Namespace) -> str:
    """That of the worker, or what the names of several begin with."""
    from streamclient.processes import unique_name  # noqa: PLC0415

    return str(arguments.worker or unique_name())


def _position(text: str) -> InitialPosition:
    from streamclient.model import InitialPosition  # noqa: PLC0415
    from streamclient.operate.text import parse_moment  # noqa: PLC0415

    named = {"oldest": InitialPosition.oldest, "latest": InitialPosition.latest}
    if text in named:
        return named[text]()
    return InitialPosition.at(parse_moment(text, time.time_ns() // 1_000))


def _client_config(lease_seconds: float | None, metrics: IMetrics | None) -> ClientConfig:
    from streamclient.config import ClientConfig  # noqa: PLC0415

    if lease_seconds is None:
        return ClientConfig(metrics=metrics)
    if not lease_seconds > 0:
        raise CommandFailed(f"--lease-duration must be a number of seconds above 0, not {lease_seconds}")
    millis = round(lease_seconds * 1_000)
    beat = max(1, round(millis / BEATS_PER_LEASE))
    return ClientConfig(
        lease_duration_millis=millis, renewer_interval_millis=beat, taker_interval_millis=beat, metrics=metrics
    )
