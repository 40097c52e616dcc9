"""``OpenTelemetryMetrics`` with the real SDK."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from streamclient import ConfigurationError, MetricKind, __version__
from streamclient.metrics import METRICS, OpenTelemetryMetrics, labelled
from streamclient.metrics import metric_table as t
from streamclient.metrics.metric_table import SECONDS_BUCKETS

WORKER = {"stream": "orders", "worker": "w1"}


class Scene:
    """A provider whose reader keeps what it reads."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider(metric_readers=[self.reader])
        self.metrics = OpenTelemetryMetrics(self.provider)
        self.bound = labelled(self.metrics, **WORKER)

    def read(self) -> dict[str, Any]:
        """One collection: by name, the metric."""
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        return {
            metric.name: metric
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def points(self, name: str) -> list[tuple[dict[str, Any], float]]:
        metric = self.read().get(name)
        return [] if metric is None else [(dict(p.attributes), p.value) for p in metric.data.data_points]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_counters_and_gauges_have_names_units_attributes_and_values(scene: Scene) -> None:
    scene.bound.increment(t.RECORDS_PROCESSED, 3, shard="a")
    scene.bound.increment(t.RECORDS_PROCESSED, 4, shard="a")
    scene.bound.set(t.LAG_SECONDS, 1.5, shard="a")

    found = scene.read()
    counter, gauge = found["streamclient.records.processed"], found["streamclient.lag"]
    assert (counter.unit, gauge.unit) == ("{record}", "s")
    assert (counter.data.is_monotonic, counter.description) == (True, t.RECORDS_PROCESSED.help)
    assert scene.points("streamclient.records.processed") == [({**WORKER, "shard": "a"}, 7)]
    assert scene.points("streamclient.lag") == [({**WORKER, "shard": "a"}, 1.5)]


def test_histograms_use_the_buckets_of_the_table(scene: Scene) -> None:
    for seconds in (0.02, 700.0):
        scene.bound.observe(t.SCAN_SECONDS, seconds)

    (point,) = scene.read()["streamclient.scan.duration"].data.data_points
    assert point.explicit_bounds == SECONDS_BUCKETS
    assert (point.count, point.sum, point.bucket_counts[-1]) == (2, 700.02, 1)


def test_a_shard_that_is_gone_is_no_longer_reported(scene: Scene) -> None:
    for shard in ("a", "b"):
        scene.bound.set(t.LAG_SECONDS, 1, shard=shard)
        scene.bound.increment(t.RECORDS_PROCESSED, shard=shard)
    assert len(scene.points("streamclient.lag")) == 2

    scene.bound.forget(t.LAG_SECONDS, shard="a")
    scene.bound.forget(t.RECORDS_PROCESSED, shard="a")

    for _ in range(2):
        assert [labels["shard"] for labels, _ in scene.points("streamclient.lag")] == ["b"]
        assert [labels["shard"] for labels, _ in scene.points("streamclient.records.processed")] == ["b"]


def test_every_metric_of_the_table_arrives_under_its_dotted_name(scene: Scene) -> None:
    for metric in METRICS:
        labels = dict.fromkeys(metric.labels, "x")
        if metric.kind is MetricKind.COUNTER:
            scene.metrics.increment(metric, 1, **labels)
        elif metric.kind is MetricKind.GAUGE:
            scene.metrics.set(metric, 1, **labels)
        else:
            scene.metrics.observe(metric, 1, **labels)

    assert {name: metric.unit for name, metric in scene.read().items()} == {
        metric.dotted_name: metric.unit for metric in METRICS
    }


def test_what_was_reported_can_be_read_in_the_process_too(scene: Scene) -> None:
    scene.bound.observe(t.SCAN_SECONDS, 1)
    scene.bound.increment(t.RESTARTS)

    assert (scene.metrics.value(t.SCAN_SECONDS), scene.metrics.value(t.RESTARTS)) == (1, 1)


def test_the_scope_is_the_package(scene: Scene) -> None:
    scene.bound.increment(t.RESTARTS)

    data = scene.reader.get_metrics_data()
    assert data is not None
    (scope,) = data.resource_metrics[0].scope_metrics
    assert (scope.scope.name, scope.scope.version) == ("streamclient", __version__)


def test_the_global_provider_serves_if_none_is_given() -> None:
    metrics = OpenTelemetryMetrics()
    metrics.increment(t.RESTARTS, **WORKER)

    assert metrics.value(t.RESTARTS) == 1


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)

    with pytest.raises(ConfigurationError, match=r'pip install "\.\[otel\]"'):
        OpenTelemetryMetrics()
