"""What a worker measures, and where it goes: Prometheus, OpenTelemetry, memory, or an ``IMetrics`` of your own.

Importing this package imports neither of the two libraries; they come with the extras ``prometheus`` and ``otel``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamclient.base._lazy import loader
from streamclient.metrics.labelled import labelled  # at once: the module of that name would stand in its place

if TYPE_CHECKING:
    from streamclient.metrics.memory_metrics import Distribution, MemoryMetrics, Series
    from streamclient.metrics.metric_table import METRICS
    from streamclient.metrics.open_telemetry import OpenTelemetryMetrics
    from streamclient.metrics.prometheus import MetricsServer, PrometheusMetrics

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

_HOMES = {
    "METRICS": "metric_table",
    "Distribution": "memory_metrics",
    "MemoryMetrics": "memory_metrics",
    "MetricsServer": "prometheus",
    "OpenTelemetryMetrics": "open_telemetry",
    "PrometheusMetrics": "prometheus",
    "Series": "memory_metrics",
}
"""Public name to module; loaded when first used, because a worker without metrics needs no HTTP server."""


__getattr__ = loader(__name__, _HOMES)
