"""Functions that make expressions of PromQL for the package's metrics, and refuse labels that a metric lacks."""

from __future__ import annotations

from streamclient.base.reasons import Cause
from streamclient.metrics import metric_table as t
from streamclient.metrics.metric_table import WORKER_LABELS
from streamclient.model import Metric, MetricKind

OPERATORS = ("=~", "!~", "!=")
"""The operators that a matcher's value may begin with. A value without an operator is compared by ``=``."""

STREAM = WORKER_LABELS[:1]
STREAM_AND_SHARD = (*STREAM, "shard")
WITH_CAUSE = (*WORKER_LABELS, "cause")

FLAP_WINDOW = "5m"
"""The time for which a cause counts after it was last seen. A failing shard has no cause while it is tried again."""

LEAST_RATE = 1
"""The requests or capacity units per second below which no cost is reported: 3,600 in an hour."""


def series(metric: Metric, window: str = "", suffix: str = "", **matchers: str) -> str:
    """Return a selector for a metric.

    Args:
        metric: the metric.
        window: the range, for example ``5m``. Without it, the selector is for the present moment.
        suffix: ``_count`` or ``_sum``, only for a histogram.
        matchers: the wanted values by label. A value may begin with one of ``OPERATORS``.

    Raises:
        ValueError: the metric does not have such a label or such a suffix.
    """
    require_labels(metric, *matchers)
    if bool(suffix) != (metric.kind is MetricKind.HISTOGRAM):
        raise ValueError(f"{metric.name}{suffix} is not a series: {metric.name} is a {metric.kind.value}")
    texts = [_matcher(name, value) for name, value in matchers.items()]
    braces = f"{{{', '.join(texts)}}}" if texts else ""
    return f"{metric.name}{suffix}{braces}" + (f"[{window}]" if window else "")


def require_labels(metric: Metric, *labels: str) -> None:
    """Raise ``ValueError`` if the metric lacks one of the labels."""
    missing = [label for label in labels if label not in metric.labels]
    if missing:
        raise ValueError(f"{metric.name} has the labels {metric.labels}, not {missing}")


def _matcher(name: str, value: str) -> str:
    operator = next((each for each in OPERATORS if value.startswith(each)), "")
    return f'{name}{operator or "="}"{value[len(operator) :]}"'


def increase(metric: Metric, window: str, by: tuple[str, ...], **matchers: str) -> str:
    """Return the expression for the growth of a counter in a window, by the labels ``by``."""
    require_labels(metric, *by)
    return f"sum by ({', '.join(by)}) (increase({series(metric, window, **matchers)}))"


def rate(metric: Metric, window: str, by: tuple[str, ...], *, offset: str = "", **matchers: str) -> str:
    """Return the expression for the growth of a counter per second, by the labels ``by``, ``offset`` ago."""
    require_labels(metric, *by)
    ago = f" offset {offset}" if offset else ""
    return f"sum by ({', '.join(by)}) (rate({series(metric, window, **matchers)}{ago}))"


def grew(metric: Metric, window: str, by: tuple[str, ...]) -> str:
    """Return the expression for counters that have grown in a window, or whose series began in it.

    Prometheus sees no increase in a series that begins with its first event. Such a series arises if the event comes
    before the first scrape of the process.
    """
    total = f"sum by ({', '.join(by)})"
    return (
        f"{increase(metric, window, by)} > 0\n"
        f"or ({total} ({series(metric)}) > 0 unless {total} ({series(metric)} offset {window}))"
    )


def any_of(*causes: Cause) -> str:
    """Return the value of a matcher that accepts any of ``causes``."""
    return "=~" + "|".join(cause.value for cause in causes)


def stands(*causes: Cause) -> str:
    """Return the expression for shards that do not move because of one of ``causes``, even during a new try."""
    of_causes = series(t.SHARDS, FLAP_WINDOW, cause=any_of(*causes))
    return f"sum by ({', '.join(WITH_CAUSE)}) (max_over_time({of_causes})) > 0"


def shards(**matchers: str) -> str:
    """Return the expression for shards that have these labels at the present moment."""
    return f"sum by ({', '.join(WITH_CAUSE)}) ({series(t.SHARDS, **matchers)}) > 0"


def waits(*causes: Cause) -> str:
    """Return the expression for shards that wait because of one of ``causes`` at the present moment."""
    return shards(cause=any_of(*causes))


def worst(metric: Metric, by: tuple[str, ...], function: str = "max") -> str:
    """Return the expression for the worst value of a gauge, by the labels ``by``; the worst is its ``function``."""
    require_labels(metric, *by)
    return f"{function} by ({', '.join(by)}) ({series(metric)})"


def throttled_share(metric: Metric) -> str:
    """Return the expression for the share of requests that the service throttles, by stream."""
    return f"{rate(metric, '10m', STREAM, result='throttled')}\n/ {rate(metric, '10m', STREAM)}"


def doubled(*metrics: Metric) -> str:
    """Return the expression for streams whose sum of rates has doubled since yesterday and is above ``LEAST_RATE``."""
    now = " + ".join(rate(metric, "1h", STREAM) for metric in metrics)
    before = " + ".join(rate(metric, "1h", STREAM, offset="1d") for metric in metrics)
    return f"{now}\n> 2 * ({before})\nand {now} > {LEAST_RATE}"


_LEFT = f"{series(t.TIME_TO_LOSS_SECONDS)}\n    / ({series(t.TIME_TO_LOSS_SECONDS)} + {series(t.LAG_SECONDS)})"


def retention_left(share: float) -> str:
    """Return the expression for shards whose oldest unread record has less than ``share`` of its retention left."""
    return f"min by ({', '.join(STREAM_AND_SHARD)}) (\n    {_LEFT}\n) < {share}"
