"""The worker that the arguments of ``streamclient run`` describe: made, run to its end, with its metrics served.

The worker runs in the command's own process, or in each process that the command starts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING

from streamclient.base.times import now_micros
from streamclient.cli.options import connection_of, option_value
from streamclient.cli.terminal.commands import EXIT_DONE, EXIT_REFUSED, CommandFailed, Terminated
from streamclient.cli.terminal.output import complain, log_to_terminal
from streamclient.errors import StreamClientError

if TYPE_CHECKING:
    from streamclient.config import ClientConfig
    from streamclient.interfaces import IMetrics
    from streamclient.metrics.memory_metrics import Series
    from streamclient.model import InitialPosition
    from streamclient.worker import Worker


def log_to_stderr(arguments: argparse.Namespace) -> None:
    """Log as the arguments say."""
    log_to_terminal(arguments.log.upper(), "%(asctime)s %(levelname)s %(message)s")


def run_worker(worker: Worker) -> int:
    """Run the worker until a signal comes; return the exit code.

    Raises:
        CommandFailed: the worker failed; the cause is its error.
    """
    try:
        worker.run()
    except Terminated as ended:
        return ended.exit_code
    except KeyboardInterrupt:
        return EXIT_DONE
    except StreamClientError as error:
        raise CommandFailed(str(error), EXIT_REFUSED) from error
    return EXIT_DONE


def endpoint(
    arguments: argparse.Namespace, series: Callable[[], Iterable[Series]], health: Callable[[], tuple[bool, str]]
) -> AbstractContextManager[object]:
    """Serve metrics and health while the block runs, if the arguments ask for it; print the address.

    Raises:
        CommandFailed: the address and port cannot be listened on.
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
    """Return the worker that the arguments describe; nothing is called yet.

    Raises:
        StreamClientError: the factory is not found, or a setting is invalid.
    """
    from streamclient.config import StreamConfig  # noqa: PLC0415
    from streamclient.worker import Worker  # noqa: PLC0415
    from streamclient.worker.parking.parking_replay import processor_named  # noqa: PLC0415

    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does: programs in the present directory are found
    factory = processor_named(arguments.factory, import_module)
    arguments.data_table_name = option_value("data-table", arguments)
    stream = StreamConfig(
        client=connection_of(arguments).quiet_client(),
        data_table_name=arguments.data_table_name,
        status_table_name=option_value("status-table", arguments),
        initial_position=_position(arguments.beginning),
    )
    return Worker(worker_name(arguments), _client_config(arguments, metrics), stream, factory)


def worker_name(arguments: argparse.Namespace) -> str:
    """Return the name of the worker, or the beginning of the names of several."""
    from streamclient.base.processes import unique_name  # noqa: PLC0415

    return str(arguments.worker or unique_name())


def _position(text: str) -> InitialPosition:
    from streamclient.base.times import parse_moment  # noqa: PLC0415
    from streamclient.model import InitialPosition  # noqa: PLC0415

    named = {"oldest": InitialPosition.oldest, "latest": InitialPosition.latest}
    if text in named:
        return named[text]()
    return InitialPosition.at(parse_moment(text, now_micros()))


def _client_config(arguments: argparse.Namespace, metrics: IMetrics | None) -> ClientConfig:
    from streamclient.config import ClientConfig  # noqa: PLC0415

    if arguments.lease_duration is None:
        return ClientConfig(metrics=metrics)
    return ClientConfig.for_lease(arguments.lease_duration, metrics=metrics)
