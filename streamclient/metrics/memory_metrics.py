"""Metrics in memory: for tests, for tools, and as the base of the receivers for Prometheus and OpenTelemetry."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import accumulate

from attrs import frozen

from streamclient.errors import ConfigurationError
from streamclient.interfaces import IMetrics
from streamclient.metrics.metric_table import METRICS, SECONDS_BUCKETS
from streamclient.model import Metric, MetricKind

_Key = tuple[str, ...]
"""The values of a series' labels, in the order of ``Metric.labels``."""


@frozen
class Distribution:
    """The values of one series of a histogram: their number, their sum, and the number of values up to each bound."""

    count: int = 0
    sum: float = 0.0
    buckets: tuple[int, ...] = (0,) * (len(SECONDS_BUCKETS) + 1)
    """The numbers of values at or below each bound of ``SECONDS_BUCKETS``. The last number counts all values."""


@frozen
class Series:
    """The value of one series of a metric at one moment. A series is a metric with values for all its labels."""

    metric: Metric
    labels: Mapping[str, str]
    value: float
    """The total of a counter, the value of a gauge, or the sum of a histogram."""
    distribution: Distribution | None = None
    """The distribution of a histogram; ``None`` for other metrics."""

    def __str__(self) -> str:
        labels = ",".join(f'{name}="{text}"' for name, text in self.labels.items())
        count = "" if self.distribution is None else f" in {self.distribution.count}"
        return f"{self.metric.name}{{{labels}}} {self.value:g}{count}"


class _HistogramValues:
    """The counts by bucket and the sum of one histogram series, to which values can be added."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS_BUCKETS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS_BUCKETS, seconds)] += 1
        self.total += seconds

    def distribution(self) -> Distribution:
        buckets = tuple(accumulate(self.counts))
        return Distribution(buckets[-1], self.total, buckets)


class MemoryMetrics(IMetrics):
    """Keeps the present value of every series. Thread-safe.

    A call raises ``ConfigurationError``, and changes nothing, if the metric is missing from ``METRICS``, if the labels
    differ from the metric's labels, or if the method is for another kind of metric.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: dict[Metric, dict[_Key, float]] = {
            metric: {} for metric in METRICS if metric.kind is not MetricKind.HISTOGRAM
        }
        self._tallies: dict[Metric, dict[_Key, _HistogramValues]] = {
            metric: {} for metric in METRICS if metric.kind is MetricKind.HISTOGRAM
        }

    def increment(self, metric: Metric, amount: float = 1, /, **labels: str) -> None:
        """Add ``amount`` to a counter."""
        key = _key(metric, MetricKind.COUNTER, labels)
        if amount < 0:
            raise ConfigurationError(f"{metric.name} is a counter and cannot grow by {amount!r}")
        with self._lock:
            series = self._numbers[metric]
            series[key] = series.get(key, 0.0) + amount

    def set(self, metric: Metric, value: float, /, **labels: str) -> None:
        """Set a gauge to ``value``."""
        key = _key(metric, MetricKind.GAUGE, labels)
        with self._lock:
            self._numbers[metric][key] = value

    def observe(self, metric: Metric, seconds: float, /, **labels: str) -> None:
        """Add ``seconds`` to a histogram."""
        key = _key(metric, MetricKind.HISTOGRAM, labels)
        with self._lock:
            series = self._tallies[metric]
            tally = series.get(key)
            if tally is None:
                tally = series[key] = _HistogramValues()
            tally.add(seconds)

    def forget(self, metric: Metric, /, **labels: str) -> None:
        """Drop the series with these labels, if it exists."""
        key = _key(metric, metric.kind, labels)
        kept = self._tallies if metric.kind is MetricKind.HISTOGRAM else self._numbers
        with self._lock:
            kept[metric].pop(key, None)

    def snapshot(self, *metrics: Metric) -> tuple[Series, ...]:
        """Return all series of ``metrics``, or, without arguments, of all metrics in the order of ``METRICS``.

        The metrics come in the given order, and the series of one metric in order of creation. All values belong to the
        same moment. Usable from any thread.
        """
        with self._lock:
            return tuple([series for metric in metrics or METRICS for series in self._series(metric)])

    def value(self, metric: Metric, /, **labels: str) -> float | None:
        """Return the sum of all series with ``labels``, whatever their other labels are; ``None`` without such series.

        For a histogram, return the number of values in all these series.
        """
        values = [
            series.value if series.distribution is None else series.distribution.count
            for series in self.snapshot(metric)
            if labels.items() <= series.labels.items()
        ]
        return sum(values) if values else None

    def _series(self, metric: Metric) -> Iterator[Series]:
        names = metric.labels
        if metric.kind is MetricKind.HISTOGRAM:
            for key, tally in self._tallies[metric].items():
                yield Series(metric, dict(zip(names, key, strict=True)), tally.total, tally.distribution())
        else:
            for key, value in self._numbers[metric].items():
                yield Series(metric, dict(zip(names, key, strict=True)), value)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {len(self.snapshot())} series>"


_KNOWN = frozenset(METRICS)


def _key(metric: Metric, kind: MetricKind, labels: Mapping[str, str]) -> _Key:
    """Return the values of ``labels``, in the order of ``Metric.labels``.

    Raises:
        ConfigurationError: the call does not fit the metric.
    """
    if metric not in _KNOWN:
        raise ConfigurationError(f"{metric!r} is not in streamclient.metrics.metric_table, which has all metrics")
    if metric.kind is not kind:
        raise ConfigurationError(f"{metric.name} is a {metric.kind.value}, not a {kind.value}")
    if len(labels) == len(metric.labels):
        with suppress(KeyError):
            return tuple([labels[name] for name in metric.labels])
    raise ConfigurationError(f"{metric.name} takes the labels {metric.labels}, not {tuple(labels)}")
