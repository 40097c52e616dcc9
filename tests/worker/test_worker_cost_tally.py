"""The sum of what a worker asks of the service."""

from __future__ import annotations

from streamclient.core.costs import Cost
from streamclient.metrics import MemoryMetrics, metric_table
from streamclient.metrics.labelled import labelled
from streamclient.worker.cost_tally import CostTally


def test_what_is_billed_is_summed_up_and_everything_is_passed_on() -> None:
    now = [100.0]
    metrics = MemoryMetrics()
    tally = CostTally(labelled(metrics, stream="orders", worker="w1"), lambda: now[0])
    tally.increment(metric_table.STREAM_REQUESTS, operation="GetStreamRecord", result="ok")
    tally.increment(metric_table.STREAM_REQUESTS, operation="ListStream", result="throttled")
    tally.increment(metric_table.STREAM_UNITS, 7)
    tally.increment(metric_table.STATUS_TABLE_REQUESTS, operation="GetRow", result="ok")
    tally.increment(metric_table.STATUS_TABLE_UNITS, 3, kind="read")
    tally.increment(metric_table.STATUS_TABLE_UNITS, 5, kind="write")
    tally.increment(metric_table.STATUS_TABLE_ROWS_READ, 9)
    now[0] += 2.5

    assert tally.total() == Cost(
        seconds=2.5,
        stream_requests=2,
        stream_read_units=7,
        status_table_requests=1,
        status_table_read_units=3,
        status_table_write_units=5,
    )
    assert metrics.value(metric_table.STATUS_TABLE_UNITS) == 8
    assert metrics.value(metric_table.STATUS_TABLE_ROWS_READ) == 9
