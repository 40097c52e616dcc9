"""What the supervisor sees of one worker's process: its reports, its output, its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from streamclient.base.pools import start_thread
from streamclient.cli.run_child import END_SECONDS, Pipe, ProcessFailure, unpacked
from streamclient.cli.terminal.output import complain
from streamclient.errors import NoThreadError

if TYPE_CHECKING:
    from streamclient.metrics.memory_metrics import Series

SILENT_SECONDS = 20.0
"""A process that says nothing for so long is unhealthy: the default lease duration, after which its shards move."""

SERIES_SECONDS = 5.0
"""Longest wait for the metrics of one process; Prometheus itself gives up after ten seconds."""

LONGEST_LINE_BYTES = 1 << 20
"""Of the output of a process; a longer line is broken here, so that one without an end takes no memory without end."""

REST_SECONDS = 5.0
"""Longest wait for the last lines of a process that has ended: one that it started may keep the output open."""

LOOK_SECONDS = 0.2
"""Between two looks at whether there is hurry."""


class Log:
    """What all processes print, line by line on this process's own standard output and error. Thread-safe.

    One lock serves both, as they may lead to the same place.
    """

    def __init__(self, out: BinaryIO | None = None, err: BinaryIO | None = None) -> None:
        self._out, self._err = out, err
        self._lock = threading.Lock()

    @property
    def out(self) -> BinaryIO:
        """Where standard output goes."""
        return sys.stdout.buffer if self._out is None else self._out

    @property
    def err(self) -> BinaryIO:
        """Where standard error goes."""
        return sys.stderr.buffer if self._err is None else self._err

    def say(self, text: str) -> None:
        """A line of the supervisor; left out where nobody reads what was printed before it."""
        if self._lock.acquire(timeout=REST_SECONDS):
            try:
                complain(text)
            except (OSError, ValueError):
                return
            finally:
                self._lock.release()

    def follow(self, name: str, source: IO[bytes], target: BinaryIO) -> threading.Thread:
        """Print lines as they come, each behind the name, from a thread that ends with the source."""
        return start_thread(lambda: self._copy(name, source, target), f"log-{name}")

    def _copy(self, name: str, source: IO[bytes], target: BinaryIO) -> None:
        prefix = f"{name} | ".encode()
        with source:
            while line := source.readline(LONGEST_LINE_BYTES):
                self._write(target, prefix + line.removesuffix(b"\n") + b"\n")

    def _write(self, target: BinaryIO, line: bytes) -> None:
        try:
            with self._lock:
                target.write(line)
                target.flush()
        except (OSError, ValueError):
            return  # nobody reads this output any more; the processes go on, as their work is not to print


class SupervisedWorker:
    """A process that runs one worker. ``wake`` is called whenever it has something to tell, from another thread."""

    def __init__(self, name: str, arguments: Mapping[str, Any], log: Log, wake: Callable[[], None]) -> None:
        self.name = name
        self.has_started = False
        """Whether its worker was made."""
        self.has_begun = False
        """Whether the service let its worker in."""
        self.failure: ProcessFailure | None = None
        self.health: tuple[bool, str] = (False, "is starting")
        """As it said last."""
        self.heard_at = time.monotonic()
        self._wake = wake
        self._asked = threading.Lock()
        self._answered = threading.Event()
        self._series: list[Series] = []
        ours, theirs = socket.socketpair()
        self._pipe = Pipe(ours)
        with theirs:
            self._process = _start(name, theirs)
        self._threads: list[threading.Thread] = []
        try:
            self._pipe.send(**arguments)
            self._threads.append(start_thread(self._listen, f"reports-{name}"))
            for source, target in ((self._process.stdout, log.out), (self._process.stderr, log.err)):
                assert source is not None
                self._threads.append(log.follow(name, source, target))
        except NoThreadError:
            self.kill()
            self.ending()
            for source in (self._process.stdout, self._process.stderr):
                assert source is not None
                source.close()
            raise

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it lives."""
        return self._process.poll() is None

    def ending(self) -> str:
        """What it ended of, once it has: all that it reported and printed is there when this returns."""
        self._process.wait()
        give_up_at = time.monotonic() + REST_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, give_up_at - time.monotonic()))
        self._pipe.close()
        if self.failure is not None:
            return self.failure.sentence
        code = self._process.returncode
        return f"it was killed by {signal.Signals(-code).name}" if code < 0 else f"it ended with exit code {code}"

    def ask_to_stop(self) -> None:
        """Send SIGTERM; does not wait. A frozen process gets it when it is thawed."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """``kill -9`` the process and those that it started, and wait until it is gone."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        finally:
            self._process.wait()

    def ends_within(self, seconds: float) -> bool:
        """Whether it ends in this time."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def ask_series(self) -> list[Series]:
        """Its metrics now; none if it does not answer in time. Any thread."""
        with self._asked:
            self._answered.clear()
            if not self.is_running:
                return []
            self._pipe.send(ask="series")
            return self._series if self._answered.wait(SERIES_SECONDS) else []

    def _listen(self) -> None:
        while (told := self._pipe.receive()) is not None:
            self.heard_at = time.monotonic()
            if "health" in told:
                self.health, self.has_begun = tuple(told["health"]), told["has_begun"]
                self.has_started = True
            elif "failed" in told:
                self.failure = ProcessFailure(**told["failed"])
            else:
                self._series = unpacked(told["series"])
                self._answered.set()
            self._wake()
        self._wake()


def _start(name: str, pipe: socket.socket) -> subprocess.Popen[bytes]:
    """The name is for people who list processes."""
    return subprocess.Popen(
        [sys.executable, "-m", "streamclient.cli.run_child", str(pipe.fileno()), name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(pipe.fileno(),),
        # Ctrl-C in a terminal reaches its whole process group: only the supervisor may get that, and pass on what it
        # makes of it.
        start_new_session=True,
    )


def end_all(processes: Sequence[SupervisedWorker], log: Log, is_hurried: Callable[[], bool]) -> None:
    """End them in order and all at once; whatever has not ended in time, or when there is hurry, is killed."""
    for process in processes:
        process.ask_to_stop()
    give_up_at = time.monotonic() + END_SECONDS
    for process in processes:
        while not is_hurried() and time.monotonic() < give_up_at:
            if process.ends_within(min(LOOK_SECONDS, max(0.0, give_up_at - time.monotonic()))):
                break
        if process.is_running:
            why = "a second Ctrl-C came" if is_hurried() else f"it did not end within {END_SECONDS:.0f} s"
            log.say(f"{process.name} is killed: {why}; its leases expire")
            process.kill()
    for process in processes:
        process.ending()
