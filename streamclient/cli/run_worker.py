"""The worker of ``streamclient run``: run to its end, with its metrics served.

The worker runs in the command's own process, or in each process that the command starts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from streamclient.cli.terminal.commands import EXIT_DONE, EXIT_REFUSED, CommandFailed, Terminated
from streamclient.cli.terminal.output import log_to_terminal
from streamclient.errors import StreamClientError

if TYPE_CHECKING:
    from streamclient.metrics.memory_metrics import Series
    from streamclient.worker import Worker


def log_to_stderr(level: str) -> None:
    """Log entries of ``level`` or above as text."""
    log_to_terminal(level, "%(asctime)s %(levelname)s %(message)s")


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
    arguments.tell(f"metrics: http://{address}:{server.port}/metrics, health: {HEALTH_PATH}")
    return server
