"""The cost of leases and shards without records: requests to the status table, and processor time."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack

from attrs import frozen
from tablestore import OTSClient

from benchmarks.report import Line, at_most, progress
from benchmarks.settings import Settings
from benchmarks.stage import Stage
from benchmarks.workers import CheckpointingProcessor, Meter
from streamclient import ClientConfig, ShardState, StreamConfig, Worker
from streamclient.tunnel import TunnelWorker

IDLE_MILLIS = 30_000
"""The milliseconds between reads of an empty shard. The long pause only makes reads of the *stream* rare: with a
thousand idle shards they would keep both cores busy. All settings that concern the status table keep their defaults."""

SETTLE_SECONDS = 120.0
"""The time-out, in seconds, for one worker to take all leases. Usually it takes a few heartbeats."""

POLL_SECONDS = 0.2

JAVA_SCANS = ("taking", "noticing steals", "shard sync")
"""The reasons for which each Java worker scans the status table (in LeaseTaker, LeaseRenewer and ShardSyncTask of the
Java client). The first two come once per heartbeat, the third once per shard sync."""

MOST_AT_FIRST, MOST_LATER = 15.0, 5.0
"""The largest accepted processor time of a thousand idle shards, in percent of a core: first, and after a silence."""

_MINUTE_MILLIS = 60_000


def measure(stage: Stage, settings: Settings) -> list[Line]:
    """Measure the requests to the status table, then the processor time of shards without new records."""
    return [*_requests(stage, settings), *_idle(stage, settings)]


@frozen
class Span:
    """A time range in which the processor time of idle shards is measured, in seconds since the last record."""

    name: str
    start: float
    end: float
    most: float | None = None
    """The largest accepted processor time of the shards, in percent of a core."""

    def line(self, shards: int, clocks: Mapping[float, tuple[float, float]]) -> Line:
        """Return the line for this time range; ``clocks`` has wall time and processor time at its begin and end."""
        (wall_before, before), (wall_after, after) = clocks[self.start], clocks[self.end]
        share, unit = (after - before) / (wall_after - wall_before) * 100, "% of a core"
        name = f"{shards} idle shards in one worker, {self.name}"
        detail = f"from {self.start:.0f} to {self.end:.0f} s without a record"
        aims = () if self.most is None else (at_most(share, self.most, unit),)
        return Line("leases", name, share, unit, 1.0, detail, aims=aims)


def _idle(stage: Stage, settings: Settings) -> list[Line]:
    """Measure the processor time of a worker with default settings and idle shards, at first and after a silence."""
    count, window, silence = max(settings.lease_counts), settings.lease_window_seconds, settings.silence_seconds
    spans = (
        Span("at first", 0.0, window),
        Span("in the first minutes", 0.0, settings.first_minutes_seconds, MOST_AT_FIRST),
        Span("later", silence, silence + window, MOST_LATER),
    )
    clocks = {}
    with ExitStack() as running:
        await_leases(_start(running, stage, count, ClientConfig(), "idle"), count)
        begun = time.monotonic()
        for moment in sorted({moment for span in spans for moment in (span.start, span.end)}):
            progress(f"{count} idle shards: waiting for {moment:.0f} s without a record")
            threading.Event().wait(max(0.0, begun + moment - time.monotonic()))
            clocks[moment] = time.monotonic(), time.process_time()
    return [span.line(count, clocks) for span in spans]


def _requests(stage: Stage, settings: Settings) -> list[Line]:
    """Count the requests of workers with different numbers of leases, all in the same time."""
    config = ClientConfig(worker_idle_time_millis=IDLE_MILLIS, max_idle_poll_interval_millis=IDLE_MILLIS)
    with ExitStack() as running:
        workers = {count: _start(running, stage, count, config) for count in settings.lease_counts}
        for count, worker in workers.items():
            await_leases(worker, count)
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
    table = f"{prefix}_{count}"
    stage.make_table(table, count)
    return start_worker(running, stage.client(), table, _status_table(count, prefix), config)


def start_worker(running: ExitStack, client: OTSClient, table: str, status_table: str, config: ClientConfig) -> Worker:
    """Start a worker that reads a table without new records. It ends when the stack ``running`` is closed."""
    stream = StreamConfig(client=client, data_table_name=table, status_table_name=status_table)
    meter = Meter(expected=1)
    return running.enter_context(Worker("worker", config, stream, lambda: CheckpointingProcessor(meter)))


def await_leases(worker: Worker | TunnelWorker, count: int) -> None:
    """Wait until the worker reads ``count`` shards or channels."""
    deadline = time.monotonic() + SETTLE_SECONDS
    pause = threading.Event()
    while True:
        statuses = worker.channel_statuses() if isinstance(worker, TunnelWorker) else worker.shard_statuses()
        states = [status.state for status in statuses.values()]
        if states.count(ShardState.PROCESSING) == count:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"the worker reads {states.count(ShardState.PROCESSING)} of {count} shards: {worker}")
        pause.wait(POLL_SECONDS)


def _lines(count: int, requests: dict[str, int], factor: float, config: ClientConfig) -> list[Line]:
    """Return the lines for the counted requests, and for the requests that a Java worker would make by its rules."""
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
