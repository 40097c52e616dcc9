"""Clients in other languages as subprocesses: built from a copy of their sources, watched through what they print."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_SECONDS

SOURCES = Path(__file__).resolve().parent

BUILD_SECONDS = 1_800.0
"""Longest build: the first one on a machine downloads compiler plug-ins and libraries."""

EVENTS_AT_MOST = 1_000_000
"""Bound of the events kept per client: far beyond a test's length at Java's fifty polls per second."""


class ClientUnavailable(Exception):
    """The client cannot be built here; the text says why."""


def build_with_maven(name: str, directory: Path) -> str:
    """Compile the Java sources in the folder ``name`` in a copy of them; returns the class path.

    Raises:
        ClientUnavailable: there is no JDK or no Maven, or Maven's registry is out of reach.
    """
    project = copied(name, directory, ("java", "javac", "mvn"))
    command = ["mvn", "-q", "-B", "compile", "dependency:copy-dependencies", "-DoutputDirectory=target/lib"]
    run_build(command, project, "COMPILATION ERROR")
    return f"{project / 'target' / 'classes'}:{project / 'target' / 'lib'}/*"


def copied(name: str, directory: Path, tools: Sequence[str]) -> Path:
    """A copy of the sources in the folder ``name``, if the tools to build them are here."""
    for tool in tools:
        if shutil.which(tool) is None:
            raise ClientUnavailable(f"{tool} is not on the path")
    return Path(shutil.copytree(SOURCES / name, directory / name))


def run_build(command: Sequence[str], project: Path, own_fault: str) -> None:
    """Build. Output with the text ``own_fault`` means wrong sources; any other failure lies in the surroundings."""
    try:
        built = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        text = f"{command[0]} did not finish within {BUILD_SECONDS} s; is its registry reachable?"
        raise ClientUnavailable(text) from error
    output = built.stdout + built.stderr
    if built.returncode != 0:
        if own_fault in output:
            raise AssertionError(f"the sources in {project.name} do not compile:\n{output}")
        raise ClientUnavailable(f"{command[0]} could not get the libraries:\n{output[-2000:]}")


class ClientProcess:
    """One running client. What it prints as a line of JSON is an event; other lines are ignored."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        self._lock = threading.Lock()
        self._events: list[dict[str, Any]] = []
        self._log_file = log.open("wb")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log_file,
            cwd=log.parent,  # the Go client writes its log into its current directory
            env={**os.environ, **(environment or {})},
        )
        self._reader = threading.Thread(target=self._read, name=f"events of {name}")
        self._reader.start()

    @property
    def events(self) -> list[dict[str, Any]]:
        """A copy of the events so far, oldest first."""
        with self._lock:
            return list(self._events)

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process.poll() is None

    def stop(self) -> int:
        """Close its input, wait for it, and return its exit code; kills it after ``PATIENCE_SECONDS``."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            return self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait(PATIENCE_SECONDS)
        finally:
            self._reader.join(PATIENCE_SECONDS)
            self._log_file.close()

    def tag(self) -> dict[str, Any]:
        """What is added to every event, at the moment when it arrives."""
        return {"client": self.name}

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.startswith(b"{"):
                    event = {**json.loads(line), **self.tag()}
                    with self._lock:
                        assert len(self._events) < EVENTS_AT_MOST, f"{self.name} printed over {EVENTS_AT_MOST} events"
                        self._events.append(event)
