"""The Grafana board of a fleet, made from ``METRICS``. Each row of panels answers a question."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

from attrs import frozen

from streamclient.metrics import metric_table as t
from streamclient.metrics.metric_table import WORKER_LABELS
from streamclient.model import Metric, MetricKind
from tools.promql import STREAM_AND_SHARD, require_labels

WIDTH, HEIGHT, COLUMNS = 8, 8, 3
"""The width and height of a panel, and the number of panels side by side. Grafana's grid has 24 columns."""

SCHEMA_VERSION = 39
"""The version of the format of a board in Grafana 11. Later versions of Grafana convert it."""

RATE_WINDOW = "$__rate_interval"
"""Grafana's variable for a window with at least four scrapes."""

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
CHOSEN = 'stream=~"$stream", worker=~"$worker"'
UNITS = {"s": "s", "By": "bytes"}
QUANTILES = {0.5: "median", 0.99: "p99"}


@frozen
class Panel:
    """A panel of the board, its metrics, and the labels that distinguish its series."""

    title: str
    metrics: tuple[Metric, ...]
    by: tuple[str, ...] = ()
    function: str = "sum"
    """The function of PromQL that makes one series of several series with equal labels."""

    def __attrs_post_init__(self) -> None:
        for metric in self.metrics:
            require_labels(metric, *self.by)

    @property
    def queries(self) -> Iterator[tuple[str, str]]:
        """The expressions of the panel in PromQL, each with its legend."""
        legend = " ".join(f"{{{{{label}}}}}" for label in self.by)
        for metric in self.metrics:
            what = metric.name.removeprefix("streamclient_") if len(self.metrics) > 1 or not legend else ""
            if metric.kind is MetricKind.HISTOGRAM:
                for quantile, name in QUANTILES.items():
                    yield self._quantile(metric, quantile), " ".join(filter(None, (what, legend, name)))
            else:
                yield self._value(metric), " ".join(filter(None, (what, legend)))

    @property
    def unit(self) -> str:
        """Grafana's name for the unit. Counters are shown as rates per second."""
        metric = self.metrics[0]
        if metric.kind is MetricKind.COUNTER:
            return "Bps" if metric.unit == "By" else "cps"
        return UNITS.get(metric.unit, "short")

    def _value(self, metric: Metric) -> str:
        series = f"{metric.name}{{{CHOSEN}}}"
        value = f"rate({series}[{RATE_WINDOW}])" if metric.kind is MetricKind.COUNTER else series
        return f"{self.function}{_by(self.by)} ({value})"

    def _quantile(self, metric: Metric, quantile: float) -> str:
        buckets = f"rate({metric.name}_bucket{{{CHOSEN}}}[{RATE_WINDOW}])"
        return f"histogram_quantile({quantile}, sum{_by(('le', *self.by))} ({buckets}))"


def _by(labels: tuple[str, ...]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""


BOARD: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Is it well?",
        (
            Panel("Unhealthy workers", (t.UNHEALTHY,), WORKER_LABELS, "max"),
            Panel("Held shards, by what they wait for", (t.SHARDS,), ("reason", "cause", "state")),
            Panel("Shards without owner", (t.UNOWNED_SHARDS,), ("stream",), "min"),
            Panel("Records processed", (t.RECORDS_PROCESSED,), WORKER_LABELS),
            Panel("Bytes processed", (t.RECORDS_SIZE_BYTES,), WORKER_LABELS),
            Panel("Slow clocks", (t.CLOCK_SLOW_SECONDS,), WORKER_LABELS, "max"),
        ),
    ),
    (
        "How large is the lag?",
        (
            Panel("Lag, the longest first", (t.LAG_SECONDS,), STREAM_AND_SHARD, "max"),
            Panel("Time to loss", (t.TIME_TO_LOSS_SECONDS,), STREAM_AND_SHARD, "min"),
            Panel("Read ahead, waiting for user code", (t.PREFETCH_BUFFER_BYTES,), WORKER_LABELS),
            Panel("Reads of pages", (t.READ_SECONDS,)),
            Panel("Calls into user code", (t.USER_CODE_SECONDS,), ("call",)),
            Panel("Checkpoints, as user code waits for them", (t.CHECKPOINT_SECONDS,)),
        ),
    ),
    (
        "What fails?",
        (
            Panel("Batches", (t.BATCHES,), ("outcome",)),
            Panel("Failures of user code", (t.USER_CODE_FAILURES,), ("call",)),
            Panel(
                "Delivered again, restarted, parked, stalled",
                (t.REDELIVERIES, t.RESTARTS, t.RECORDS_PARKED, t.STALLS),
            ),
            Panel("Reads, by result", (t.READS,), ("result",)),
            Panel("Tunnel channels that may have lost records", (t.SUSPECTED_LOSSES,), ("cause",)),
            Panel("Requests to the stream", (t.STREAM_REQUESTS,), ("operation", "result")),
            Panel("Checkpoints, by outcome", (t.CHECKPOINTS,), ("kind", "outcome")),
        ),
    ),
    (
        "What does it cost?",
        (
            Panel("Capacity units of the stream", (t.STREAM_UNITS,), ("stream",)),
            Panel("Capacity units of the status table", (t.STATUS_TABLE_UNITS,), ("stream", "kind")),
            Panel("Requests to the status table", (t.STATUS_TABLE_REQUESTS,), ("operation", "result")),
            Panel("Rows of the status table", (t.STATUS_TABLE_ROWS_READ, t.STATUS_TABLE_ROWS_WRITTEN)),
        ),
    ),
    (
        "Leases",
        (
            Panel("Held leases", (t.LEASES,), ("worker", "state")),
            Panel("Leases that move", (t.LEASE_MOVES,), ("move",)),
            Panel("Gap of a hand-over", (t.HAND_OVER_GAP_SECONDS,)),
            Panel("Writes to lease rows", (t.LEASE_WRITES,), ("kind", "outcome")),
            Panel("Writes to worker rows", (t.SESSION_WRITES,), ("kind", "outcome")),
            Panel("Wakes sent", (t.WAKES,), ("worker",)),
            Panel("Epochs drawn", (t.EPOCH_DRAWS,), ("outcome",)),
            Panel("Scans of the status table", (t.SCAN_SECONDS,)),
        ),
    ),
)
"""The rows of the board: each question with its panels."""


def board_json() -> str:
    """Return the board as a JSON text that Grafana can import."""
    document = {
        "title": "streamclient",
        "uid": "streamclient",
        "description": "Made by `python -m tools.alerts` from the table of metrics.",
        "tags": ["streamclient"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": list(_panels()),
    }
    return json.dumps(document, indent=1) + "\n"


def _variables() -> list[dict[str, Any]]:
    datasource = {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus"}
    return [datasource, *(_variable(label) for label in WORKER_LABELS)]


def _variable(label: str) -> dict[str, Any]:
    """Return the board's variable for choosing values of a label. Only workers of the chosen streams are offered."""
    chosen = "" if label == "stream" else '{stream=~"$stream"}'
    query = f"label_values({t.UNHEALTHY.name}{chosen}, {label})"
    return {
        "type": "query",
        "name": label,
        "label": label.capitalize(),
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": label},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panels() -> Iterator[dict[str, Any]]:
    ids, top = count(1), 0
    for question, panels in BOARD:
        yield {"id": next(ids), "type": "row", "title": question, "gridPos": _place(top, 0, 3 * WIDTH, 1), "panels": []}
        top += 1
        for number, panel in enumerate(panels):
            line, column = divmod(number, COLUMNS)
            place = _place(top + line * HEIGHT, column * WIDTH, WIDTH, HEIGHT)
            yield {"id": next(ids), "gridPos": place, **_panel(panel)}
        top += HEIGHT * -(-len(panels) // COLUMNS)


def _place(y: int, x: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: Panel) -> dict[str, Any]:
    targets = [
        {"refId": f"{chr(ord('A') + number)}", "datasource": DATASOURCE, "expr": expression, "legendFormat": legend}
        for number, (expression, legend) in enumerate(panel.queries)
    ]
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": "\n\n".join(metric.help for metric in panel.metrics),
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": targets,
    }
