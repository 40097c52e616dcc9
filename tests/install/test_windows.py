"""The parts for a laptop need nothing that Windows lacks; what needs POSIX says so.

Nobody has run this on Windows. The tests take away what typeshed does not name there, see ``windows_like.py``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.install.laptop import Laptop, play
from tests.install.windows_like import is_missing, missing_in
from tests.installed import ROOT

PROGRAM = Path(__file__).with_name("windows_like.py")

IMPORTS = """
import importlib, pkgutil, streamclient
names = [each.name for each in pkgutil.walk_packages(streamclient.__path__, "streamclient.")]
names = [name for name in names if not name.startswith("streamclient.samples") and not name.endswith("__main__")]
for name in names:
    importlib.import_module(name)
print(len(names))
"""

FLEET = """
from pathlib import Path
from streamclient.testing import Fleet
with Fleet(Path("logs")) as fleet:
    fleet.start("one", ["-c", ""])
"""

WATCHES = """
import socket
from streamclient.tablestore import channel
assert not hasattr(channel.select, "poll")
near, far = socket.socketpair()
watched = channel.HttpChannel(near, 5.0, 5.0)
seen = [watched.is_dropped]
far.send(b"unasked")
seen.append(watched.is_dropped)
watched.close()
print(*seen, watched.is_dropped)
"""


OTHERS = """
from streamclient.base.processes import process_space, process_state
print(process_space() or "unknown", process_state(2**30))
"""

SWALLOWED = """
import signal, threading
from streamclient.base.interrupts import RaisedBySignal

class Swallows:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)

RaisedBySignal(signal.SIGTERM, KeyboardInterrupt, once=True).install()
try:
    Swallows()
    while True:
        threading.Event().wait(0.01)
except KeyboardInterrupt:
    print("raised again")
"""

PARKS = """
from streamclient.testing.contracts.parking_contract import CHECKS
from streamclient.worker.parking import FileParkingStore
for number, check in enumerate(CHECKS):
    check(lambda: FileParkingStore(f"parked-{number}"))
print("kept")
"""


NEEDS_POSIX = {"streamclient/testing/fleet.py", "streamclient/cli/run_fleet.py"}
"""Modules that say by name that they need POSIX."""

GUARDED = {
    *("clock_gettime_ns", "POLLIN", "getrlimit", "RLIMIT_NOFILE", "RLIM_INFINITY"),
    *("SIG_BLOCK", "SIG_SETMASK", "SIG_UNBLOCK", "poll", "pthread_kill"),
}
"""Names that other modules use, and only where the system has them."""


def on_windows(folder: Path) -> Laptop:
    return Laptop(folder, (sys.executable, str(PROGRAM)), PYTHONPATH=str(ROOT))


def ran(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(program, encoding="utf-8")
    return on_windows(folder).ran("program.py")


def printed_by(program: str, folder: Path) -> str:
    done = ran(folder, program)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_is_taken_away_is_what_windows_lacks() -> None:
    assert {
        name for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty") if not is_missing(name)
    } == set()
    assert not any(map(is_missing, ("os", "signal", "socket", "select", "asyncio", "sqlite3", "msvcrt")))
    assert {"fork", "killpg", "register_at_fork", "getuid", "setsid", "sched_getaffinity"} <= missing_in("os")
    assert {"SIGHUP", "SIGKILL", "SIGALRM", "pthread_kill", "setitimer"} <= missing_in("signal")
    assert {"poll", "epoll"} <= missing_in("select")
    assert {"AF_UNIX", "SO_REUSEPORT"} <= missing_in("socket")
    assert not {"kill", "getpid", "replace", "fsync"} & missing_in("os")
    assert not {"SIGTERM", "SIGINT", "raise_signal"} & missing_in("signal")


@pytest.mark.parametrize(
    "line", ["import fcntl", "import os; os.fork", "from signal import SIGHUP", "import select; select.poll()"]
)
def test_a_use_of_what_windows_lacks_is_noticed(line: str, tmp_path: Path) -> None:
    """The check itself can fail."""
    done = ran(tmp_path, line)

    assert done.returncode == 1
    assert "on Windows" in done.stderr or "cannot import name 'SIGHUP'" in done.stderr


@pytest.mark.slow
def test_every_room_can_be_imported(tmp_path: Path) -> None:
    assert int(printed_by(IMPORTS, tmp_path)) > 400


@pytest.mark.long
@pytest.mark.slow
def test_no_line_of_the_package_uses_what_windows_lacks(tmp_path: Path) -> None:
    """As mypy reads it for Windows, lines that no other test runs included; it sees the same checks by ``hasattr``."""
    command = [sys.executable, "-m", "mypy", "--platform", "win32", "--cache-dir", str(tmp_path), "streamclient"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = re.findall(r'^(.*?):\d+: error: Module has no attribute "(\w+)"', done.stdout, re.MULTILINE)

    assert {name for file, name in found if file not in NEEDS_POSIX} == GUARDED, done.stdout
    assert {file for file, _ in found} >= NEEDS_POSIX


@pytest.mark.slow
def test_server_tables_sample_tail_and_run_work_and_end_with_ctrl_c(tmp_path: Path) -> None:
    play(on_windows(tmp_path))


@pytest.mark.slow
def test_a_data_directory_is_locked(tmp_path: Path) -> None:
    laptop = on_windows(tmp_path)
    with laptop.serving():
        second = laptop.ran("-m", "streamclient", "server", "--port", "0", "--data", "data")

    assert second.returncode == 2
    assert "in use" in " ".join(second.stderr.split()), second.stderr


def test_connections_are_looked_at_without_poll(tmp_path: Path) -> None:
    assert printed_by(WATCHES, tmp_path) == "False True True\n"


def test_the_state_of_another_process_is_not_asked_by_a_signal(tmp_path: Path) -> None:
    """Signal 0 would be Ctrl-C there."""
    assert printed_by(OTHERS, tmp_path).split()[1] == "R"


def test_a_signal_that_was_swallowed_is_raised_again(tmp_path: Path) -> None:
    assert printed_by(SWALLOWED, tmp_path) == "raised again\n"


def test_records_are_parked_in_files(tmp_path: Path) -> None:
    assert printed_by(PARKS, tmp_path) == "kept\n"


def test_what_needs_posix_says_so(tmp_path: Path) -> None:
    words = ("run", "a:b", "--data-table", "t", "--status-table", "s", "--processes", "2")
    command = on_windows(tmp_path).ran("-m", "streamclient", *words)
    fleet = ran(tmp_path, FLEET)

    assert command.returncode == 2
    assert "--processes needs process groups and their signals" in " ".join(command.stderr.split())
    assert "ConfigurationError: Fleet needs process groups and their signals" in fleet.stderr
