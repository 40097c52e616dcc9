"""A worker's metrics and their receivers: Prometheus, OpenTelemetry, memory, or an ``IMetrics`` of your own.

Importing this package does not import the libraries of Prometheus and OpenTelemetry. The extras ``prometheus`` and
``otel`` install these libraries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamclient.base._lazy import loader
from streamclient.metrics.labelled import labelled  # a later import of the module would hide the function

if TYPE_CHECKING:
    from streamclient.metrics.memory_metrics import Distribution, MemoryMetrics, Series
    from streamclient.metrics.metric_table import METRICS
    from streamclient.metrics.open_telemetry import OpenTelemetryMetrics
    from streamclient.metrics.prometheus import PrometheusMetrics

__all__ = [
    "METRICS",
    "Distribution",
    "MemoryMetrics",
    "OpenTelemetryMetrics",
    "PrometheusMetrics",
    "Series",
    "labelled",
]

_HOMES = {
    "METRICS": "metric_table",
    "Distribution": "memory_metrics",
    "MemoryMetrics": "memory_metrics",
    "OpenTelemetryMetrics": "open_telemetry",
    "PrometheusMetrics": "prometheus",
    "Series": "memory_metrics",
}
"""The module of each public name. A module is loaded at the first use of its name, because a worker without metrics
needs no HTTP server."""


__getattr__ = loader(__name__, _HOMES)
