"""``streamclient run --processes N``: run N workers, each in a process that is replaced whenever it ends.

The processes are ordinary workers of one fleet, which share the shards through the status table. The command's own
process, the supervisor, does not use the status table. It starts the workers, passes on their output, and ends them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import IO, TYPE_CHECKING, BinaryIO

from attrs import define, field

from streamclient.base.backoff import doubling_millis, with_jitter
from streamclient.base.kept_formats import parse_json
from streamclient.base.pools import start_thread
from streamclient.base.times import now_micros
from streamclient.cli.run_layers import FILE_VARIABLE
from streamclient.cli.run_sections import variable_of
from streamclient.cli.terminal.commands import EXIT_DONE, EXIT_INTERRUPTED, HANGUP, CommandFailed
from streamclient.cli.terminal.output import complain, json_text

if TYPE_CHECKING:
    from streamclient.cli.run_settings import RunSettings

SHORTEST_RESTART_MILLIS = 1_000
LONGEST_RESTART_MILLIS = 60_000
"""The longest pause between the end of a process and the start of its successor. The pause doubles with each failure,
so that a process that keeps dying costs little."""

STEADY_SECONDS = 60.0
"""The time, in seconds, after which a running process counts as steady. Earlier failures of the same worker are then
forgotten."""

END_SECONDS = 60.0
"""The longest wait, in seconds, for a process that was asked to end. It is twice the default limit of a worker's own
shutdown."""

TICK_SECONDS = 0.2
"""The time, in seconds, between two checks of the processes. Output of a process is passed on immediately."""

READ_BYTES = 1 << 20
"""The number of bytes per read. It is more than a pipe holds, so that one read gets all output that an ended process
left."""

LONGEST_LINE_BYTES = 1 << 20
"""The length, in bytes, at which a line of output is broken, so that an endless line does not fill the memory."""

LONGEST_REST = 1 << 16
"""The largest number of characters that ``WholeLines`` keeps of a line that a thread has begun and not ended. A longer
beginning is written immediately."""

STDIN, STDOUT, STDERR = 0, 1, 2


@define(eq=False)
class PassedOutput:
    """A standard stream of a worker's process, passed on in whole lines. The function ``told`` changes each line."""

    source: IO[bytes]
    target: BinaryIO
    told: Callable[[bytes], bytes]
    rest: bytes = b""
    last_line: bytes = b""

    def __attrs_post_init__(self) -> None:
        os.set_blocking(self.source.fileno(), False)

    def pass_on(self) -> bool:
        """Pass on the output that the process has written so far; return whether more output may come."""
        data = self.source.read(READ_BYTES)
        *lines, self.rest = (self.rest + (data or b"")).split(b"\n")
        if len(self.rest) > LONGEST_LINE_BYTES:
            lines, self.rest = [*lines, self.rest], b""
        self._write(lines)
        return data != b""

    def close(self) -> None:
        """Pass on the remaining output of an ended process, and close this end of the stream.

        This method does not wait for the end of the stream, because child processes may still hold the stream open.
        """
        if self.source.closed:
            return
        self.pass_on()
        if self.rest:
            self._write([self.rest])
        self.source.close()

    def _write(self, lines: Sequence[bytes]) -> None:
        if lines:
            self.last_line = lines[-1]
            # The processes do more than print, so they go on even if the supervisor's output is no longer read.
            with contextlib.suppress(OSError, ValueError):
                self.target.write(b"".join(self.told(line) + b"\n" for line in lines))
                self.target.flush()


@define(eq=False)
class WorkerSlot:
    """The name of one worker, and the process that runs the worker now."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    is_json: bool = False
    """Whether the output lines of the process are passed on as JSON."""
    process: subprocess.Popen[bytes] | None = None
    outputs: Sequence[PassedOutput] = ()
    """The standard output and the standard error of the process."""
    started_at: float = 0.0
    due_at: float = 0.0
    """The time at which the next process may start, by the supervisor's clock."""
    failures: int = 0
    """The number of consecutive processes that ended before they were steady."""
    failure: CommandFailed | None = None
    """The error of the last process, with the last line of its output. It is set only if that process exited with an
    error code before it was steady, and not if a signal ended the process."""

    def start(self, now: float) -> None:
        """Start the worker's process.

        When the supervisor ends, the pipe to the process's standard input closes. The worker then stops in an orderly
        way.
        """
        self.process = subprocess.Popen(
            self.command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
            # Ctrl-C in a terminal reaches a whole process group, but only the supervisor may get it.
            start_new_session=True,
        )
        self.started_at = now
        streams = (
            (self.process.stdout, sys.stdout.buffer, "stdout"),
            (self.process.stderr, sys.stderr.buffer, "stderr"),
        )
        self.outputs = [
            PassedOutput(source, target, as_json(self.name, name) if self.is_json else after_name(self.name))
            for source, target, name in streams
            if source
        ]

    @property
    def is_running(self) -> bool:
        """Whether the slot has a process that has not ended."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """Kill the process and its child processes by SIGKILL, and wait until the process is gone."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """Pass on the last output of an ended process."""
        for output in self.outputs:
            output.close()
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()

    def note_steady(self, now: float) -> None:
        """Forget earlier failures if the process has run for ``STEADY_SECONDS``."""
        if now - self.started_at >= STEADY_SECONDS:
            self.failures, self.failure = 0, None

    def note_end(self, code: int, last_words: str, now: float, dice: random.Random) -> float:
        """Record that the process has ended; return the pause, in seconds, before its successor starts."""
        self.note_steady(now)
        has_failed = 0 < code < 128 and now - self.started_at < STEADY_SECONDS
        self.failure = CommandFailed(last_words, code) if has_failed else None
        self.process, self.failures = None, self.failures + 1
        pause = with_jitter(doubling_millis(self.failures, SHORTEST_RESTART_MILLIS, LONGEST_RESTART_MILLIS), dice)
        self.due_at = now + pause / 1_000
        return pause / 1_000


def after_name(worker: str) -> Callable[[bytes], bytes]:
    """Return a function that puts the worker's name before an output line."""
    prefix = f"{worker} | ".encode()
    return lambda line: prefix + line


def as_json(worker: str, stream: str) -> Callable[[bytes], bytes]:
    """Return a function that turns an output line into a JSON document with the worker's name.

    A line that is JSON already keeps its fields. Any other line becomes the message of a new document, in which
    ``stream`` is the name of the logger.
    """
    from streamclient.cli.terminal.json_log import line_of  # noqa: PLC0415

    def told(line: bytes) -> bytes:
        document = document_of(line)
        if "worker" in document:
            return line
        text = line.decode(errors="backslashreplace")
        made = json_text({**document, "worker": worker}, sys.stderr) if document else ""
        return (made or line_of(now_micros(), "info", stream, text, worker=worker)).encode(errors="backslashreplace")

    return told


def document_of(line: bytes) -> Mapping[str, object]:
    """Return the JSON object that a line consists of; an empty mapping for any other line."""
    with contextlib.suppress(ValueError):
        document = parse_json(line)
        if isinstance(document, dict):
            return document
    return {}


class Supervisor:
    """A supervisor that keeps one process running for each worker name. Only for use in the main thread."""

    def __init__(
        self,
        slots: Sequence[WorkerSlot],
        monotonic: Callable[[], float] = time.monotonic,
        tell: Callable[[str], object] = complain,
    ) -> None:
        """Make a supervisor; ``tell`` prints the supervisor's own lines."""
        self.slots = slots
        self.came: list[int] = []
        """The signals that have come so far and ask the supervisor to end."""
        self._monotonic = monotonic
        self._tell = tell
        self._dice = random.Random()

    def run(self) -> None:
        """Supervise the processes until a signal comes, then end all of them in an orderly way.

        Raises:
            CommandFailed: every process failed within a minute of its start, so their successors would fail, too.
        """
        try:
            while not self.came:
                self.step()
                self._pass_on()
        finally:
            self._end_all()

    def step(self) -> None:
        """Check every process once: start processes that are due, and record processes that have ended."""
        now = self._monotonic()
        for slot in self.slots:
            if slot.process is None and now >= slot.due_at:
                self._start(slot, now)
            elif slot.process is not None and (code := slot.process.poll()) is not None:
                self._note_end(slot, code, now)
            elif slot.process is not None:
                slot.note_steady(now)
        failures = [slot.failure for slot in self.slots if slot.failure is not None]
        if len(failures) == len(self.slots):
            raise failures[0]

    @property
    def is_hurried(self) -> bool:
        """Whether Ctrl-C came after an earlier signal, so that the processes are killed."""
        return signal.SIGINT in self.came[1:]

    @contextmanager
    def ended_by_signals(self) -> Iterator[None]:
        """Let SIGTERM, SIGHUP and Ctrl-C end ``run`` while the block runs.

        A Ctrl-C after one of these signals kills the processes. No handler raises, so a signal never interrupts the
        start or the end of a process.
        """

        def handle(number: int, frame: FrameType | None) -> None:
            self.came.append(number)

        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, *HANGUP, signal.SIGINT)}
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # some shells let background commands ignore SIGINT
                signal.signal(number, handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def say(self, text: str) -> None:
        """Print a line of the supervisor, not of a worker, if the supervisor's output is still read."""
        with contextlib.suppress(OSError, ValueError):
            self._tell(text)

    def _start(self, slot: WorkerSlot, now: float) -> None:
        try:
            slot.start(now)
        except OSError as error:
            pause = slot.note_end(-1, "", now, self._dice)
            self.say(f"{slot.name} cannot be started and is tried again in {pause:.1f} s: {error}")

    def _note_end(self, slot: WorkerSlot, code: int, now: float) -> None:
        why = f"it was killed by {signal.Signals(-code).name}" if code < 0 else f"it ended with exit code {code}"
        slot.close()
        last_line = slot.outputs[-1].last_line
        message = document_of(last_line).get("message") or last_line.decode(errors="backslashreplace")
        last_words = str(message).strip().partition("streamclient run: ")
        pause = slot.note_end(code, last_words[2] or last_words[0] or f"{slot.name}: {why}", now, self._dice)
        self.say(f"{slot.name} ended and starts again in {pause:.1f} s: {why}")

    def _pass_on(self) -> None:
        """Pass on output of the processes for at most ``TICK_SECONDS``."""
        outputs = {out.source: out for slot in self.slots for out in slot.outputs if not out.source.closed}
        if not outputs:
            time.sleep(TICK_SECONDS)
            return
        for source in select.select(list(outputs), [], [], TICK_SECONDS)[0]:
            if not outputs[source].pass_on():
                outputs[source].close()

    def _end_all(self) -> None:
        """Ask all processes together to end in an orderly way, and wait for them.

        At a second Ctrl-C, or after ``END_SECONDS``, kill the processes that still run.
        """
        give_up_at = self._monotonic() + END_SECONDS
        for slot in self.slots:
            if slot.process is not None:
                slot.process.send_signal(signal.SIGTERM)  # a process that SIGSTOP has stopped gets the signal later
        while running := [slot for slot in self.slots if slot.is_running]:
            self._pass_on()
            if self.is_hurried or self._monotonic() >= give_up_at:
                why = "a second Ctrl-C came" if self.is_hurried else f"it did not end within {END_SECONDS:.0f} s"
                for slot in running:
                    self.say(f"{slot.name} is killed: {why}; its leases expire")
                    slot.kill()
        for slot in self.slots:
            slot.close()


def run_processes(arguments: argparse.Namespace, settings: RunSettings) -> int:
    """Run the workers of ``--processes`` until a signal comes; return the exit code.

    Raises:
        ConfigurationError: settings are invalid. This process imports no objects that the settings name, so only
            the workers' processes find mistakes in these objects.
        CommandFailed: this system has no process groups, or all processes failed soon after their start.
    """
    if not hasattr(os, "killpg"):
        raise CommandFailed("--processes needs process groups and their signals, which this system does not have")
    settings.parts()
    table = settings.value("stream", "data_table_name")
    supervisor = Supervisor(worker_slots(arguments.words, settings), tell=arguments.tell)
    names = [slot.name for slot in supervisor.slots]
    single = f"worker {names[0]} reads table {table}; Ctrl-C ends it"
    several = f"workers {names[0]} to {names[-1]} read table {table}; Ctrl-C ends them"
    supervisor.say(single if len(names) == 1 else several)
    with supervisor.ended_by_signals():
        supervisor.run()
    if supervisor.is_hurried:
        return EXIT_INTERRUPTED
    first = supervisor.came[0]
    return EXIT_DONE if first == signal.SIGINT else 128 + first  # the exit code that shells give for the signal


def worker_slots(words: Sequence[str], settings: RunSettings) -> list[WorkerSlot]:
    """Return a slot for each worker. Each slot runs the command ``words`` with its own worker name and port."""
    port = settings.value("serve", "port")
    environment = {**os.environ}
    if not settings.has_own_client:
        # The supervisor reads the secret, because a pipe of the shell can be read only once. It passes the secret on in
        # the environment, because other users can see a command line.
        secret = settings.connection().access_key_secret
        for variable in ("TABLESTORE_ACCESS_KEY_SECRET", variable_of(("connection", "access_key_secret"))):
            environment[variable] = secret
    if settings.text is not None:
        environment[FILE_VARIABLE] = settings.text
    slots = []
    for number in range(settings.value("run", "processes")):
        name = f"{settings.worker}-{number + 1}"
        own = ["--is-one-of-processes", "--worker", name]
        if port is not None:
            own += ["--metrics-port", str(port and port + number)]
        command = [sys.executable, "-m", "streamclient.cli.main", *words, *own]
        slots.append(WorkerSlot(name, command, environment, settings.is_json_log))
    return slots


class WholeLines(io.TextIOWrapper):
    """Standard output or error that writes only whole lines, each in one piece.

    ``print`` writes a line in two parts, so lines of different threads would otherwise mix.
    """

    def __init__(self, number: int) -> None:
        opened = io.BufferedWriter(io.FileIO(number, "wb", closefd=False))
        super().__init__(opened, errors="backslashreplace", line_buffering=True)
        self._begun = threading.local()

    def write(self, text: str) -> int:
        """Write the whole lines of ``text``; keep an unfinished line until the same thread ends the line."""
        whole, end, rest = (getattr(self._begun, "text", "") + text).rpartition("\n")
        if len(rest) > LONGEST_REST:
            whole, end, rest = whole + end, rest, ""
        self._begun.text = rest
        if end:
            super().write(whole + end)
        return len(text)


def become_one_of_processes(arguments: argparse.Namespace) -> None:
    """Make this process a supervised worker, which prints whole lines and ends when the supervisor is gone.

    The worker ends in an orderly way, even if the supervisor was ended by ``kill -9``. The text of the configuration
    file is removed from the environment, so that processes started by user code do not inherit it.

    Raises:
        NoThreadError: the system refused a thread.
    """
    arguments.config_text = os.environ.pop(FILE_VARIABLE, None)
    sys.stdout, sys.stderr = WholeLines(STDOUT), WholeLines(STDERR)

    def end() -> None:
        while os.read(STDIN, 1):
            pass
        # The supervisor no longer reads the output. User code that prints must not fail because of that.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for number in (STDOUT, STDERR):
            os.dup2(nowhere, number)
        os.kill(os.getpid(), signal.SIGTERM)

    start_thread(end, "parent")
