"""The time for which no worker reads the channels of a tunnel worker that is shut down or killed."""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks.report import Line, Round, compare, interleaved
from benchmarks.settings import Settings
from benchmarks.stage import Stage, connect
from benchmarks.tunnel_target import Target, new_tunnel
from benchmarks.workers import LONGEST_ROUND_SECONDS
from streamclient import ClientConfig, InitializationInput, IRecordProcessor, ProcessRecordsInput, ShutdownInput
from streamclient.tunnel import TunnelClient, TunnelType, TunnelWorker, TunnelWorkerConfig

HEARTBEAT_SECONDS = 1
TIMEOUT_SECONDS = 4
"""The seconds between heartbeats, and the time-out, of both workers. With the defaults, 30 and 300, a round would last
minutes."""

CHANNELS = 4
"""The number of channels of the tunnel. Each of two workers reads half of them."""

TAG = "dying"
"""The beginning of the client id of the worker whose process ends."""

READING = "reading"
"""The line that the process of the worker prints once it reads its share of the channels."""

LOOK_SECONDS = 0.1
"""The longest time between two checks whether the worker that takes over has failed."""


def measure(stage: Stage, settings: Settings) -> list[Line]:
    """Measure workers that are shut down and killed; calculate the longest time with default settings."""
    table = stage.table(CHANNELS, settings.stream_records)
    short = f"heartbeat {HEARTBEAT_SECONDS} s, time-out {TIMEOUT_SECONDS} s"
    rounds: dict[str, Round] = {
        f"idle channels of a worker that is {how}, {short}": partial(_idle_millis, stage, table.name, end)
        for how, end in {"shut down": subprocess.Popen.terminate, "killed": subprocess.Popen.kill}.items()
    }
    lines = compare("tunnel", "ms", interleaved(settings.death_rounds, rounds, is_warmed_up=False))
    return [*lines, _with_defaults(lines[0].figure)]


def _with_defaults(base_millis: float) -> Line:
    config = TunnelWorkerConfig()
    interval, timeout = config.heartbeat_interval_seconds, config.heartbeat_timeout_seconds
    longest_millis = 1_000.0 * (timeout + interval)
    return Line(
        "tunnel",
        f"idle channels of a worker that is killed, heartbeat {interval} s, time-out {timeout} s (calculated)",
        longest_millis,
        "ms",
        longest_millis / base_millis,
        "calculated: at most the time-out and one heartbeat of the worker that takes over",
    )


def _idle_millis(stage: Stage, table: str, end: Callable[[subprocess.Popen[str]], None]) -> float:
    """Return the milliseconds from the signal that ends a worker until another worker reads all of its channels."""
    pages = PagesSeen()
    with (
        new_tunnel(stage.client(), table, TunnelType.STREAM) as target,
        worker_of(target.client, target.tunnel_id, "staying", pages) as staying,
        dying_worker(stage.endpoint, target) as process,
    ):
        lost = target.open_channels(TAG)
        if len(lost) != CHANNELS // 2:
            raise RuntimeError(f"the dying worker holds {len(lost)} of {CHANNELS} channels, not half of them")
        pages.forget(lost)
        started = time.perf_counter()
        end(process)
        return (pages.wait_for(lost, staying) - started) * 1_000


@contextmanager
def dying_worker(endpoint: str, target: Target) -> Iterator[subprocess.Popen[str]]:
    """Start a worker process, and yield it once it reads its share of the channels."""
    command = [sys.executable, "-m", "benchmarks.tunnel_deaths", endpoint, target.tunnel_id, str(CHANNELS // 2)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline().strip() if process.stdout is not None else ""
            if line != READING:
                raise RuntimeError(f"the worker did not begin to read its share; it printed {line!r}")
            yield process
        finally:
            process.kill()


class PagesSeen:
    """The times at which the processors of a worker got their first page of each channel. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._first: dict[str, float] = {}

    def saw(self, channel_id: str) -> None:
        """Store the time if this is the first page of a channel. The page may have no records."""
        with self._changed:
            self._first.setdefault(channel_id, time.perf_counter())
            self._changed.notify_all()

    def forget(self, channels: set[str]) -> None:
        """Forget the pages of ``channels``, so that only later pages count."""
        with self._changed:
            for channel_id in channels:
                self._first.pop(channel_id, None)

    def wait_for(self, channels: set[str], worker: TunnelWorker) -> float:
        """Wait for the first page of each of ``channels``; return the time of the last of these pages.

        Raises:
            RuntimeError: ``worker`` fails, or the longest time for a round has passed.
        """
        deadline = time.monotonic() + LONGEST_ROUND_SECONDS
        with self._changed:
            while not self._changed.wait_for(lambda: channels <= self._first.keys(), LOOK_SECONDS):
                if time.monotonic() > deadline or worker.exception is not None:
                    lacking, statuses = channels - self._first.keys(), worker.channel_statuses()
                    raise RuntimeError(f"{lacking} are not read; {worker.exception!r}, {worker.health}, {statuses}")
            return max(self._first[channel_id] for channel_id in channels)


class NotingProcessor(IRecordProcessor):
    """A processor that tells ``PagesSeen`` that its channel is read."""

    def __init__(self, pages: PagesSeen) -> None:
        self._pages = pages
        self._channel_id = ""

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Remember the channel."""
        self._channel_id = initialization_input.shard_info.shard_id

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Tell ``PagesSeen`` that a page came."""
        self._pages.saw(self._channel_id)

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Do nothing."""


def worker_of(client: TunnelClient, tunnel_id: str, tag: str, pages: PagesSeen) -> TunnelWorker:
    """Return a tunnel worker with short intervals that tells ``pages`` each page, also each page without records."""

    class Processor(NotingProcessor):
        """The processor class without arguments. The worker makes one processor for each channel."""

        def __init__(self) -> None:
            super().__init__(pages)

    config = TunnelWorkerConfig(
        heartbeat_interval_seconds=HEARTBEAT_SECONDS,
        heartbeat_timeout_seconds=TIMEOUT_SECONDS,
        client_tag=tag,
        client_config=ClientConfig(deliver_empty_batches=True),
    )
    return TunnelWorker(tunnel_id, client, Processor, config)


def main() -> None:
    """Run the process of the worker that ends: read until SIGTERM comes, or until the process is killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("endpoint")
    parser.add_argument("tunnel_id")
    parser.add_argument("channels", type=int, help="channels to wait for")
    options = parser.parse_args()
    pages = PagesSeen()
    with worker_of(TunnelClient(connect(options.endpoint)), options.tunnel_id, TAG, pages) as worker:
        worker.wait(until=lambda: len(worker.channel_statuses()) == options.channels)
        print(READING, flush=True)
        worker.wait()  # SIGTERM ends it, and shuts the worker down


if __name__ == "__main__":
    main()
