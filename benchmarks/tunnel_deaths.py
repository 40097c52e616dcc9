"""The time that the channels of a tunnel worker are idle when its process ends, in order or not."""

from __future__ import annotations

import argparse
import signal
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
"""The intervals of both workers. With the defaults, 30 and 300, a round would last minutes."""

CHANNELS = 4
"""The channels of the tunnel. Each worker reads half of them."""

TAG = "dying"
"""The beginning of the client id of the worker whose process ends."""

READING = "reading"
"""The line that this process prints once it reads its share."""

LOOK_SECONDS = 0.1
"""The time between two checks of this process whether it reads its share."""


def measure(stage: Stage, settings: Settings) -> list[Line]:
    """Measure workers that are shut down and killed in turn, and calculate the longest time with default settings."""
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
    """Return the time from the signal until another worker has read a page of each channel of the ended one."""
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
    """Run a worker process, and yield it once it reads its share of the channels."""
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
    """The times at which the processors of a worker first got a page of each channel. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._first: dict[str, float] = {}

    def saw(self, channel_id: str) -> None:
        """Note that a page came, perhaps without records."""
        with self._changed:
            self._first.setdefault(channel_id, time.perf_counter())
            self._changed.notify_all()

    def forget(self, channels: set[str]) -> None:
        """Forget the pages of ``channels``, so that only new ones count."""
        with self._changed:
            for channel_id in channels:
                self._first.pop(channel_id, None)

    def wait_for(self, channels: set[str], worker: TunnelWorker) -> float:
        """Wait for a page of each of ``channels``; return the time of the last one.

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
    """Notes that its channel is read."""

    def __init__(self, pages: PagesSeen) -> None:
        self._pages = pages
        self._channel_id = ""

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Remember the channel."""
        self._channel_id = initialization_input.shard_info.shard_id

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Note that a page came."""
        self._pages.saw(self._channel_id)

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Do nothing."""


def worker_of(client: TunnelClient, tunnel_id: str, tag: str, pages: PagesSeen) -> TunnelWorker:
    """Return a worker with short intervals that notes each page, also those without records."""

    class Processor(NotingProcessor):
        """A processor without arguments, of which the worker makes one per channel."""

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
    """Run the process that ends: read until SIGTERM, or until it is killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("endpoint")
    parser.add_argument("tunnel_id")
    parser.add_argument("channels", type=int, help="channels to wait for")
    options = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    pages = PagesSeen()
    with worker_of(TunnelClient(connect(options.endpoint)), options.tunnel_id, TAG, pages) as worker:
        while len(worker.channel_statuses()) != options.channels and worker.exception is None:
            stop.wait(LOOK_SECONDS)
        if worker.exception is not None:
            raise SystemExit(f"the worker ended: {worker.exception}")
        print(READING, flush=True)
        stop.wait()


if __name__ == "__main__":
    main()
