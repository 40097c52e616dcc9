"""Functions that run the worker of ``streamclient run`` to its end, and serve its metrics.

The worker runs in the command's own process, or in each of the processes that the command starts.
"""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from streamclient.cli.terminal.commands import EXIT_DONE, EXIT_REFUSED, CommandFailed, Terminated
from streamclient.cli.terminal.output import log_to_terminal
from streamclient.errors import ConfigurationError, StreamClientError

if TYPE_CHECKING:
    from streamclient.metrics.prometheus import PrometheusMetrics
    from streamclient.worker import Worker


def log_to_stderr(level: str) -> None:
    """Log entries of ``level`` or above as text to standard error."""
    log_to_terminal(level, "%(asctime)s %(levelname)s %(message)s")


def run_worker(worker: Worker) -> int:
    """Run the worker until a signal comes; return the exit code.

    Raises:
        CommandFailed: the worker failed; ``__cause__`` is its error.
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


def metrics_of(arguments: argparse.Namespace) -> PrometheusMetrics | None:
    """Return the metrics to serve; ``None`` if the arguments give no port for them.

    Raises:
        ConfigurationError: ``prometheus_client`` is not installed.
    """
    if arguments.metrics_port is None:
        return None
    from streamclient.metrics.prometheus import separate_metrics  # noqa: PLC0415

    return separate_metrics()


def endpoint(
    arguments: argparse.Namespace, worker: Worker, metrics: PrometheusMetrics | None
) -> AbstractContextManager[object]:
    """Serve ``metrics`` and the worker's health while the ``with`` block runs; print the address.

    Without ``metrics``, serve nothing.

    Raises:
        CommandFailed: the server cannot listen on the address and port.
    """
    if metrics is None:
        return nullcontext()
    port, address = arguments.metrics_port, arguments.metrics_address
    try:
        server = metrics.serve(port, address, worker=worker)
    except (OSError, ConfigurationError) as error:
        raise CommandFailed(f"cannot serve metrics on {address} port {port}: {error}") from error
    arguments.tell(f"metrics: http://{address}:{server.port}/metrics, probes: /live /ready /health")
    return server
