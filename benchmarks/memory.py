"""The memory that a worker needs for many idle shards, beyond its memory with one shard.

Each worker runs in a new process, because an older process would reuse memory of earlier measurements.
"""

from __future__ import annotations

import threading
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path

from benchmarks.leases import await_leases, start_worker
from benchmarks.report import Line, at_most, progress
from benchmarks.settings import Settings
from benchmarks.stage import Stage, connect
from streamclient import ClientConfig

MOST_MEGABYTES = 200.0
"""The largest accepted memory of a thousand idle shards, in megabytes."""

_MEGABYTE = 1e6


def measure(stage: Stage, settings: Settings) -> list[Line]:
    """Measure the memory of a worker with many shards, minus the memory of a worker with a single shard."""
    count = max(settings.lease_counts)
    one, many = (_with_shards(stage, shards, settings.lease_window_seconds) for shards in (1, count))
    grown = (many - one) / _MEGABYTE
    detail = f"a worker with one shard, its process included, has {one / _MEGABYTE:.0f} MB"
    name, aim = f"memory of {count} idle shards of one worker", at_most(grown, MOST_MEGABYTES, "MB")
    return [Line("memory", name, grown, "MB", 1.0, detail, aims=(aim,))]


def _with_shards(stage: Stage, shards: int, seconds: float) -> int:
    progress(f"starting a worker with {shards} shards in a process of its own")
    table = f"memory_{shards}"
    stage.make_table(table, shards)
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(_resident_bytes, stage.endpoint, table, shards, seconds).result()


def _resident_bytes(endpoint: str, table: str, shards: int, seconds: float) -> int:
    """Return the memory of this process, in bytes, after its worker has read all empty shards for ``seconds``."""
    with ExitStack() as running:
        worker = start_worker(running, connect(endpoint), table, f"{table}_status", ClientConfig())
        await_leases(worker, shards)
        threading.Event().wait(seconds)
        return int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0]) * 1024
