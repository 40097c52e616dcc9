"""A shell into which lines are typed, one after the other, and what it prints of each."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.patience import PATIENCE_SECONDS, until

CTRL_C = "^C\n"
"""At the end of what a page shows of a command: there the reader pressed Ctrl-C."""

DONE = "-- done, exit code"


class Shell:
    """``bash`` in a folder, with nothing of this process's environment; killed with all that it started at the end.

    ``within`` is a command that runs it elsewhere, such as ``unshare``.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], within: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(
            [*within, "bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *error: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE_SECONDS)
        self._reader.join(PATIENCE_SECONDS)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def typed(self, command: str, shown: str, *, goes_on: bool = False) -> str:
        """What a line printed, on both streams, once it is done; with ``goes_on``, once it printed what is shown.

        Where the shown text ends with ``^C``, Ctrl-C is pressed once everything before was printed.
        """
        begin = len(self._lines)
        self._type(command)
        if goes_on:
            self._until(begin, shown.count("\n"))
            return "".join(self._lines[begin:])
        self._type(f"echo '{DONE}' $?")
        if shown.endswith(CTRL_C):
            self._until(begin, shown.count("\n") - 1)
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
            os.kill(int(children[-1]), signal.SIGINT)
        until(lambda: self._is_done(begin), lambda: "".join(self._lines[begin:]))
        *printed, done = self._lines[begin:]
        assert done == f"{DONE} 0\n", "".join(self._lines[begin:])
        return "".join(printed) + (CTRL_C if shown.endswith(CTRL_C) else "")

    def _type(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)

    def _is_done(self, begin: int) -> bool:
        return self._process.poll() is not None or any(line.startswith(DONE) for line in self._lines[begin:])

    def _until(self, begin: int, count: int) -> None:
        """Wait for ``count`` lines after the first ``begin`` ones."""
        until(lambda: len(self._lines) >= begin + count or self._is_done(begin), lambda: "".join(self._lines[begin:]))
