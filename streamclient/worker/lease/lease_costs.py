"""What a store that is no status table would have asked of one: the same figures as ``metering``, without a network."""

from __future__ import annotations

from attrs import frozen

from streamclient.interfaces import IMetrics
from streamclient.metrics.labelled import NO_METRICS
from streamclient.metrics.metric_table import STATUS_TABLE_REQUESTS, STATUS_TABLE_ROWS_READ, STATUS_TABLE_ROWS_WRITTEN
from streamclient.metrics.request_metrics import RequestCounter

ROWS_PER_REQUEST = {"GetRange": 5_000, "GetRow": 1, "BatchGetRow": 100, "BatchWriteRow": 200}
"""Most rows of one request, as the service limits them."""


@frozen
class TableCosts:
    """Counts requests and rows. Thread-safe."""

    metrics: IMetrics = NO_METRICS

    def read(self, operation: str, rows: int, asked: int | None = None) -> None:
        """Rows were read; ``asked`` tells how many were asked for by key, some of which may not be there."""
        self._count(operation, rows if asked is None else asked, ROWS_PER_REQUEST[operation])
        if rows:
            self.metrics.increment(STATUS_TABLE_ROWS_READ, rows)

    def written(self, rows: int, per_request: int = ROWS_PER_REQUEST["BatchWriteRow"]) -> None:
        """Rows were to be written, each on its condition, at most so many with one request."""
        if rows:
            self._count("BatchWriteRow", rows, per_request)
            self.metrics.increment(STATUS_TABLE_ROWS_WRITTEN, rows)

    def _count(self, operation: str, rows: int, per_request: int) -> None:
        if self.metrics is NO_METRICS:
            return
        requests = RequestCounter(self.metrics, STATUS_TABLE_REQUESTS)
        for _ in range(max(1, -(-rows // per_request))):
            requests.count(operation)
