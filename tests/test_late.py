"""What ``make test-late`` makes late."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[1]

PROGRAM = """
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from tests.late import come_late

late = Counter()
come_late(10.0, 8.0, lambda seconds: late.update([threading.current_thread().name]))

def start(name, work=int):
    thread = threading.Thread(target=work, name=name)
    thread.start()
    thread.join()

start("started")
with ThreadPoolExecutor(1, "pool") as pool:
    pool.submit(int).result()
told = threading.Event()
start("waits", lambda: start("tells", told.set) or told.wait())
exec("go('in turns')", {"__name__": "streamclient.testing.simulation.workers", "go": start})
print(late["started"], late["pool_0"], late["waits"] > 1, late["in turns"], sep=", ")
"""


def test_threads_calls_of_pools_and_ends_of_waiting_come_late_but_where_threads_take_turns() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )

    assert (done.stdout, done.stderr) == ("1, 2, True, 0\n", "")


def test_tests_and_the_processes_that_they_start_run_so(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(
        "import subprocess, sys\n"
        "def test_thread():\n"
        "    program = 'import threading; print(threading.Thread.start.__name__)'\n"
        "    done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, check=True)\n"
        "    assert done.stdout == 'start_late\\n'\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "tests.late", "--seconds", "0.001", str(tmp_path), "-c", "/dev/null"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )

    assert done.returncode == 0, done.stdout
