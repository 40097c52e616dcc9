"""Counts of requests to the service. The code that sends the requests keeps these counts."""

from __future__ import annotations

from typing import Final

from streamclient.errors import CodecError, DependencyException, TrimmedDataException, UnreadableAnswerError
from streamclient.interfaces import IMetrics
from streamclient.metrics.labelled import NO_METRICS
from streamclient.model import Metric

OK: Final = "ok"
"""The value of the label ``result`` for a request with a regular answer."""

UNDECODABLE: Final = "undecodable"


def result_of(error: BaseException) -> str:
    """Return the value of the label ``result`` for a call that failed with ``error``.

    It is the error's ``ErrorKind`` if the error has one and the response could be decoded. Otherwise it is ``trimmed``,
    ``undecodable`` or ``other``.
    """
    match error:
        case DependencyException():
            # Only the type is read, because nothing else of a user's own class is safe to call.
            return UNDECODABLE if issubclass(type(error), UnreadableAnswerError) else error.kind.value
        case TrimmedDataException():
            return "trimmed"
        case CodecError():
            return UNDECODABLE
    return "other"


class RequestCounter:
    """Counts requests by operation and result in one metric. Thread-safe."""

    def __init__(self, metrics: IMetrics | None, metric: Metric) -> None:
        self._metrics = NO_METRICS if metrics is None else metrics
        self._metric = metric

    def count(self, operation: str, error: Exception | None = None) -> None:
        """Count a request that was answered, or a request that failed with ``error``.

        ``error`` must be an error of this package.
        """
        result = OK if error is None else result_of(error)
        self._metrics.increment(self._metric, operation=operation, result=result)
