"""``streamclient run --processes N``: workers in processes of their own, started again when they die.

They are ordinary workers of one fleet, which share the shards through the status table; this process reads nothing and
writes nothing there. It starts them, prints what they print, answers for their metrics and their health, and ends them.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from attrs import define

from streamclient.base.backoff import doubling_millis, with_jitter
from streamclient.base.reasons import times
from streamclient.cli.options import option_value
from streamclient.cli.run_child import ProcessFailure
from streamclient.cli.run_supervision import SILENT_SECONDS, Log, SupervisedWorker, end_all
from streamclient.cli.run_worker import endpoint, worker_name
from streamclient.cli.terminal.commands import EXIT_DONE, EXIT_INTERRUPTED, CommandFailed
from streamclient.errors import NoThreadError
from streamclient.worker.running import wait_awake

if TYPE_CHECKING:
    from streamclient.metrics.memory_metrics import Series

SHORTEST_RESTART_MILLIS = 1_000
LONGEST_RESTART_MILLIS = 60_000
"""Between the end of a process and the start of the next one: doubling, so that one that keeps dying costs little."""

START_SECONDS = 120.0
"""Longest start, until the worker is made: Python, the imports of user code, which may bring Spark, and no call. A
worker that waits for the service has started."""

STEADY_SECONDS = 60.0
"""A process whose worker was let in so long ago has shown that it works: earlier failures are forgotten."""

TICK_SECONDS = 0.2
"""Between two looks at the processes; whatever they report is seen at once."""


@define
class WorkerSlot:
    """One worker's name, and the process that runs it now."""

    name: str
    process: SupervisedWorker | None = None
    started_at: float = 0.0
    begun_at: float | None = None
    """When this process was first seen at work."""
    due_at: float = 0.0
    """When the next process is to be started."""
    failures: int = 0
    """Processes that ended in a row, none of them steady."""
    last_error: str = ""
    refusal: ProcessFailure | None = None
    """What the last process was refused for, as long as none after it was let in."""

    def seen(self, now: float) -> None:
        """Note how the process gets on."""
        if self.process is None or not self.process.has_begun:
            return
        self.refusal = None
        self.begun_at = now if self.begun_at is None else self.begun_at
        if now - self.begun_at >= STEADY_SECONDS:
            self.failures = 0

    def ended(self, error: str, refusal: ProcessFailure | None, now: float, dice: random.Random) -> float:
        """Note the end of the process; the pause before the next one, in seconds."""
        self.process, self.begun_at, self.last_error, self.refusal = None, None, error, refusal
        self.failures += 1
        pause = with_jitter(doubling_millis(self.failures, SHORTEST_RESTART_MILLIS, LONGEST_RESTART_MILLIS), dice)
        self.due_at = now + pause / 1_000
        return pause / 1_000

    def health(self, now: float) -> tuple[bool, str]:
        """Whether its worker is healthy, and not one of those that keep dying. Any thread."""
        process = self.process
        if process is None and not self.failures:
            return False, "is starting"
        if process is None:
            return False, f"is not running: {self.last_error}"
        if self.failures and (self.begun_at is None or self.failures > 1):
            return False, f"was started again {times(self.failures)}, the last time after: {self.last_error}"
        silent = now - process.heard_at
        if process.has_started and silent > SILENT_SECONDS:
            return False, f"has said nothing for {silent:.0f} s"
        return process.health


class Supervisor:
    """Keeps one process for each name running. ``step`` belongs to one thread; health and series to any."""

    def __init__(
        self,
        names: list[str],
        start: Callable[[str, Callable[[], None]], SupervisedWorker],
        log: Log,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``start`` starts the process of a name; its second argument is to be called when there is news."""
        self.places = [WorkerSlot(name) for name in names]
        self._start = start
        self._log = log
        self._monotonic = monotonic
        self._dice = random.Random()
        self._news = threading.Event()
        self._is_asked_to_stop = False  # no event: a signal's handler may interrupt whoever holds its lock

    def run(self) -> None:
        """Supervise until ``request_stop``.

        Raises:
            CommandFailed: all processes were refused, so the next ones would be, too.
        """
        while not self._is_asked_to_stop:
            self._news.clear()
            self.step()
            wait_awake(self._news, TICK_SECONDS)

    def request_stop(self) -> None:
        """Have ``run`` return, within moments. Any thread, and a signal's handler."""
        self._is_asked_to_stop = True

    def step(self) -> None:
        """Look at every process once: start those that are due, note those that have ended."""
        now = self._monotonic()
        for place in self.places:
            self._look_at(place, now)
        refusals = [place.refusal for place in self.places if place.refusal is not None]
        if len(refusals) == len(self.places):
            raise CommandFailed(refusals[0].sentence, refusals[0].exit_code)

    def processes(self) -> list[SupervisedWorker]:
        """Those that were started and have not been seen to end."""
        return [place.process for place in self.places if place.process is not None]

    def health(self) -> tuple[bool, str]:
        """Healthy if all workers are; otherwise what is wrong with each that is not."""
        now = self._monotonic()
        judged = [(place.name, *place.health(now)) for place in self.places]
        reasons = [f"{name}: {reason}" for name, is_healthy, reason in judged if not is_healthy]
        return not reasons, "; ".join(reasons)

    def _look_at(self, place: WorkerSlot, now: float) -> None:
        process = place.process
        if process is None:
            if now >= place.due_at:
                self._start_in(place, now)
            return
        place.seen(now)
        if process.is_running and not process.has_started and now - place.started_at > START_SECONDS:
            process.kill()
            process.ending()
            self._note_end(place, f"it did not start within {START_SECONDS:.0f} s", None, now)
        elif not process.is_running:
            error = process.ending()
            place.seen(now)
            is_refused = process.failure is not None and process.failure.is_refusal
            self._note_end(place, error, process.failure if is_refused else None, now)

    def _start_in(self, place: WorkerSlot, now: float) -> None:
        try:
            place.process, place.started_at = self._start(place.name, self._news.set), now
        except (OSError, NoThreadError) as error:
            self._note_end(place, f"it cannot be started: {error}", None, now)

    def _note_end(self, place: WorkerSlot, error: str, refusal: ProcessFailure | None, now: float) -> None:
        pause = place.ended(error, refusal, now, self._dice)
        self._log.say(f"{place.name} ended and starts again in {pause:.1f} s: {error}")


def series_of(supervisor: Supervisor, stream: str) -> list[Series]:
    """The metrics of all workers; one that has no process to ask, or whose process keeps dying, counts as unhealthy."""
    from streamclient.metrics.memory_metrics import Series  # noqa: PLC0415
    from streamclient.metrics.metric_table import UNHEALTHY  # noqa: PLC0415

    found: list[Series] = []
    asked = [(place.name, place.process, place.health(time.monotonic())) for place in supervisor.places]
    for name, process, (is_healthy, _) in asked:
        series = [] if process is None else process.ask_series()
        found.extend(each for each in series if each.metric is not UNHEALTHY)
        found.append(Series(UNHEALTHY, {"stream": stream, "worker": name}, float(not is_healthy)))
    return found


def run_processes(arguments: argparse.Namespace) -> int:
    """Run so many workers until a signal; the exit code."""
    if not hasattr(os, "killpg"):
        raise CommandFailed("--processes needs process groups and their signals, which this system does not have")
    if arguments.processes < 1:
        raise CommandFailed(f"--processes must be a number above 0, not {arguments.processes}")
    table, base, log = option_value("data-table", arguments), worker_name(arguments), Log()
    given = given_arguments(arguments)

    def start(name: str, wake: Callable[[], None]) -> SupervisedWorker:
        return SupervisedWorker(name, {**given, "worker": name}, log, wake)

    names = [f"{base}-{number}" for number in range(1, arguments.processes + 1)]
    supervisor = Supervisor(names, start, log)
    with endpoint(arguments, lambda: series_of(supervisor, table), supervisor.health):
        one = f"worker {base}-1 reads table {table}; Ctrl-C ends it"
        log.say(one if len(names) == 1 else f"workers {names[0]} to {names[-1]} read table {table}; Ctrl-C ends them")
        with ended_by_signals(supervisor) as came:
            try:
                supervisor.run()
            finally:
                end_all(supervisor.processes(), log, lambda: signal.SIGINT in came[1:])
    if signal.SIGINT in came[1:]:
        return EXIT_INTERRUPTED
    return EXIT_DONE if came[0] == signal.SIGINT else 128 + came[0]  # as shells have it


def given_arguments(arguments: argparse.Namespace) -> Mapping[str, Any]:
    """The arguments for the processes: they go over a pipe, so that no secret is in a command line that was in none."""
    given = {name: value for name, value in vars(arguments).items() if not callable(value)}
    secret_file = given.get("access_key_secret_file")
    if secret_file is not None and not Path(secret_file).is_file():  # a pipe of the shell, say, can be read only once
        given["access_key_secret"] = option_value("access-key-secret", arguments)
    return given


@contextmanager
def ended_by_signals(supervisor: Supervisor) -> Iterator[list[int]]:
    """While the block runs SIGTERM, SIGHUP and Ctrl-C end the supervisor, and are put into the list.

    Ctrl-C after another signal means hurry. No handler raises: nothing that starts or ends a process is cut short.
    """
    came: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        came.append(number)
        supervisor.request_stop()

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # in the background of a shell that has no jobs
            signal.signal(number, handle)
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
