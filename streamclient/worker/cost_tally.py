"""The sums of the requests and capacity units for which a worker is billed on one stream."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from streamclient.core.costs import Cost
from streamclient.interfaces import IMetrics
from streamclient.metrics.metric_table import STATUS_TABLE_REQUESTS, STATUS_TABLE_UNITS, STREAM_REQUESTS, STREAM_UNITS
from streamclient.model import Metric


class CostTally(IMetrics):
    """A wrapper of ``metrics`` that passes every measurement on, and adds up the cost of the measured requests.

    Thread-safe if ``metrics`` is.
    """

    def __init__(self, metrics: IMetrics, monotonic: Callable[[], float]) -> None:
        self._metrics = metrics
        self._monotonic = monotonic
        self._began = monotonic()
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(_COUNTED.values(), 0)

    def increment(self, metric: Metric, amount: float = 1, /, **labels: str) -> None:
        """Pass the call on to the wrapped metrics. Add requests and capacity units to the cost."""
        name = _COUNTED.get((metric.name, labels.get("kind", "")))
        if name is not None:
            with self._lock:
                self._counts[name] += int(amount)
        self._metrics.increment(metric, amount, **labels)

    def set(self, metric: Metric, value: float, /, **labels: str) -> None:
        """Pass the call on to the wrapped metrics."""
        self._metrics.set(metric, value, **labels)

    def observe(self, metric: Metric, seconds: float, /, **labels: str) -> None:
        """Pass the call on to the wrapped metrics."""
        self._metrics.observe(metric, seconds, **labels)

    def forget(self, metric: Metric, /, **labels: str) -> None:
        """Pass the call on to the wrapped metrics."""
        self._metrics.forget(metric, **labels)

    def total(self) -> Cost:
        """Return the cost of all requests since this object was made, and the seconds since that time."""
        with self._lock:
            return Cost(seconds=self._monotonic() - self._began, **self._counts)


_COUNTED: Final = {
    (STREAM_REQUESTS.name, ""): "stream_requests",
    (STREAM_UNITS.name, ""): "stream_read_units",
    (STATUS_TABLE_REQUESTS.name, ""): "status_table_requests",
    (STATUS_TABLE_UNITS.name, "read"): "status_table_read_units",
    (STATUS_TABLE_UNITS.name, "write"): "status_table_write_units",
}
"""The fields of ``Cost`` to which measurements are added. A key has the name of a metric, and its label ``kind``."""
