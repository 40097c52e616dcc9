"""Real worker processes for fault tests: started from a command, told to stop, frozen, killed with ``kill -9``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from streamclient.errors import ConfigurationError

STOP_SECONDS = 60.0
"""The longest wait for a process that was asked to stop. It is twice the default limit of a worker's own shutdown."""


class WorkerProcess:
    """One process; its output goes to a file next to the fleet's other logs. Not thread-safe."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start the process.

        Raises:
            ConfigurationError: this system cannot kill or freeze a process together with its children.
        """
        if not hasattr(os, "killpg"):
            raise ConfigurationError("Fleet needs process groups and their signals, which this system does not have")
        self.name = name
        self.log = log
        self.is_frozen: bool = False
        self.is_stopping: bool = False
        """Whether the process was asked to stop."""
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
        """Whether the process is alive."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Exit code, negative for a signal; ``None`` while the process is alive."""
        return self._process.poll()

    def kill(self) -> None:
        """``kill -9`` the process and its children (for example a Spark JVM), and wait until they are gone."""
        self._signal_group(signal.SIGKILL)
        self._process.wait(STOP_SECONDS)

    def freeze(self) -> None:
        """Stop the process and its children at any point (SIGSTOP): it neither works nor ends."""
        self._signal_group(signal.SIGSTOP)
        self.is_frozen = True

    def thaw(self) -> None:
        """Continue a frozen process where it stopped (SIGCONT). Its leases may have been lost meanwhile."""
        self._signal_group(signal.SIGCONT)
        self.is_frozen = False

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the process itself; do not wait."""
        self.is_stopping = True
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float = STOP_SECONDS) -> int:
        """Wait for the process to end; on timeout, kill it and raise ``TimeoutError``."""
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
    """Worker processes by name. As a context manager it leaves no process running."""

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
        """Start a process under a name. It replaces a dead process of the same name."""
        present = self.processes.get(name)
        if present is not None and present.is_running:
            raise ValueError(f"a process named {name} is still running")
        process = WorkerProcess(name, command, self.directory / f"{name}.log", environment)
        self.processes[name] = process
        return process

    def running(self) -> list[WorkerProcess]:
        """Return the living processes, by name."""
        return [process for _, process in sorted(self.processes.items()) if process.is_running]

    def stop(self) -> list[int]:
        """Ask all processes to stop and wait for each; return their exit codes, by name."""
        running = self.running()
        for process in running:
            process.ask_to_stop()
        return [process.wait() for process in running]
