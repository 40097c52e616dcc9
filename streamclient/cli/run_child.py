"""A process of ``streamclient run --processes``: one worker, and the pipe to the process that supervises it.

Over the pipe go lines of JSON. The supervisor first sends the arguments, and then ``{"ask": "series"}`` whenever it
wants the metrics. This process tells that its worker was made, every second how the worker is, and what it failed of.
When the pipe closes the supervisor is gone, also by ``kill -9``: the worker then ends in order.
"""

from __future__ import annotations

import io
import json
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import frozen

from streamclient.base.pools import start_thread
from streamclient.cli.terminal.commands import EXIT_REFUSED, EXIT_UNUSABLE, CommandFailed, run_command
from streamclient.errors import NoThreadError, StreamClientError, WorkerFailedError, is_foreseen

if TYPE_CHECKING:
    from streamclient.metrics.memory_metrics import MemoryMetrics, Series
    from streamclient.worker import Worker

REPORT_SECONDS = 1.0
"""How often a process says how its worker is."""

END_SECONDS = 60.0
"""Longest wait for a process that was asked to end: twice the default bound of a worker's own shutdown."""

STDOUT, STDERR = 1, 2

LONGEST_REST = 1 << 16
"""Characters that a thread may print without ending the line; more are written as they are."""


@frozen
class ProcessFailure:
    """What a process ended of by itself."""

    sentence: str
    exit_code: int
    is_refusal: bool
    """Whether a setting is wrong, so that a process with the same settings ends of it, too."""


class Pipe:
    """Lines of JSON over a socket. One thread reads; any may send."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._lock = threading.Lock()
        self._lines = end.makefile("rb")

    def send(self, **document: Any) -> None:
        """Send one line; a pipe that the other side has closed takes it, too."""
        try:
            with self._lock:
                self._end.sendall(json.dumps(document).encode() + b"\n")
        except OSError:
            return  # the reader of this side learns of it

    def receive(self) -> Any:
        """The next line; ``None`` if the other side has closed it."""
        try:
            line = self._lines.readline()
        except OSError:
            return None
        return json.loads(line) if line.endswith(b"\n") else None

    def wait(self, seconds: float) -> bool:
        """Whether there is something to receive, or the end; for a pipe whose lines come one by one."""
        return bool(select.select([self._end], [], [], seconds)[0])

    def close(self) -> None:
        """Close this side; the other one receives the end."""
        self._lines.close()
        self._end.close()


def packed(series: Sequence[Series]) -> list[Any]:
    """Series as JSON can hold them."""
    return [
        (
            each.metric.name,
            list(each.labels.values()),
            each.value,
            None if each.distribution is None else (each.distribution.count, each.distribution.buckets),
        )
        for each in series
    ]


def unpacked(found: Sequence[Any]) -> list[Series]:
    """What ``packed`` made, as series."""
    from streamclient.metrics.memory_metrics import Distribution, Series  # noqa: PLC0415
    from streamclient.metrics.metric_table import METRICS  # noqa: PLC0415

    named = {metric.name: metric for metric in METRICS}
    return [
        Series(
            named[name],
            dict(zip(named[name].labels, labels, strict=True)),
            value,
            None if spread is None else Distribution(spread[0], value, tuple(spread[1])),
        )
        for name, labels, value, spread in found
    ]


class WholeLines(io.TextIOWrapper):
    """Standard output or error that writes at the end of a line, and each line at once.

    ``print`` writes a line in two parts; the shards' threads would tear each other's.
    """

    def __init__(self, number: int) -> None:
        opened = io.BufferedWriter(io.FileIO(number, "wb", closefd=False))
        super().__init__(opened, errors="backslashreplace", line_buffering=True)
        self._begun = threading.local()

    def write(self, text: str) -> int:
        """Keep what is not yet a line for this thread."""
        whole, end, rest = (getattr(self._begun, "text", "") + text).rpartition("\n")
        if len(rest) > LONGEST_REST:
            whole, end, rest = whole + end, rest, ""
        self._begun.text = rest
        if end:
            super().write(whole + end)
        return len(text)


class Reporter:
    """Tells the supervisor of the worker, from a thread of its own."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._worker: Worker | None = None
        self._metrics: MemoryMetrics | None = None

    def begin(self) -> None:
        """Begin to watch the pipe; at first there is no worker to tell of.

        Raises:
            NoThreadError: the system refused the thread.
        """
        start_thread(self._report, "reporter")

    def made(self, worker: Worker, metrics: MemoryMetrics | None) -> None:
        """The worker was made: its start is behind it."""
        self._worker, self._metrics = worker, metrics
        self._tell_health()

    def failed(self, failure: ProcessFailure) -> None:
        """The process ends of this."""
        self._pipe.send(
            failed={
                "sentence": failure.sentence,
                "exit_code": failure.exit_code,
                "is_refusal": failure.is_refusal,
            }
        )

    def _report(self) -> None:
        while True:
            if not self._pipe.wait(REPORT_SECONDS):
                self._tell_health()
            elif self._pipe.receive() is None:
                _end_in_order()
                return
            else:
                self._pipe.send(series=[] if self._metrics is None else packed(self._metrics.snapshot()))

    def _tell_health(self) -> None:
        if self._worker is not None:
            health = self._worker.health
            self._pipe.send(health=[health.is_healthy, health.reason], has_begun=self._worker.has_begun)


def _end_in_order() -> None:
    """As by a SIGTERM of the supervisor, which can send none any more; nor could it end a worker that does not end.

    Nobody reads what is printed from now on, and that is no failure of the user code that prints.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (STDOUT, STDERR):
        os.dup2(nowhere, number)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(END_SECONDS)
    os._exit(EXIT_REFUSED)


def work(reporter: Reporter, arguments: Namespace) -> int:
    """Run the worker; the exit code. What it fails of is told to the supervisor, which prints it once for all."""
    from streamclient.cli.run_worker import log_to_stderr, make_worker, run_worker  # noqa: PLC0415
    from streamclient.metrics.memory_metrics import MemoryMetrics  # noqa: PLC0415

    log_to_stderr(arguments)
    try:
        metrics = None if arguments.metrics_port is None else MemoryMetrics()
        worker = make_worker(arguments, metrics)
        reporter.made(worker, metrics)
        return run_worker(worker)
    except Exception as error:
        failure = failure_of(error)
        if not isinstance(error, CommandFailed | StreamClientError):
            traceback.print_exc()
        reporter.failed(failure)
        return failure.exit_code


def failure_of(error: Exception) -> ProcessFailure:
    """What the supervisor has to know of an error that ends the process.

    A worker that fails of a fault may work again; one that cannot be made, and one that the service does not let in,
    are refused.
    """
    cause = error.__cause__
    if isinstance(cause, WorkerFailedError):
        return ProcessFailure(str(error), EXIT_REFUSED, all(map(is_foreseen, cause.errors.values())))
    if isinstance(error, CommandFailed):
        return ProcessFailure(str(error), error.exit_code, is_refusal=True)
    if isinstance(error, StreamClientError):
        return ProcessFailure(str(error), EXIT_UNUSABLE, is_refusal=True)
    return ProcessFailure(f"{type(error).__name__}: {error}", EXIT_REFUSED, is_refusal=True)


def main() -> int:
    """Run what the supervisor asks for over the socket that the first argument numbers."""
    end = socket.socket(fileno=int(sys.argv[1]))
    end.set_inheritable(False)
    sys.stdout, sys.stderr = WholeLines(STDOUT), WholeLines(STDERR)
    pipe = Pipe(end)
    given = pipe.receive()
    if given is None:
        return EXIT_REFUSED
    reporter = Reporter(pipe)
    try:
        reporter.begin()
    except NoThreadError as error:
        reporter.failed(ProcessFailure(str(error), EXIT_REFUSED, is_refusal=False))
        return EXIT_REFUSED
    return run_command(Namespace(**given, run=partial(work, reporter)))


if __name__ == "__main__":
    sys.exit(main())
