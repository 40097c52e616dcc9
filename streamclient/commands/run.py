"""``streamclient run``: a worker from a shell."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING

from streamclient.tablestore.connect import connection_of, connection_parent, option_value
from streamclient.terminal.output import complain
from streamclient.terminal.running import EXIT_DONE, EXIT_REFUSED, EXIT_TERMINATED, CommandFailed, Terminated, runs

if TYPE_CHECKING:
    from streamclient.config import ClientConfig
    from streamclient.model import InitialPosition
    from streamclient.worker import Worker

LEVELS = ("debug", "info", "warning", "error")

BEATS_PER_LEASE = 3.3
"""Heartbeats and scans in a lease duration: the defaults of ``ClientConfig`` have the same ratio."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "run",
        help="run a worker with your record processor",
        description="Run one worker until Ctrl-C (exit code 0) or SIGTERM (143): it then ends in order and hands its "
        "leases over. Exit code 1: it failed.",
        parents=[connection_parent(tables=("data-table", "status-table"), json="")],
    )
    parser.add_argument(
        "factory",
        metavar="PACKAGE:FACTORY",
        help="what makes the record processors, as for Worker; looked for in this directory, too",
    )
    parser.add_argument(
        "--worker", metavar="NAME", help="name of the worker, unique in its fleet (default: HOST-PID-RANDOM)"
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
    parser.add_argument("--log", choices=LEVELS, default="warning", help="what is logged (default: %(default)s)")
    runs(parser, run)


def run(arguments: argparse.Namespace) -> int:
    """Run the worker until a signal; the exit code."""
    from streamclient.errors import StreamClientError  # noqa: PLC0415

    worker = make_worker(arguments)
    logging.basicConfig(level=arguments.log.upper(), format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    complain(f"worker {worker.worker_identifier} reads table {arguments.data_table_name}; Ctrl-C ends it")
    try:
        worker.run()
    except Terminated:
        return EXIT_TERMINATED
    except KeyboardInterrupt:
        return EXIT_DONE
    except StreamClientError as error:
        raise CommandFailed(str(error), EXIT_REFUSED) from error
    if worker.exception is not None:
        raise CommandFailed(str(worker.exception), EXIT_REFUSED)
    return EXIT_DONE


def make_worker(arguments: argparse.Namespace) -> Worker:
    """The worker that the arguments describe; calls nobody yet.

    Raises:
        StreamClientError: the factory is not there, or a setting cannot work.
    """
    from streamclient.config import StreamConfig  # noqa: PLC0415
    from streamclient.parking.replay import processor_named  # noqa: PLC0415
    from streamclient.processes import unique_name  # noqa: PLC0415
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
    name = arguments.worker or unique_name()
    return Worker(name, _client_config(arguments.lease_duration), stream, factory)


def _position(text: str) -> InitialPosition:
    from streamclient.model import InitialPosition  # noqa: PLC0415
    from streamclient.operate.text import parse_moment  # noqa: PLC0415

    named = {"oldest": InitialPosition.oldest, "latest": InitialPosition.latest}
    if text in named:
        return named[text]()
    return InitialPosition.at(parse_moment(text, time.time_ns() // 1_000))


def _client_config(lease_seconds: float | None) -> ClientConfig:
    from streamclient.config import ClientConfig  # noqa: PLC0415

    if lease_seconds is None:
        return ClientConfig()
    if not lease_seconds > 0:
        raise CommandFailed(f"--lease-duration must be a number of seconds above 0, not {lease_seconds}")
    millis = round(lease_seconds * 1_000)
    beat = max(1, round(millis / BEATS_PER_LEASE))
    return ClientConfig(lease_duration_millis=millis, renewer_interval_millis=beat, taker_interval_millis=beat)
