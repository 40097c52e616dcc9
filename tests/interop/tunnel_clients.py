"""The official Java and Go tunnel clients as subprocesses: built here, watched through the events that they print."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).resolve().parent
BUILD_SECONDS = 300.0
"""Longest build: the first one on a machine downloads the SDKs."""

STOP_SECONDS = 60.0
"""How long a client may take to stop after its input was closed; Java's pools take their time."""

_ARRIVALS = itertools.count()


class ClientUnavailable(Exception):
    """The client cannot be built here; the text says why."""


def build_java(directory: Path) -> list[str]:
    """Compile the Java consumer in a copy of its sources; how to start it."""
    project = _copy("tunnel_java", directory, ("java", "javac", "mvn"))
    command = ["mvn", "-q", "-B", "compile", "dependency:copy-dependencies", "-DoutputDirectory=target/lib"]
    _run(command, project, "COMPILATION ERROR")
    class_path = f"{project / 'target' / 'classes'}:{project / 'target' / 'lib'}/*"
    return ["java", "-Xmx192m", "-XX:+UseSerialGC", "-cp", class_path]


def build_go(directory: Path) -> list[str]:
    """Compile the Go consumer in a copy of its sources; how to start it."""
    project = _copy("tunnel_go", directory, ("go",))
    _run(["go", "build", "-o", "consumer", "."], project, "main.go:")
    return [str(project / "consumer")]


def _copy(name: str, directory: Path, tools: Sequence[str]) -> Path:
    for tool in tools:
        if shutil.which(tool) is None:
            raise ClientUnavailable(f"{tool} is not on the path")
    return Path(shutil.copytree(SOURCES / name, directory / name))


def _run(command: Sequence[str], project: Path, own_fault: str) -> None:
    try:
        built = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise ClientUnavailable(f"{command[0]} did not finish within {BUILD_SECONDS} s") from error
    output = built.stdout + built.stderr
    if built.returncode != 0:
        if own_fault in output:
            raise AssertionError(f"the client does not compile:\n{output}")
        raise ClientUnavailable(f"{command[0]} could not get the libraries:\n{output[-2000:]}")


class TunnelClientProcess:
    """One running consumer. ``events`` holds what it printed, each with its place in the order of all arrivals."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.name = name
        self._events: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._log_file = log.open("wb")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log_file,
            cwd=log.parent,  # the Go client writes its log into its current directory
            env={**os.environ, **environment},
        )
        self._reader = threading.Thread(target=self._read, name=f"events of {name}")
        self._reader.start()

    @property
    def events(self) -> list[dict[str, Any]]:
        """A copy of the events so far, oldest first."""
        with self._lock:
            return list(self._events)

    def records(self) -> list[dict[str, Any]]:
        """The records among them."""
        return [event for event in self.events if event["event"] == "record"]

    def stop(self) -> int:
        """Close its input, wait for it, and return its exit code; kills it after ``STOP_SECONDS``."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait(STOP_SECONDS)
        finally:
            self._reader.join(STOP_SECONDS)
            self._log_file.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.startswith(b"{"):
                    event = {**json.loads(line), "client": self.name, "arrival": next(_ARRIVALS)}
                    with self._lock:
                        self._events.append(event)
