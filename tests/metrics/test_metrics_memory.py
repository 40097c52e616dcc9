"""The store behind every adapter: strict about what it takes, exact about what it keeps."""

from __future__ import annotations

import re
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamclient import ClientConfig, ConfigurationError, IMetrics, Metric, MetricKind
from streamclient.metrics import METRICS, MemoryMetrics, Series
from streamclient.metrics import metric_table as t
from streamclient.metrics.metric_table import SECONDS_BUCKETS

WORKER = {"stream": "orders", "worker": "w1"}


def test_counters_add_up_and_gauges_are_replaced() -> None:
    metrics = MemoryMetrics()

    metrics.increment(t.RECORDS_PROCESSED, 3, **WORKER, shard="a")
    metrics.increment(t.RECORDS_PROCESSED, **WORKER, shard="a")
    metrics.set(t.LAG_SECONDS, 7.5, **WORKER, shard="a")
    metrics.set(t.LAG_SECONDS, 2.5, **WORKER, shard="a")

    labels = {**WORKER, "shard": "a"}
    assert metrics.snapshot() == (Series(t.RECORDS_PROCESSED, labels, 4.0), Series(t.LAG_SECONDS, labels, 2.5))


def test_value_sums_what_has_the_labels() -> None:
    metrics = MemoryMetrics()
    for worker, shard, records in (("w1", "a", 1), ("w1", "b", 2), ("w2", "b", 4)):
        metrics.increment(t.RECORDS_PROCESSED, records, stream="orders", worker=worker, shard=shard)

    def total(**labels: str) -> float | None:
        return metrics.value(t.RECORDS_PROCESSED, **labels)

    assert (total(), total(shard="b"), total(worker="w1"), total(worker="w3")) == (7.0, 6.0, 3.0, None)


def test_a_forgotten_series_is_gone_and_may_begin_again() -> None:
    metrics = MemoryMetrics()
    metrics.increment(t.RECORDS_PROCESSED, 3, **WORKER, shard="a")
    metrics.observe(t.SCAN_SECONDS, 0.1, **WORKER)

    metrics.forget(t.RECORDS_PROCESSED, **WORKER, shard="a")
    metrics.forget(t.RECORDS_PROCESSED, **WORKER, shard="never held")
    metrics.forget(t.SCAN_SECONDS, **WORKER)
    assert metrics.snapshot() == ()

    metrics.increment(t.RECORDS_PROCESSED, 1, **WORKER, shard="a")
    assert metrics.value(t.RECORDS_PROCESSED) == 1.0


@given(st.lists(st.floats(0, 1_000, allow_nan=False), max_size=50))
def test_a_histogram_counts_each_value_in_every_bucket_that_it_fits(values: list[float]) -> None:
    metrics = MemoryMetrics()
    for value in values:
        metrics.observe(t.SCAN_SECONDS, value, **WORKER)

    if not values:
        assert metrics.snapshot() == ()
        return
    (series,) = metrics.snapshot()
    assert series.distribution is not None
    expected = [sum(value <= bound for value in values) for bound in SECONDS_BUCKETS]
    assert series.distribution.buckets == (*expected, len(values))
    assert series.distribution.count == len(values)
    assert series.value == series.distribution.sum == pytest.approx(sum(values))


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda m: m.increment(t.RECORDS_PROCESSED, 1, **WORKER), "takes the labels ('stream', 'worker', 'shard')"),
        (lambda m: m.increment(t.RESTARTS, 1), "takes the labels ('stream', 'worker'), not ()"),
        (lambda m: m.increment(t.RESTARTS, 1, **WORKER, shard="a"), "not ('stream', 'worker', 'shard')"),
        (lambda m: m.increment(t.RESTARTS, 1, stream="orders", wörker="w1"), "not ('stream', 'wörker')"),
        (lambda m: m.increment(t.RESTARTS, -1, **WORKER), "cannot grow by -1"),
        (lambda m: m.set(t.RESTARTS, 1, **WORKER), "is a counter, not a gauge"),
        (lambda m: m.observe(t.UNHEALTHY, 1, **WORKER), "is a gauge, not a histogram"),
        (lambda m: m.increment(t.SCAN_SECONDS, 1, **WORKER), "is a histogram, not a counter"),
        (lambda m: m.increment(Metric("x_total", MetricKind.COUNTER, "", "", ()), 1), "is not in streamclient.metrics"),
    ],
)
def test_a_call_that_does_not_fit_its_metric_is_refused_before_any_effect(call: object, complaint: str) -> None:
    metrics = MemoryMetrics()

    with pytest.raises(ConfigurationError, match=re.escape(complaint)):
        call(metrics)  # type: ignore[operator]

    assert metrics.snapshot() == ()


def test_threads_lose_no_increment() -> None:
    metrics = MemoryMetrics()

    def work() -> None:
        for _ in range(2_000):
            metrics.increment(t.RESTARTS, **WORKER)
            metrics.observe(t.SCAN_SECONDS, 0.01, **WORKER)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (metrics.value(t.RESTARTS), metrics.value(t.SCAN_SECONDS)) == (8_000, 8_000)


def test_series_and_store_read_well() -> None:
    metrics = MemoryMetrics()
    metrics.set(t.UNHEALTHY, 1, **WORKER)
    metrics.observe(t.SCAN_SECONDS, 0.25, **WORKER)

    assert [str(series) for series in metrics.snapshot()] == [
        'streamclient_scan_duration_seconds{stream="orders",worker="w1"} 0.25 in 1',
        'streamclient_unhealthy{stream="orders",worker="w1"} 1',
    ]
    assert repr(metrics) == "<MemoryMetrics, 2 series>"


# --- the table -------------------------------------------------------------------------------------------------------


def test_every_metric_of_the_module_is_in_the_table_and_has_a_name_of_its_own() -> None:
    assert {t.RECORDS_PROCESSED, t.SCAN_SECONDS, t.UNHEALTHY} < set(METRICS)
    assert len({metric.name for metric in METRICS}) == len({metric.dotted_name for metric in METRICS}) == len(METRICS)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_units_and_labels_follow_the_conventions(metric: Metric) -> None:
    suffixes = {"s": "_seconds", "By": "_bytes"}
    plain = metric.name.removesuffix("_total")

    assert re.fullmatch(r"streamclient(_[a-z]+)+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
    assert plain.endswith(suffixes.get(metric.unit, ""))
    assert metric.unit in suffixes or re.fullmatch(r"\{[a-z]+\}", metric.unit)
    assert metric.labels[:2] == ("stream", "worker")
    assert "shard" not in metric.labels or metric.kind is not MetricKind.HISTOGRAM
    assert metric.help.endswith(".")


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_the_dotted_name_leads_back_to_the_prometheus_name(metric: Metric) -> None:
    """As exporters of OpenTelemetry translate it: dots to underscores, the unit behind, ``_total`` for a counter."""
    unit = {"s": "_seconds", "By": "_bytes"}.get(metric.unit, "")
    total = "_total" if metric.kind is MetricKind.COUNTER else ""

    assert metric.dotted_name.replace(".", "_") + unit + total == metric.name


def test_the_configuration_takes_metrics_and_nothing_else() -> None:
    metrics = MemoryMetrics()

    assert isinstance(metrics, IMetrics)
    assert ClientConfig(metrics=metrics).metrics is metrics
    assert ClientConfig().metrics is None
    with pytest.raises(ConfigurationError, match="metrics must be an IMetrics or None, not 9090"):
        ClientConfig(metrics=9090)  # type: ignore[arg-type]
