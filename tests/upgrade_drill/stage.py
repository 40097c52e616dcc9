"""The stage of the drill: two versions of the package, each in an environment of its own, and their processes."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tarfile
import threading
from collections import Counter
from io import BytesIO
from pathlib import Path
from typing import Any

from attrs import define, field

from streamclient.testing.fleet import Fleet, WorkerProcess
from streamclient.worker.running import EXIT_CODE_OF_SIGTERM
from tests.installed import ROOT, Installed, install
from tests.patience import PATIENCE_SECONDS

STEPS = Path(__file__).with_name("steps.py")
OLD, NEW = "old", "new"

GOOD_ENDS = (0, EXIT_CODE_OF_SIGTERM, -signal.SIGTERM)
"""Exit codes after a SIGTERM: of a handler of the program, of the package's, or of none before it listened."""

BECOME = "import os, sys; os.chdir(sys.argv[1]); os.execv(sys.argv[2], sys.argv[2:])"
"""The process of a fleet becomes the program of a version, away from the checkout."""


class NotAtHandError(Exception):
    """A part of the drill needs what this machine does not have."""


def git(*words: str) -> bytes:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"git {' '.join(words)}: {done.stderr.decode().strip()}")
    return done.stdout


def last_tag() -> str:
    """The tag of the last release.

    Raises:
        SystemExit: there is none.
    """
    tags = git("tag", "--list", "v*", "--sort=-version:refname", "--merged", "HEAD").decode().split()
    if not tags:
        raise SystemExit("there is no tag v... yet, so name the old version: --old COMMIT (make OLD=COMMIT)")
    return tags[0]


def commit_of(name: str) -> str:
    """The full id of a tag or a commit."""
    return git("rev-parse", "--verify", f"{name}^{{commit}}").decode().strip()


def installed_commit(commit: str, place: Path) -> Installed:
    """The wheel of a commit, in an environment of its own."""
    source = place / "source"
    source.mkdir(parents=True)
    with tarfile.open(fileobj=BytesIO(git("archive", "--format=tar", commit))) as archive:
        archive.extractall(source, filter="data")
    return install(place, source)


@define(eq=False)
class Stage:
    """Both versions, and the processes of one part of the drill."""

    versions: dict[str, Installed]
    directory: Path
    seed: int
    fleet: Fleet = field(init=False)
    dice: random.Random = field(init=False)
    counts: Counter[str] = field(factory=Counter)
    """Kills and stops, by version."""

    def __attrs_post_init__(self) -> None:
        self.fleet, self.dice = Fleet(self.directory), random.Random(self.seed)

    def python(self, version: str) -> str:
        return str(self.versions[version].bin / "python")

    def words(self, version: str, *arguments: str) -> list[str]:
        """The words for ``Fleet.start`` that run a program of this version."""
        return ["-c", BECOME, str(self.directory), self.python(version), "-I", *arguments]

    def start(self, version: str, *arguments: str) -> WorkerProcess:
        """Start a program of a version."""
        self.counts[f"{version} programs"] += 1
        name = f"{version}-{self.counts[f'{version} programs']}"
        return self.fleet.start(name, self.words(version, *arguments))

    def step(self, version: str, what: str, **given: Any) -> WorkerProcess:
        """Start a step of a version; it is given its name, too."""
        name = f"{version}-{self.counts[f'{version} programs'] + 1}"
        lines = str(self.directory / f"{name}.lines")
        return self.start(version, str(STEPS), what, json.dumps({"name": name, "lines": lines, **given}))

    def run(self, version: str, *arguments: str) -> int:
        """Run a program of a version to its end; its exit code."""
        process = self.start(version, *arguments)
        code = process.wait(PATIENCE_SECONDS)
        del self.fleet.processes[process.name]
        return code

    def run_logged(self, version: str, *arguments: str) -> str:
        """Run a program of a version to its good end; what it printed."""
        process = self.start(version, *arguments)
        code = process.wait(PATIENCE_SECONDS)
        del self.fleet.processes[process.name]
        printed = process.log.read_text(errors="replace")
        assert code == 0, f"{' '.join(arguments)} ended with {code}: {printed[-3_000:]}"
        return printed

    def run_step(self, version: str, what: str, **given: Any) -> int:
        """Run a step of a version to its end; its exit code."""
        process = self.step(version, what, **given)
        code = process.wait(PATIENCE_SECONDS)
        del self.fleet.processes[process.name]
        return code

    def running(self, version: str) -> list[WorkerProcess]:
        """The living processes of a version, the oldest first."""
        return [each for each in self.fleet.processes.values() if each.is_running and self.is_of(each, version)]

    @staticmethod
    def is_of(process: WorkerProcess, version: str) -> bool:
        return process.name.startswith(f"{version}-")

    def kill(self, process: WorkerProcess) -> None:
        """``kill -9`` at any moment of the next half second."""
        threading.Event().wait(self.dice.random() / 2)
        self.require_alive(process)
        process.kill()
        self._ended(process, "killed")

    def stop(self, process: WorkerProcess) -> None:
        """Ask a process to stop, and wait until it has."""
        self.require_alive(process)
        process.ask_to_stop()
        code = process.wait(PATIENCE_SECONDS)
        assert code in GOOD_ENDS, f"{process.name} ended with {code}: {self.log(process)}"
        self._ended(process, "stopped")

    def _ended(self, process: WorkerProcess, how: str) -> None:
        self.counts[f"{process.name.partition('-')[0]} {how}"] += 1
        del self.fleet.processes[process.name]

    def require_alive(self, *processes: WorkerProcess) -> None:
        """Fail if one of these, or of all processes, has ended by itself."""
        for process in processes or tuple(self.fleet.processes.values()):
            assert process.is_running, f"{process.name} ended with {process.exit_code}: {self.log(process)}"

    @staticmethod
    def log(process: WorkerProcess) -> str:
        return process.log.read_text(errors="replace")[-3_000:]

    def told(self) -> str:
        """What was done to processes."""
        return ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))


def console(*arguments: str) -> list[str]:
    """The words of the command line."""
    return ["-m", "streamclient.cli.main", *arguments]


def say(text: str) -> None:
    print(text, flush=True)


def complain(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
