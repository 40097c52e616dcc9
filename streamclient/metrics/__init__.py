"""What a worker measures, and where it goes: Prometheus, OpenTelemetry, memory, or an ``IMetrics`` of your own.

Importing this package imports neither of the two libraries; they come with the extras ``prometheus`` and ``otel``.
"""

from streamclient.metrics.labelled import labelled
from streamclient.metrics.memory import Distribution, MemoryMetrics, Series
from streamclient.metrics.open_telemetry import OpenTelemetryMetrics
from streamclient.metrics.prometheus import MetricsServer, PrometheusMetrics
from streamclient.metrics.table import METRICS

__all__ = [
    "METRICS",
    "Distribution",
    "MemoryMetrics",
    "MetricsServer",
    "OpenTelemetryMetrics",
    "PrometheusMetrics",
    "Series",
    "labelled",
]
