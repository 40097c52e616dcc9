"""The official Java stream client as a subprocess: built with Maven, watched through the events that it prints."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).resolve().parent / "java"

BUILD_SECONDS = 300.0
"""Longest build: the first one on a machine downloads the compiler plug-in and fifteen small libraries."""

STOP_SECONDS = 30.0
"""How long a worker may take to stop after its input was closed."""

EVENTS_AT_MOST = 1_000_000
"""Bound of the events kept per worker: far beyond a test's length at Java's fifty polls per second."""


class JavaUnavailable(Exception):
    """The Java worker cannot be built here; the text says why."""


def build(directory: Path) -> str:
    """Compile the worker in a copy of the sources; returns the class path.

    Raises:
        JavaUnavailable: there is no JDK or no Maven, or Maven's registry is out of reach.
    """
    for tool in ("java", "javac", "mvn"):
        if shutil.which(tool) is None:
            raise JavaUnavailable(f"{tool} is not on the path")
    project = directory / "java-worker"
    shutil.copytree(SOURCES, project)
    command = ["mvn", "-q", "-B", "compile", "dependency:copy-dependencies", "-DoutputDirectory=target/lib"]
    try:
        built = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise JavaUnavailable(f"Maven did not finish within {BUILD_SECONDS} s; is its registry reachable?") from error
    output = built.stdout + built.stderr
    if built.returncode != 0:
        if "COMPILATION ERROR" in output:
            raise AssertionError(f"the Java worker does not compile:\n{output}")
        raise JavaUnavailable(f"Maven could not resolve the libraries; is its registry reachable?\n{output[-2000:]}")
    return f"{project / 'target' / 'classes'}:{project / 'target' / 'lib'}/*"


class JavaWorker:
    """One running worker. ``events`` holds every event so far, as the dictionaries that it printed."""

    def __init__(self, class_path: str, log: Path, settings: dict[str, object]) -> None:
        self.name = str(settings["worker"])
        self.log = log
        self._lock = threading.Lock()
        self._events: list[dict[str, Any]] = []
        command = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-cp", class_path]
        command += [f"-D{name}={value}" for name, value in settings.items()]
        self._log_file = log.open("wb")
        self._process = subprocess.Popen(
            [*command, "interop.JavaWorker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log_file,
        )
        self._reader = threading.Thread(target=self._read, name=f"events of {self.name}")
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
        """Ask the worker to stop, wait for it, and return its exit code; kills it after ``STOP_SECONDS``."""
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
                event = json.loads(line)
                with self._lock:
                    if len(self._events) >= EVENTS_AT_MOST:
                        raise AssertionError(f"{self.name} printed more than {EVENTS_AT_MOST} events")
                    self._events.append({**event, "worker": self.name})
