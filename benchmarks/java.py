"""Rounds of measurements in other processes, among them the Java process that is built from ``benchmarks/java``."""

from __future__ import annotations

import atexit
import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.report import cpu_seconds

SOURCES = Path(__file__).resolve().parent / "java"

BUILD_SECONDS = 1_800.0
"""The time-out of a build, in seconds. The first build on a machine downloads plug-ins of Maven and libraries."""


class JavaMissingError(Exception):
    """Java cannot be measured on this machine; the text says why."""


class RoundsProcess:
    """A process that runs rounds of measurements, one at a time. Not thread-safe."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start the process. It ends at ``close``, or at the latest with this process."""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        atexit.register(self.close)

    def run(self, *words: object) -> dict[str, Any]:
        """Run one round and return its result. ``words`` are the name of the round, and its arguments."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the round {words} ended {self._process.args!r} with exit code {self._process.wait()}")
        found: dict[str, Any] = json.loads(answer)
        return found

    def cpu_seconds(self) -> float:
        """Return the processor seconds of the process and of its running child processes, up to now."""
        return sum(map(cpu_seconds, _tree(self._process.pid)))

    def close(self) -> None:
        """End the process by closing its input, and wait for its end."""
        with self._process:  # the end of the block closes both pipes, and waits
            pass


def _tree(process_id: int) -> list[int]:
    """Return the ids of a process and of all its descendants."""
    children = [path.read_text() for path in Path(f"/proc/{process_id}/task").glob("*/children")]
    return [process_id, *(each for child in " ".join(children).split() for each in _tree(int(child)))]


@cache
def java_rounds() -> RoundsProcess:
    """Return the process for rounds in Java. The first call builds and starts it; it ends with this process.

    Raises:
        JavaMissingError: a JDK or Maven is missing, or Maven's registry cannot be reached.
    """
    for tool in ("java", "javac", "mvn"):
        if shutil.which(tool) is None:
            raise JavaMissingError(f"no Java: {tool} is not on the path")
    directory = Path(tempfile.mkdtemp(prefix="streamclient-java-rounds-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    project = Path(shutil.copytree(SOURCES, directory / "java"))
    _build(project)
    return RoundsProcess(
        ["java", "-cp", f"{project / 'target/classes'}:{project / 'target/lib'}/*", "benchmarks.Rounds"]
    )


def _build(project: Path) -> None:
    command = ["mvn", "-q", "-B", "compile", "dependency:copy-dependencies", "-DoutputDirectory=target/lib"]
    try:
        built = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise JavaMissingError(f"no Java: Maven did not finish within {BUILD_SECONDS} s") from error
    output = built.stdout + built.stderr
    if "COMPILATION ERROR" in output:
        raise RuntimeError(f"the sources in {SOURCES} do not compile:\n{output}")
    if built.returncode != 0:
        last_line = output.strip().splitlines()[-1] if output.strip() else "it printed nothing"
        raise JavaMissingError(f"no Java: Maven could not get the libraries: {last_line}")
