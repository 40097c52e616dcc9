"""``labelled``: the wrapper through which this package measures. It adds common labels and suppresses errors."""

from __future__ import annotations

import threading

from streamclient.base import logs
from streamclient.base.checks import done
from streamclient.interfaces import IMetrics
from streamclient.model import Metric

_log = logs.logger(__name__)


class NoMetrics(IMetrics):
    """A receiver that ignores all measurements. A call takes a tenth of a microsecond."""

    def increment(self, metric: Metric, amount: float = 1, /, **labels: str) -> None:
        """Ignore the measurement."""

    def set(self, metric: Metric, value: float, /, **labels: str) -> None:
        """Ignore the measurement."""

    def observe(self, metric: Metric, seconds: float, /, **labels: str) -> None:
        """Ignore the measurement."""


NO_METRICS = NoMetrics()
"""The shared instance of ``NoMetrics``."""


def labelled(metrics: IMetrics | None, **labels: str) -> IMetrics:
    """Wrap metrics: add ``labels`` to every call, and suppress errors. Only the first error is logged.

    If you make a lease manager or a stream API yourself, its metrics need the labels ``stream`` and ``worker``.
    """
    return NO_METRICS if metrics is None or metrics is NO_METRICS else _LabelledMetrics(metrics, labels)


class _LabelledMetrics(IMetrics):
    """Metrics with common labels. Thread-safe if the wrapped metrics are.

    ``SystemExit`` is suppressed like other errors, except in the main thread, where a signal may have raised it.
    """

    def __init__(self, metrics: IMetrics, labels: dict[str, str]) -> None:
        self._metrics = metrics
        self._labels = labels
        self._first_failure = threading.Lock()

    def increment(self, metric: Metric, amount: float = 1, /, **labels: str) -> None:
        """Pass the call on to the wrapped metrics, with the common labels."""
        try:
            done("increment", self._metrics.increment(metric, amount, **self._labels, **labels))
        except (Exception, SystemExit) as error:
            self._failed(metric, error)

    def set(self, metric: Metric, value: float, /, **labels: str) -> None:
        """Pass the call on to the wrapped metrics, with the common labels."""
        try:
            done("set", self._metrics.set(metric, value, **self._labels, **labels))
        except (Exception, SystemExit) as error:
            self._failed(metric, error)

    def observe(self, metric: Metric, seconds: float, /, **labels: str) -> None:
        """Pass the call on to the wrapped metrics, with the common labels."""
        try:
            done("observe", self._metrics.observe(metric, seconds, **self._labels, **labels))
        except (Exception, SystemExit) as error:
            self._failed(metric, error)

    def forget(self, metric: Metric, /, **labels: str) -> None:
        """Pass the call on to the wrapped metrics, with the common labels."""
        try:
            done("forget", self._metrics.forget(metric, **self._labels, **labels))  # type: ignore[func-returns-value]
        except (Exception, SystemExit) as error:
            self._failed(metric, error)

    def _failed(self, metric: Metric, error: Exception | SystemExit) -> None:
        if isinstance(error, SystemExit) and threading.current_thread() is threading.main_thread():
            raise error
        if self._first_failure.acquire(blocking=False):
            _log.error(
                "%r failed at %s; figures are missing from now on, nothing else is disturbed, and further failures are "
                "not reported: %s",
                self._metrics,
                metric.name,
                error,
                exc_info=error,
            )

    def __repr__(self) -> str:
        return f"labelled({self._metrics!r}, {', '.join(f'{name}={text!r}' for name, text in self._labels.items())})"
