"""The receiver of metrics for OpenTelemetry; it needs the extra ``otel``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from streamclient._version import __version__
from streamclient.base import checks
from streamclient.base.extras import load
from streamclient.metrics.memory_metrics import MemoryMetrics
from streamclient.metrics.metric_table import METRICS, SECONDS_BUCKETS
from streamclient.model import Metric, MetricKind

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider, Observation

SCOPE = "streamclient"
"""The name of the instrumentation scope, by which a view finds these metrics."""


_provider = checks.Check(
    "an opentelemetry.metrics.MeterProvider or None",
    lambda value: value is None or callable(getattr(value, "get_meter", None)),
)


@checks.explains_names
class OpenTelemetryMetrics(MemoryMetrics):
    """Gives every series to the readers of an OpenTelemetry meter provider.

    The names are ``Metric.dotted_name``, and the units are in UCUM.

    Counters and gauges are observable instruments that read the kept values, so they report a shard only while the
    worker holds it. Other instruments would report a series for ever. Histograms are ordinary instruments, and name no
    shard. Make one object for each provider, and share it between all workers of the process.

    Args:
        meter_provider: an ``opentelemetry.metrics.MeterProvider``; with ``None`` the global provider.

    Raises:
        ConfigurationError: the OpenTelemetry API is not installed.
    """

    def __init__(self, meter_provider: MeterProvider | None = None) -> None:
        super().__init__()
        api = _api()
        _provider.require("meter_provider", meter_provider)
        provider = api.get_meter_provider() if meter_provider is None else meter_provider
        meter: Meter = provider.get_meter(SCOPE, __version__)
        self._histograms: dict[Metric, Histogram] = {}
        for metric in METRICS:
            text = {"name": metric.dotted_name, "unit": metric.unit, "description": metric.help}
            if metric.kind is MetricKind.HISTOGRAM:
                self._histograms[metric] = meter.create_histogram(
                    **text, explicit_bucket_boundaries_advisory=SECONDS_BUCKETS
                )
            elif metric.kind is MetricKind.COUNTER:
                meter.create_observable_counter(callbacks=[self._reader(metric, api.Observation)], **text)
            else:
                meter.create_observable_gauge(callbacks=[self._reader(metric, api.Observation)], **text)

    def observe(self, metric: Metric, seconds: float, /, **labels: str) -> None:
        """Add ``seconds`` to a histogram."""
        super().observe(metric, seconds, **labels)
        self._histograms[metric].record(seconds, labels)

    def _reader(
        self, metric: Metric, observation: type[Observation]
    ) -> Callable[[CallbackOptions], Iterator[Observation]]:
        def read(options: CallbackOptions) -> Iterator[Observation]:
            return (observation(series.value, dict(series.labels)) for series in self.snapshot(metric))

        return read


def _api() -> Any:
    return load("opentelemetry.metrics", "otel")
