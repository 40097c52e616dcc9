"""Real worker processes, which fault tests start, stop, freeze and kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from streamclient.errors import ConfigurationError

STOP_SECONDS = 60.0
"""The longest wait for the end of a process that was asked to stop: twice the default ``shutdown_timeout_millis``."""


class WorkerProcess:
    """One worker process, whose output goes to the file ``log``. Not thread-safe."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start Python with the arguments ``command`` as the process ``name``.

        Raises:
            ConfigurationError: this system cannot kill or freeze a process together with its children.
        """
        if not hasattr(os, "killpg"):
            raise ConfigurationError("Fleet needs process groups and their signals, which this system does not have")
        self.name = name
        self.log = log
        self.is_frozen: bool = False
        self.is_stopping: bool = False
        """Whether ``ask_to_stop`` was called."""
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, *command],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended yet. A frozen process counts as running."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit code: negative if a signal ended the process, ``None`` while the process is alive."""
        return self._process.poll()

    def kill(self) -> None:
        """Kill the process and its children, for example a Spark JVM, by SIGKILL; wait for the end of the process."""
        self._signal_group(signal.SIGKILL)
        self._process.wait(STOP_SECONDS)

    def freeze(self) -> None:
        """Freeze the process and its children by SIGSTOP, whatever they are doing. They do nothing until ``thaw``."""
        self._signal_group(signal.SIGSTOP)
        self.is_frozen = True

    def thaw(self) -> None:
        """Let a frozen process continue by SIGCONT. The worker may have lost its leases meanwhile."""
        self._signal_group(signal.SIGCONT)
        self.is_frozen = False

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the process, but not to its children, and return immediately."""
        self.is_stopping = True
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float = STOP_SECONDS) -> int:
        """Wait for the end of the process, and return its exit code.

        Raises:
            TimeoutError: the process did not end within ``seconds``, and was killed.
        """
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"{self.name} did not stop within {seconds} s; its output is in {self.log}") from None

    def _signal_group(self, number: int) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return


class Fleet:
    """Worker processes by name. On leaving its ``with`` block, a fleet kills all processes that still run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.processes: dict[str, WorkerProcess] = {}
        directory.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes.values():
            process.kill()

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> WorkerProcess:
        """Start Python with the arguments ``command`` as a new process ``name``; its output goes to ``<name>.log``.

        Raises:
            ValueError: a process of this name is still running.
        """
        present = self.processes.get(name)
        if present is not None and present.is_running:
            raise ValueError(f"a process named {name} is still running")
        process = WorkerProcess(name, command, self.directory / f"{name}.log", environment)
        self.processes[name] = process
        return process

    def running(self) -> list[WorkerProcess]:
        """Return the processes that have not ended yet, ordered by name."""
        return [process for _, process in sorted(self.processes.items()) if process.is_running]

    def stop(self) -> list[int]:
        """Ask all running processes to stop, and wait for them. Return the exit codes in the order of the names."""
        running = self.running()
        for process in running:
            process.ask_to_stop()
        return [process.wait() for process in running]
