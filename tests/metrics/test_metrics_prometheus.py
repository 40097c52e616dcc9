"""``PrometheusMetrics`` with the real library, scraped over real HTTP."""

from __future__ import annotations

import gzip
import sys
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families

from streamclient import ConfigurationError, HealthServer, MetricKind
from streamclient.metrics import METRICS, PrometheusMetrics, labelled
from streamclient.metrics import metric_table as t
from tests.patience import PATIENCE_SECONDS
from tests.probing import ask

WORKER = {"stream": "orders", "worker": "w1"}


@pytest.fixture
def metrics() -> PrometheusMetrics:
    return PrometheusMetrics(CollectorRegistry())


def scrape(server: HealthServer) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=PATIENCE_SECONDS) as response:
        body: bytes = response.read()
    return body.decode()


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_scrape_has_every_series_with_name_labels_and_value(metrics: PrometheusMetrics) -> None:
    bound = labelled(metrics, **WORKER)
    bound.increment(t.RECORDS_PROCESSED, 3, shard="a")
    bound.set(t.LAG_SECONDS, 1.5, shard='with "quotes" and \\ and\nlines')
    bound.observe(t.SCAN_SECONDS, 0.02)
    bound.observe(t.SCAN_SECONDS, 700)

    with metrics.serve(0, "127.0.0.1") as server:
        found = samples(scrape(server))

    worker = frozenset(WORKER.items())
    assert found["streamclient_records_processed_total", worker | {("shard", "a")}] == 3
    assert found["streamclient_lag_seconds", worker | {("shard", 'with "quotes" and \\ and\nlines')}] == 1.5
    assert found["streamclient_scan_duration_seconds_bucket", worker | {("le", "0.01")}] == 0
    assert found["streamclient_scan_duration_seconds_bucket", worker | {("le", "0.025")}] == 1
    assert found["streamclient_scan_duration_seconds_bucket", worker | {("le", "600.0")}] == 1
    assert found["streamclient_scan_duration_seconds_bucket", worker | {("le", "+Inf")}] == 2
    assert found["streamclient_scan_duration_seconds_count", worker] == 2
    assert found["streamclient_scan_duration_seconds_sum", worker] == pytest.approx(700.02)


def test_a_scrape_names_every_metric_of_the_table_before_it_has_a_value(metrics: PrometheusMetrics) -> None:
    with metrics.serve(0) as server:
        text = scrape(server)

    for metric in METRICS:
        assert f"# HELP {metric.name} {metric.help}\n" in text
        assert f"# TYPE {metric.name} {metric.kind.value}\n" in text


def test_series_of_a_shard_that_is_gone_are_removed(metrics: PrometheusMetrics) -> None:
    bound = labelled(metrics, **WORKER)
    for shard in ("a", "b"):
        bound.set(t.LAG_SECONDS, 1, shard=shard)
        bound.increment(t.RECORDS_PROCESSED, shard=shard)

    bound.forget(t.LAG_SECONDS, shard="a")
    bound.forget(t.RECORDS_PROCESSED, shard="a")
    with metrics.serve(0) as server:
        text = scrape(server)

    assert 'shard="a"' not in text
    assert 'shard="b"' in text


def test_other_metrics_of_the_registry_are_served_too() -> None:
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry)
    Gauge("my_own", "Something of the program itself.", registry=registry).set(5)

    with metrics.serve(0) as server:
        assert "my_own 5.0" in scrape(server)


def test_a_second_one_on_a_registry_is_refused_with_advice() -> None:
    registry = CollectorRegistry()
    PrometheusMetrics(registry)

    with pytest.raises(ConfigurationError, match="make one PrometheusMetrics for it and share it"):
        PrometheusMetrics(registry)


def test_the_server_is_reached_from_this_machine_alone_unless_told_otherwise(metrics: PrometheusMetrics) -> None:
    with metrics.serve(0) as server, metrics.serve(0, "0.0.0.0") as open_server:
        assert server.address == "127.0.0.1"
        assert open_server.address == "0.0.0.0"


def test_the_server_stops_listening_when_closed_and_closes_twice(metrics: PrometheusMetrics) -> None:
    server = metrics.serve(0, "127.0.0.1")
    scrape(server)
    server.close()
    server.close()

    with pytest.raises(OSError, match="refused"):
        scrape(server)


@pytest.mark.parametrize("path", ["/live", "/ready", "/health", "/health/", "/healthz", "/other", "/metrics/"])
def test_metrics_without_a_worker_say_nothing_of_its_health(metrics: PrometheusMetrics, path: str) -> None:
    with metrics.serve(0) as server:
        assert ask(server.port, path).status == 404
        assert ask(server.port, "/").body == b"/metrics\n"


def test_a_scraper_gets_the_format_and_the_compression_that_it_accepts(metrics: PrometheusMetrics) -> None:
    labelled(metrics, **WORKER).set(t.LAG_SECONDS, 1.5, shard="a")
    with metrics.serve(0) as server:
        plain = ask(server.port, "/metrics?name[]=nothing")
        opened = ask(server.port, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
        packed = ask(server.port, "/metrics", **{"Accept-Encoding": "gzip"})

    assert plain.headers["Content-Type"].startswith("text/plain; ")
    assert opened.headers["Content-Type"].startswith("application/openmetrics-text; ")
    assert opened.body.endswith(b"# EOF\n")
    assert packed.headers["Content-Encoding"] == "gzip"
    assert samples(gzip.decompress(packed.body).decode()) == samples(plain.body.decode()) != {}


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    with pytest.raises(ConfigurationError, match=r'pip install "\.\[prometheus\]"'):
        PrometheusMetrics()


def test_histograms_are_the_only_metrics_with_buckets(metrics: PrometheusMetrics) -> None:
    bound = labelled(metrics, **WORKER)
    bound.observe(t.SCAN_SECONDS, 1)

    with metrics.serve(0) as server:
        families = {family.name: family.type for family in text_string_to_metric_families(scrape(server))}

    for metric in METRICS:
        assert (families[metric.name.removesuffix("_total")] == "histogram") == (metric.kind is MetricKind.HISTOGRAM)
