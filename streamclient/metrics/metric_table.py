"""All metrics, as values. The documentation's table is drawn from ``METRICS``.

Laws:

* every series names the stream (``StreamConfig.name``) and the worker, so workers may share a registry;
* only counters and gauges name a shard, and only shards that the worker holds or has just held;
* every other label has a handful of values, never the text of an error; the values of ``cause`` come from ``Cause`` in
  ``streamclient.base.reasons``, and a worker shows only causes that have occurred;
* gauges that are meant to be summed, such as ``streamclient_leases``, divide a whole into parts that do not overlap.
"""

from __future__ import annotations

from typing import Final

from streamclient.model import Metric, MetricKind

SECONDS_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600)
"""The upper bounds of the buckets of every histogram, in seconds. The bounds range from a read on a local network to a
call of ten minutes."""

WORKER_LABELS: Final = ("stream", "worker")
SHARD_LABELS: Final = (*WORKER_LABELS, "shard")


def _counter(name: str, unit: str, description: str, *labels: str, per_shard: bool = False) -> Metric:
    own = SHARD_LABELS if per_shard else WORKER_LABELS
    return Metric(f"streamclient_{name}_total", MetricKind.COUNTER, unit, description, (*own, *labels))


def _gauge(name: str, unit: str, description: str, *labels: str, per_shard: bool = False) -> Metric:
    own = SHARD_LABELS if per_shard else WORKER_LABELS
    return Metric(f"streamclient_{name}", MetricKind.GAUGE, unit, description, (*own, *labels))


def _seconds(name: str, description: str, *labels: str) -> Metric:
    return Metric(f"streamclient_{name}_seconds", MetricKind.HISTOGRAM, "s", description, (*WORKER_LABELS, *labels))


# --- records -------------------------------------------------------------------------------------------------------

RECORDS_PROCESSED: Final = _counter(
    "records_processed", "{record}", "Records that user code accepted, repetitions included.", per_shard=True
)
RECORDS_SIZE_BYTES: Final = _counter(
    "records_size_bytes",
    "By",
    "Size of the pages whose records were all accepted or parked.",
    per_shard=True,
)
BATCHES: Final = _counter("batches", "{batch}", "Calls of process_records; outcome is accepted or failed.", "outcome")
USER_CODE_SECONDS: Final = _seconds(
    "user_code_duration",
    "Length of each call into user code; call is initialize, process_records, shutdown, or the parking store's "
    "parked_keys or park.",
    "call",
)
USER_CODE_FAILURES: Final = _counter(
    "user_code_failures",
    "{failure}",
    "Calls into user code that raised; end_not_stored is a shard whose end the processor did not checkpoint.",
    "call",
)
REDELIVERIES: Final = _counter("redeliveries", "{batch}", "Batches or parts of batches that a processor got again.")
RESTARTS: Final = _counter(
    "restarts", "{processor}", "Processors made because another processor failed or asked to be replaced."
)
RECORDS_PARKED: Final = _counter("records_parked", "{record}", "Records put into the parking store.")
STALLS: Final = _counter(
    "stalls", "{consumer}", "Consumers without progress whose lease or channel the worker gave up."
)

# --- reading -------------------------------------------------------------------------------------------------------

READS: Final = _counter(
    "reads",
    "{read}",
    "Reads of a page with all their retries. Result is records, empty, or the kind of error: throttled, transient, "
    "ambiguous, permanent, trimmed, undecodable, other.",
    "result",
)
READ_SECONDS: Final = _seconds("read_duration", "Length of each read of a page with all its retries.")
STREAM_REQUESTS: Final = _counter(
    "stream_requests",
    "{request}",
    "Requests to the stream, retries included. Result is ok, or the kind of error: throttled, transient, ambiguous, "
    "permanent, trimmed, other.",
    "operation",
    "result",
)
STREAM_UNITS: Final = _counter(
    "stream_capacity_units",
    "{unit}",
    "Capacity units that pages of records have cost, as the service states with each page.",
)
LAG_SECONDS: Final = _gauge(
    "lag_seconds",
    "s",
    "Age of the oldest record that may be unread; 0 when caught up, absent while nothing is known.",
    per_shard=True,
)
TIME_TO_LOSS_SECONDS: Final = _gauge(
    "time_to_loss_seconds",
    "s",
    "How long the stream still keeps the oldest record that may be unread; absent when nothing is unread, or "
    "nothing is known.",
    per_shard=True,
)
SUSPECTED_LOSSES: Final = _counter(
    "tunnel_suspected_losses",
    "{channel}",
    "Tunnel channels that may have lost records, once for each cause. Cause is position if the position of a "
    "channel was past the retention when the channel was opened, or gap if reading went on from such a position with a "
    "record within the retention.",
    "cause",
)
PREFETCH_BUFFER_BYTES: Final = _gauge(
    "prefetch_buffer_bytes", "By", "Size of pages read ahead that wait for user code."
)

# --- shards and leases ---------------------------------------------------------------------------------------------

SHARDS: Final = _gauge(
    "shards",
    "{shard}",
    "Held shards by state (as in Worker.shard_statuses, in small letters), by the kind of the first reason, and by the "
    "exact cause of this reason, such as processor_failed. A shard that moves has the reason none and the cause none.",
    "state",
    "reason",
    "cause",
)
UNOWNED_SHARDS: Final = _gauge(
    "unowned_shards",
    "{shard}",
    "Unfinished shards of the stream that no worker of the fleet holds, as this worker sees it. A worker that cannot "
    "read the status table reports too many, so the smallest value of all workers is right.",
)
LEASES: Final = _gauge(
    "leases", "{lease}", "Held leases; state is running (with a consumer), waiting, or finished.", "state"
)
LEASE_MOVES: Final = _counter(
    "lease_moves",
    "{lease}",
    "Leases by move: taken, handed_over (on request or at a stop), given (away when finished), left (for the next "
    "worker at a stop), deleted (with their shard), or lost (also by an operator's release).",
    "move",
)
LEASE_WRITES: Final = _counter(
    "lease_writes",
    "{write}",
    "Writes to lease rows, heartbeats (renew) included; outcome is accepted, refused or uncertain.",
    "kind",
    "outcome",
)
SESSION_WRITES: Final = _counter(
    "session_writes",
    "{write}",
    "Writes to worker rows; kind is register, beat, kill (of another worker that stood still) or remove, outcome is "
    "accepted, refused or uncertain.",
    "kind",
    "outcome",
)
WAKES: Final = _counter("wakes", "{wake}", "Wakes sent to other workers, so that they scan immediately.")
CHECKPOINTS: Final = _counter(
    "checkpoints",
    "{checkpoint}",
    "Requests of user code for checkpoints; kind is checkpoint or prepare, outcome is stored, lease_lost, rejected or "
    "unknown.",
    "kind",
    "outcome",
)
CHECKPOINT_SECONDS: Final = _seconds(
    "checkpoint_duration", "How long user code waited for a checkpoint to be stored, prepared or refused."
)
HAND_OVER_GAP_SECONDS: Final = _seconds(
    "hand_over_gap",
    "Time from the scan that showed that a lease was handed over to this worker, until the shard's first batch reached "
    "user code or a read of the shard found nothing to deliver.",
)
EPOCH_DRAWS: Final = _counter("epoch_draws", "{draw}", "Epochs asked for; outcome is drawn or failed.", "outcome")

# --- the status table ----------------------------------------------------------------------------------------------

STATUS_TABLE_REQUESTS: Final = _counter(
    "status_table_requests",
    "{request}",
    "Requests to the status table, retries included. Result is ok, or the kind of error: throttled, transient, "
    "ambiguous, permanent, other.",
    "operation",
    "result",
)
STATUS_TABLE_ROWS_READ: Final = _counter("status_table_rows_read", "{row}", "Rows that the status table returned.")
STATUS_TABLE_ROWS_WRITTEN: Final = _counter(
    "status_table_rows_written",
    "{row}",
    "Rows in the write requests that the status table accepted, singly refused rows included.",
)
STATUS_TABLE_UNITS: Final = _counter(
    "status_table_capacity_units",
    "{unit}",
    "Capacity units that requests to the status table have cost, as the service says in its answers; kind is read or "
    "write.",
    "kind",
)
SCAN_SECONDS: Final = _seconds(
    "scan_duration", "Length of each successful scan of the status table, as the worker saw it."
)

# --- the worker ----------------------------------------------------------------------------------------------------

UNHEALTHY: Final = _gauge(
    "unhealthy",
    "{worker}",
    "1 while the work of a running worker is unhealthy, and after the worker has failed; otherwise 0.",
)
CLOCK_SLOW_SECONDS: Final = _gauge(
    "clock_slow_seconds",
    "s",
    "The least number of seconds by which this machine's clock is slow, because records are newer than the clock; 0 if "
    "no record is newer. A fast clock does not show.",
)

METRICS: Final = tuple([value for value in list(globals().values()) if isinstance(value, Metric)])
"""All metrics, in the order of this module."""
