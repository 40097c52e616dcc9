"""The receiver of metrics for Prometheus; it needs the extra ``prometheus``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

from streamclient.base import checks
from streamclient.base.extras import load
from streamclient.base.health_server import HealthServer
from streamclient.base.probes import Probed, probed
from streamclient.errors import ConfigurationError
from streamclient.metrics.memory_metrics import MemoryMetrics, Series
from streamclient.metrics.metric_table import METRICS, SECONDS_BUCKETS
from streamclient.model import Metric, MetricKind

if TYPE_CHECKING:
    from prometheus_client.registry import Collector, CollectorRegistry

_registry = checks.Check(
    "a prometheus_client.CollectorRegistry or None",
    lambda value: value is None or callable(getattr(value, "register", None)),
)


@checks.explains_names
class PrometheusMetrics(MemoryMetrics):
    """Keeps every series, and gives all series to a registry of ``prometheus_client`` at each scrape.

    Make one object for each registry, and share it between all workers of the process: the label ``worker`` tells the
    workers apart. Series of a shard that is no longer held are removed. Each of several processes needs its own port;
    the multiprocess mode of ``prometheus_client`` does not see these metrics.

    Args:
        registry: a ``prometheus_client.CollectorRegistry``; with ``None`` the default registry of the library.

    Raises:
        ConfigurationError: ``prometheus_client`` is not installed, or the registry has these metrics already.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        super().__init__()
        library = _library()
        _registry.require("registry", registry)
        self._registry: CollectorRegistry = library.REGISTRY if registry is None else registry
        try:
            self._registry.register(cast("Collector", _Collector(self.snapshot)))
        except ValueError as error:
            raise ConfigurationError(
                f"{self._registry!r} has metrics of these names; make one PrometheusMetrics for it and share it"
            ) from error

    @checks.explains_names
    def serve(self, port: int, address: str = "127.0.0.1", *, worker: Probed | None = None) -> HealthServer:
        """Serve the registry over HTTP at ``/metrics``, in separate threads; ``/`` lists the paths.

        Args:
            port: the port for Prometheus; 0 picks a free port, which ``HealthServer.port`` names.
            address: an address of this machine; by default only this machine reaches it. Metrics name tables and
                workers without asking for a password: ``0.0.0.0`` opens them to other machines.
            worker: a worker, a tunnel worker or a daemon. The server then also has its ``/live``, ``/ready`` and
                ``/health``, as in its ``serve_health``. Without ``worker`` these paths do not exist.

        Raises:
            OSError: the port is taken, or must not be used.
        """
        checks.optional(probed).require("worker", worker)
        return HealthServer(port, address, judges=None if worker is None else worker.judges(), metrics=self._page)

    def _page(self, accept: str) -> tuple[str, bytes]:
        """Return the content type and the text of all metrics, in the format that the scraper accepts."""
        from prometheus_client.exposition import choose_encoder  # noqa: PLC0415  # an extra

        encode, kind = choose_encoder(accept)
        return kind, encode(self._registry)


def separate_metrics() -> PrometheusMetrics:
    """Return a ``PrometheusMetrics`` with a new registry, which contains no other metrics.

    Raises:
        ConfigurationError: ``prometheus_client`` is not installed.
    """
    return PrometheusMetrics(_library().CollectorRegistry())


def _library() -> Any:
    return load("prometheus_client", "prometheus")


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
        """Return every metric with all its series. All values belong to the same moment."""
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
