"""The metrics of the requests to the status table, counted where the SDK sends the requests.

All statements about the cost of the table use these counts. Rows are counted as the service bills them. It bills the
rows in responses, and the rows of each write request that got a response, whether or not their conditions were met.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

from tablestore import OTSClient

from streamclient.interfaces import IMetrics
from streamclient.metrics.labelled import NO_METRICS
from streamclient.metrics.metric_table import (
    STATUS_TABLE_REQUESTS,
    STATUS_TABLE_ROWS_READ,
    STATUS_TABLE_ROWS_WRITTEN,
    STATUS_TABLE_UNITS,
)
from streamclient.metrics.request_metrics import RequestCounter
from streamclient.model import Metric
from streamclient.wire.service_errors import classify

WRITES_OF_ONE_ROW = frozenset({"PutRow", "UpdateRow", "DeleteRow"})

_COST_FIRST = WRITES_OF_ONE_ROW | {"GetRow", "GetRange"}
"""The operations whose response, as the SDK decodes it, is a tuple that begins with the cost of the request."""


def metered(client: OTSClient, metrics: IMetrics | None) -> OTSClient:
    """Return a copy of ``client``, on the same connections, that counts every request; ``client`` is not changed.

    The retry policy of ``client`` must never retry, because the SDK's retries of a request would not be counted.
    """
    if metrics is None or metrics is NO_METRICS:
        return client
    own = copy(client)
    own._request_helper = _counting(client, metrics)
    return own


def _counting(client: OTSClient, metrics: IMetrics) -> Callable[..., Any]:
    send = client._request_helper
    requests = RequestCounter(metrics, STATUS_TABLE_REQUESTS)

    def send_and_count(operation: str, *arguments: Any, **keywords: Any) -> Any:
        try:
            answer = send(operation, *arguments, **keywords)
        except Exception as error:
            is_write = _rows_to_write(operation, arguments) > 0
            requests.count(operation, classify(error, write=is_write, client=client))
            raise
        requests.count(operation)
        _count_rows(metrics, STATUS_TABLE_ROWS_READ, _rows_in(operation, answer))
        _count_rows(metrics, STATUS_TABLE_ROWS_WRITTEN, _rows_to_write(operation, arguments))
        _count_units(metrics, operation, answer)
        return answer

    return send_and_count


def _count_rows(metrics: IMetrics, metric: Metric, rows: int) -> None:
    if rows:
        metrics.increment(metric, rows)


def _count_units(metrics: IMetrics, operation: str, answer: Any) -> None:
    """Count the cost that the response states. A batch response states a cost for each row that succeeded."""
    if operation in ("BatchGetRow", "BatchWriteRow"):
        tables: Mapping[str, Any] = answer
        costs = [item.consumed for items in tables.values() for item in items]
    elif operation in _COST_FIRST:
        costs = [answer[0]]
    else:
        return
    read = write = 0
    for cost in costs:
        if cost is not None:
            read, write = read + cost.read, write + cost.write
    if read:
        metrics.increment(STATUS_TABLE_UNITS, read, kind="read")
    if write:
        metrics.increment(STATUS_TABLE_UNITS, write, kind="write")


def _rows_in(operation: str, answer: Any) -> int:
    """Return the number of rows in ``answer``, a response that the SDK has decoded."""
    if operation == "GetRow":
        return int(answer[1] is not None)
    if operation == "GetRange":
        return len(answer[2])
    if operation == "BatchGetRow":
        tables: Mapping[str, Any] = answer
        return sum(item.row is not None for items in tables.values() for item in items)
    return 0


def _rows_to_write(operation: str, arguments: tuple[Any, ...]) -> int:
    if operation == "BatchWriteRow":
        return sum([len(item.row_items) for item in arguments[0].items.values()])
    return int(operation in WRITES_OF_ONE_ROW)
