"""Requests to the service, counted where they are sent."""

from __future__ import annotations

from typing import Final

from streamclient.errors import CodecError, DependencyException, TrimmedDataException, UnreadableAnswerError
from streamclient.interfaces import IMetrics
from streamclient.metrics.labelled import NO_METRICS
from streamclient.model import Metric

OK: Final = "ok"
"""Result of a request that was answered as it was meant to be."""

UNDECODABLE: Final = "undecodable"


def result_of(error: Exception) -> str:
    """What a failed call counts as: the kind of its error, trimmed, undecodable, or other."""
    match error:
        case DependencyException():
            # The type itself is asked: a class of the user's own may answer nothing else.
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
        """One request was answered, or failed with an error of this package."""
        result = OK if error is None else result_of(error)
        self._metrics.increment(self._metric, operation=operation, result=result)
