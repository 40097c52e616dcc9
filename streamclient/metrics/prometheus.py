"""Metrics for Prometheus, with the extra ``prometheus``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from streamclient.base import checks
from streamclient.base.pools import start_thread
from streamclient.base.processes import Birthplace
from streamclient.errors import ConfigurationError
from streamclient.metrics.memory_metrics import MemoryMetrics, Series
from streamclient.metrics.metric_table import METRICS, SECONDS_BUCKETS
from streamclient.model import Metric, MetricKind

if TYPE_CHECKING:
    from prometheus_client.registry import Collector, CollectorRegistry

STOP_POLL_SECONDS = 0.1
"""The longest time, in seconds, in which the server notices that it was closed."""


HEALTH_PATH = "/health"

Health = Callable[[], tuple[bool, str]]
"""A function that returns whether the worker is healthy, and the reason if it is not. A thread of the server calls the
function for each request."""


_registry = checks.Check(
    "a prometheus_client.CollectorRegistry or None",
    lambda value: value is None or callable(getattr(value, "register", None)),
)


@checks.explains_names
class PrometheusMetrics(MemoryMetrics):
    """Keeps every series, and gives them to a registry of ``prometheus_client`` at each scrape.

    Make one object for each registry, and share it between all workers of the process: the label ``worker`` tells them
    apart. Series of a shard that is no longer held are removed. Several processes need a port each; the multiprocess
    mode of ``prometheus_client`` does not see these metrics.

    Args:
        registry: a ``prometheus_client.CollectorRegistry``; the default one of the library if ``None``.

    Raises:
        ConfigurationError: ``prometheus_client`` is not installed, or the registry has these metrics already.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        super().__init__()
        try:
            from prometheus_client import REGISTRY  # noqa: PLC0415  # an extra
        except ImportError as error:
            raise checks.missing_extra(f"{error}; PrometheusMetrics needs it", "prometheus") from error
        _registry.require("registry", registry)
        self._registry = REGISTRY if registry is None else registry
        try:
            self._registry.register(cast("Collector", _Collector(self.snapshot)))
        except ValueError as error:
            raise ConfigurationError(
                f"{self._registry!r} has metrics of these names; make one PrometheusMetrics for it and share it"
            ) from error

    @checks.explains_names
    def serve(self, port: int, address: str = "127.0.0.1") -> MetricsServer:
        """Serve the registry over HTTP in threads of its own, at any path.

        Args:
            port: the port for Prometheus; 0 picks a free one, which ``MetricsServer.port`` names.
            address: an address of this machine; by default only this machine reaches it. Metrics name tables and
                workers without asking for a password: ``0.0.0.0`` opens them to other machines.

        Raises:
            OSError: the port is taken, or may not be used.
        """
        checks.port.require("port", port)
        checks.text.require("address", address)
        return MetricsServer(self._registry, address, port)


def serve_series(series: Callable[[], Iterable[Series]], health: Health, port: int, address: str) -> MetricsServer:
    """Serve the series of a function at any path, and the health at ``/health``.

    The health is a JSON object with ``is_healthy`` and ``reason``, with status 200 or 503.

    Raises:
        ConfigurationError: ``prometheus_client`` is not installed.
        OSError: the port is taken, or may not be used.
    """
    try:
        from prometheus_client import CollectorRegistry  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise checks.missing_extra(f"{error}; serving metrics needs it", "prometheus") from error
    registry = CollectorRegistry()
    registry.register(cast("Collector", _Collector(series)))
    return MetricsServer(registry, address, port, health)


class MetricsServer:
    """A running HTTP server for a registry; a context manager. It keeps no process alive."""

    def __init__(self, registry: CollectorRegistry, address: str, port: int, health: Health | None = None) -> None:
        from prometheus_client import MetricsHandler  # noqa: PLC0415  # an extra

        handler = MetricsHandler.factory(registry)
        if health is not None:
            handler = _with_health(handler, health)
        self._server = ThreadingHTTPServer((address, port), handler)
        self._server.daemon_threads = True
        self._birthplace = Birthplace()
        try:
            self._thread = start_thread(lambda: self._server.serve_forever(STOP_POLL_SECONDS), f"metrics-{self.port}")
        except BaseException:
            self._server.server_close()
            raise

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        return self._server.server_port

    def close(self) -> None:
        """Stop listening. Further calls do nothing."""
        self._birthplace.require("the server of metrics")
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> MetricsServer:
        """Return the server itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the server."""
        self.close()


def _with_health(handler: Any, health: Health) -> Any:
    def do_get(request: Any) -> None:
        if request.path.partition("?")[0] != HEALTH_PATH:
            handler.do_GET(request)
            return
        is_healthy, reason = health()
        body = json.dumps({"is_healthy": is_healthy, "reason": reason}).encode()
        request.send_response(HTTPStatus.OK if is_healthy else HTTPStatus.SERVICE_UNAVAILABLE)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return type("HandlerWithHealth", (handler,), {"do_GET": do_get})


class _Collector:
    """The collector of a registry: it returns names at its registration, and values at every scrape."""

    def __init__(self, snapshot: Callable[[], Iterable[Series]]) -> None:
        from prometheus_client import core, utils  # noqa: PLC0415  # an extra

        self._snapshot = snapshot
        self._families = {
            MetricKind.COUNTER: core.CounterMetricFamily,
            MetricKind.GAUGE: core.GaugeMetricFamily,
            MetricKind.HISTOGRAM: core.HistogramMetricFamily,
        }
        self._bounds = [*map(utils.floatToGoString, SECONDS_BUCKETS), "+Inf"]

    def describe(self) -> list[Any]:
        """Return every metric, without values."""
        return [self._family(metric, ()) for metric in METRICS]

    def collect(self) -> list[Any]:
        """Return every metric with all its series, of one moment."""
        by_metric: dict[Metric, list[Series]] = {metric: [] for metric in METRICS}
        for series in self._snapshot():
            by_metric[series.metric].append(series)
        return [self._family(metric, series) for metric, series in by_metric.items()]

    def _family(self, metric: Metric, all_series: Iterable[Series]) -> Any:
        family: Any = self._families[metric.kind](metric.name, metric.help, labels=metric.labels)
        for series in all_series:
            values = list(series.labels.values())
            if series.distribution is None:
                family.add_metric(values, series.value)
            else:
                buckets = list(zip(self._bounds, series.distribution.buckets, strict=True))
                family.add_metric(values, buckets, series.value)
        return family
