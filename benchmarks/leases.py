"""What leases and shards cost while nothing happens: requests to the status table, processor time, memory."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.report import Line, bound, progress
from benchmarks.settings import Settings
from benchmarks.stage import Stage
from benchmarks.tables import FilledTable
from benchmarks.workers import CheckpointingProcessor, Meter
from streamclient import ClientConfig, ShardState, StreamConfig, Worker

IDLE_MILLIS = 30_000
"""Pause between reads of an empty shard. Only reads of the *stream* are thinned out by it, which would keep both cores
busy with a thousand idle shards; everything that concerns the status table has its default."""

SETTLE_SECONDS = 120.0
"""Bound for one worker to take all leases; it takes a few heartbeats."""

POLL_SECONDS = 0.2

JAVA_SCANS = ("taking", "noticing steals", "shard sync")
"""What makes each Java worker scan the status table, the first two per heartbeat, the third per shard sync (Java stream
client: LeaseTaker, LeaseRenewer, ShardSyncTask)."""

MOST_AT_FIRST, MOST_LATER, MOST_MEGABYTES = 15.0, 5.0, 200.0
"""What a thousand idle shards may cost: parts of a core in a hundred, and memory."""

_MINUTE_MILLIS = 60_000


def measure(stage: Stage, settings: Settings) -> list[Line]:
    """Requests to the status table, then what the shards themselves cost while nobody writes."""
    return [*_requests(stage, settings), *_idle(stage, settings)]


def _idle(stage: Stage, settings: Settings) -> list[Line]:
    """Processor time of this process with one worker, read with default settings, at first and after a silence."""
    count = max(settings.lease_counts)
    memory, lines = _memory_bytes(), []
    with ExitStack() as running:
        begun = time.monotonic()
        _await_leases(_start(running, stage, count, ClientConfig(), "idle"), count)
        for name, silence, most in (("in the first minutes", 0.0, MOST_AT_FIRST), ("later", None, MOST_LATER)):
            wanted = settings.silence_seconds if silence is None else silence
            threading.Event().wait(max(0.0, begun + wanted - time.monotonic()))
            progress(f"{count} idle shards, {name}: counting for {settings.lease_window_seconds:.0f} s")
            used, since = time.process_time(), time.monotonic()
            threading.Event().wait(settings.lease_window_seconds)
            share = (time.process_time() - used) / (time.monotonic() - since) * 100
            text = f"{count} idle shards in one worker, {name}"
            lines.append(Line("leases", text, share, "% of a core", 1.0, _silence(since - begun, share, most)))
        grown = (_memory_bytes() - memory) / 1e6
    detail = bound(grown, MOST_MEGABYTES, "MB")
    return [*lines, Line("leases", f"memory of {count} idle shards and their worker", grown, "MB", 1.0, detail)]


def _silence(seconds: float, share: float, most: float) -> str:
    return f"after {seconds:.0f} s without a record; {bound(share, most, '%')}"


def _memory_bytes() -> int:
    return int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0]) * 1024


def _requests(stage: Stage, settings: Settings) -> list[Line]:
    """One worker per number of leases, all counted in the same window."""
    config = ClientConfig(worker_idle_time_millis=IDLE_MILLIS, max_idle_poll_interval_millis=IDLE_MILLIS)
    with ExitStack() as running:
        workers = {count: _start(running, stage, count, config) for count in settings.lease_counts}
        for count, worker in workers.items():
            _await_leases(worker, count)
        progress(f"counting requests to the status tables for {settings.lease_window_seconds:.0f} s")
        stage.reset_requests()
        threading.Event().wait(settings.lease_window_seconds)
        counts = {count: stage.requests(_status_table(count)) for count in settings.lease_counts}
    factor = _MINUTE_MILLIS / 1_000 / settings.lease_window_seconds
    return [line for count, requests in counts.items() for line in _lines(count, requests, factor, config)]


def _status_table(count: int, prefix: str = "leases") -> str:
    return f"{prefix}_{count}_status"


def _start(running: ExitStack, stage: Stage, count: int, config: ClientConfig, prefix: str = "leases") -> Worker:
    progress(f"starting a worker with {count} shards")
    client = stage.client()
    table = FilledTable(f"{prefix}_{count}", stage.make_table(f"{prefix}_{count}", count), count, 0)
    stream = StreamConfig(client=client, data_table_name=table.name, status_table_name=_status_table(count, prefix))
    meter = Meter(expected=1)
    worker = Worker(f"worker-{count}", config, stream, lambda: CheckpointingProcessor(meter))
    return running.enter_context(worker)


def _await_leases(worker: Worker, count: int) -> None:
    deadline = time.monotonic() + SETTLE_SECONDS
    pause = threading.Event()
    while True:
        states = [status.state for status in worker.shard_statuses().values()]
        if states.count(ShardState.PROCESSING) == count:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"the worker reads {states.count(ShardState.PROCESSING)} of {count} shards: {worker}")
        pause.wait(POLL_SECONDS)


def _lines(count: int, requests: dict[str, int], factor: float, config: ClientConfig) -> list[Line]:
    """What was counted, beside what the Java client's rules come to."""
    counted = sum(requests.values()) * factor
    seen = ", ".join(f"{operation} {number}" for operation, number in sorted(requests.items()))
    window = f"counted in {_MINUTE_MILLIS / 1_000 / factor:.0f} s: {seen}"
    heartbeats = _MINUTE_MILLIS / config.renewer_interval_millis
    scans = 2 * heartbeats + _MINUTE_MILLIS / config.sync_shard_interval_millis
    java = count * heartbeats + scans
    rule = f"calculated: {count} x {heartbeats:.0f} UpdateRow, {scans:.0f} GetRange for {', '.join(JAVA_SCANS)}"
    unit = "requests/min"
    return [
        Line("leases", f"status table, {count} leases, one worker", counted, unit, 1.0, window),
        Line(
            "leases", f"status table, {count} leases, Java client's rule (calculated)", java, unit, java / counted, rule
        ),
    ]
