"""What measuring code calls: labels are added, and errors of whoever listens stay there."""

from __future__ import annotations

import logging

import pytest

from streamclient import IMetrics, Metric
from streamclient.metrics import MemoryMetrics, labelled
from streamclient.metrics import metric_table as t
from streamclient.metrics.labelled import NO_METRICS


class Broken(IMetrics):
    """Fails always, and counts how often it was asked."""

    calls = 0

    def increment(self, metric: Metric, amount: float = 1, /, **labels: str) -> None:
        self.fail()

    def set(self, metric: Metric, value: float, /, **labels: str) -> None:
        self.fail()

    def observe(self, metric: Metric, seconds: float, /, **labels: str) -> None:
        self.fail()

    def forget(self, metric: Metric, /, **labels: str) -> None:
        self.fail()

    def fail(self) -> None:
        self.calls += 1
        raise OSError("disk full")


def test_labels_are_added_to_every_call() -> None:
    memory = MemoryMetrics()
    metrics = labelled(labelled(memory, stream="orders"), worker="w1")

    metrics.increment(t.BATCHES, outcome="accepted")
    metrics.set(t.UNHEALTHY, 1)
    metrics.observe(t.SCAN_SECONDS, 0.5)
    metrics.set(t.LAG_SECONDS, 1, shard="a")
    metrics.forget(t.LAG_SECONDS, shard="a")

    assert [(series.metric, series.labels) for series in memory.snapshot()] == [
        (t.BATCHES, {"stream": "orders", "worker": "w1", "outcome": "accepted"}),
        (t.SCAN_SECONDS, {"stream": "orders", "worker": "w1"}),
        (t.UNHEALTHY, {"stream": "orders", "worker": "w1"}),
    ]


def test_an_error_is_logged_once_and_goes_no_further(caplog: pytest.LogCaptureFixture) -> None:
    broken = Broken()
    metrics = labelled(broken, stream="orders", worker="w1")

    with caplog.at_level(logging.DEBUG, logger="streamclient"):
        for _ in range(3):
            metrics.increment(t.RESTARTS)
            metrics.set(t.UNHEALTHY, 1)
            metrics.observe(t.SCAN_SECONDS, 1)
            metrics.forget(t.RESTARTS)

    assert broken.calls == 12
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "failed at streamclient_restarts_total" in record.message
    assert "disk full" in record.message


def test_without_metrics_nothing_is_measured() -> None:
    assert labelled(None, stream="orders") is NO_METRICS
    assert labelled(NO_METRICS, stream="orders") is NO_METRICS
    NO_METRICS.increment(t.RESTARTS, 1, any="labels")
    NO_METRICS.set(t.UNHEALTHY, 1)
    NO_METRICS.observe(t.SCAN_SECONDS, 1)
    NO_METRICS.forget(t.RESTARTS)


def test_an_implementation_needs_only_the_three_verbs() -> None:
    class Counts(IMetrics):
        calls = 0

        def increment(self, metric: Metric, amount: float = 1, /, **labels: str) -> None:
            self.calls += 1

        set = observe = increment

    counts = Counts()
    counts.forget(t.LAG_SECONDS, stream="orders", worker="w1", shard="a")

    assert counts.calls == 0
