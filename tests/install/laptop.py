"""What a laptop does with the package, on any system: ``python tests/install/laptop.py``, where it is installed.

A server with a data directory, tables, a sample, ``tail``, and ``run`` with one worker; then the server again, on the
same data.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PATIENCE_SECONDS = 600.0


class Laptop:
    """Programs in a folder, each begun by ``command``: a Python, and what stands before its arguments."""

    def __init__(self, folder: Path, command: Sequence[str] = (sys.executable,), **variables: str) -> None:
        self.folder, self.command = folder, command
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TABLESTORE_")}
        self.environment = {**kept, "PYTHONWARNINGS": "ignore", **variables}

    def environment_for(self, endpoint: str) -> dict[str, str]:
        return {**self.environment, "TABLESTORE_ENDPOINT": endpoint} if endpoint else self.environment

    def ran(self, *words: str, endpoint: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *words],
            cwd=self.folder,
            env=self.environment_for(endpoint),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )

    def printed(self, *words: str, endpoint: str = "") -> str:
        done = self.ran(*words, endpoint=endpoint)
        assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def running(self, *words: str, endpoint: str = "") -> Iterator[subprocess.Popen[str]]:
        """A program until the block ends: by Ctrl-C, or on Windows, where only a console can send that, by force."""
        with (
            tempfile.TemporaryFile("w+") as errors,
            subprocess.Popen(
                [*self.command, *words],
                cwd=self.folder,
                env=self.environment_for(endpoint),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            ) as process,
        ):
            try:
                yield process
                if os.name == "nt":
                    return
                process.send_signal(signal.SIGINT)
                out, _ = process.communicate(timeout=PATIENCE_SECONDS)
                assert process.returncode == 0, out
            except AssertionError as error:
                errors.seek(0)
                raise AssertionError(f"{error}\n{errors.read()}") from error
            finally:
                process.kill()

    @contextmanager
    def serving(self) -> Iterator[str]:
        """A server; its endpoint."""
        with self.running("-m", "streamclient", "server", "--port", "0", "--data", "data") as server:
            assert server.stdout is not None
            line = server.stdout.readline()
            assert line.startswith("listening on "), line
            yield line.removeprefix("listening on ").strip()


def play(laptop: Laptop) -> None:
    """Everything, in order; a failed assertion tells what went wrong."""
    with laptop.serving() as endpoint:

        def said(*words: str) -> str:
            return laptop.printed("-m", "streamclient", *words, endpoint=endpoint)

        said("tables", "create", "orders")
        assert "orders" in said("tables", "list")
        assert "wrote console.py" in said("sample", "console")
        console = laptop.printed("console.py", endpoint=endpoint)
        assert re.findall(r"record: (\w+)", console) == ["PUT", "UPDATE", "DELETE"], console
        assert len(said("tail", "teststream", "--from", "oldest", "--limit", "3").splitlines()) == 3
        said("sample", "print_changes")
        options = ("--data-table", "teststream", "--status-table", "other", "--from", "oldest")
        words = ("-m", "streamclient", "run", "print_changes:PrintChanges", *options)
        with laptop.running(*words, endpoint=endpoint) as worker:
            assert worker.stdout is not None
            lines = [worker.stdout.readline() for _ in range(4)]  # one of the shard, and three of its records
            assert all("id='a'" in line for line in lines[1:]), lines
    with laptop.serving() as endpoint:
        assert "teststream" in said("tables", "list"), "the data is gone"


if __name__ == "__main__":
    # On Windows a process that was ended by force may keep a file of the folder a little longer.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        play(Laptop(Path(name)))
    print("server, tables, sample, tail and run work")
