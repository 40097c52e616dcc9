"""What the process around a worker does to it, as one table: ``python -m tests.process.hostile``.

Threads that are refused, forks, a log that raises, user code of every wrong kind, signals at each step of a start and
a stop. Each row has to end by itself, with all records, or with an error that names the cause. Exit code 1 if one does
not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGKILL, SIGTERM, Signals

from attrs import frozen

from streamclient.server import LocalTablestore
from tests.interrupts import handled_by_python
from tests.patience import PATIENCE_SECONDS

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
TESTS = {
    "threads refused": ["test_refused_threads.py", "test_places_of_threads.py"],
    "forks": ["forks.py"],
    "logs that raise": ["test_raising_logs.py"],
    "wrong callables": ["test_wrong_callables.py"],
}
"""Rows that are tests, each of which judges itself."""

STEPS = ("begun", "imported", "made", "initialized", "processed", "stored", "shut down", "ended")
"""What ``signalled_worker.py`` says on its way; the last two once SIGTERM has come."""

ENDS = {SIGTERM: {143, -SIGTERM}, SIGINT: {1, 130, -SIGINT}, SIGHUP: {-SIGHUP}}
"""Exit codes: in order by the worker's own handler, or by the system's before there is a worker."""


@frozen
class Row:
    """What was done, and what came of it."""

    kind: str
    name: str
    problem: str
    seconds: float


def prepared(local: LocalTablestore, rows: int) -> None:
    """A table with a stream, and these rows."""
    import tablestore

    from streamclient.tablestore import StreamSpecification, TablestoreStreamApi

    client = local.client()
    TablestoreStreamApi(client).create_table(
        tablestore.TableMeta("orders", [("id", "INTEGER")]),
        tablestore.TableOptions(),
        tablestore.ReservedThroughput(tablestore.CapacityUnit(0, 0)),
        stream=StreamSpecification(enable_stream=True, expiration_time_hours=24),
    )
    for key in range(rows):
        client.put_row("orders", tablestore.Row([("id", key)], [("v", key)]))


def signalled(local: LocalTablestore, path: Path, number: Signals | None, step: str) -> str:
    """Run a worker, send it a signal at a step; the problem, if it does not end as it must."""
    program = FOLDER / "signalled_worker.py"
    command = [sys.executable, str(program), local.endpoint, str(path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    wanted = {number or SIGTERM}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as process,
    ):
        guard = threading.Timer(PATIENCE_SECONDS, process.kill)
        guard.start()
        assert process.stdout is not None
        for line in map(str.strip, process.stdout):
            if number is None:
                if len(seen_in(path)) == ROWS:
                    process.send_signal(SIGTERM)
            elif line == step:
                process.send_signal(number)
            elif step in STEPS[-2:] and line == "processed":
                process.send_signal(SIGTERM)
                wanted.add(SIGTERM)
        code = process.wait()
        guard.cancel()
        errors.seek(0)
        said = errors.read()[-300:]
    if code == -SIGKILL:
        return f"it hung at {step}"
    return "" if code in set().union(*(ENDS[each] for each in wanted)) else f"it ended with {code} at {step}: {said}"


ROWS = 60
AT_ONCE = 4


def seen_in(path: Path) -> set[str]:
    """The keys that were processed."""
    return set(path.read_text(encoding="utf-8").split()) if path.exists() else set()


def row_of_a_signal(number: Signals, step: str) -> Row:
    """A signal at a step of one process; then another one, which ends when all records have been there."""
    with LocalTablestore() as local, tempfile.TemporaryDirectory() as folder:
        began, path = time.monotonic(), Path(folder, "seen")
        prepared(local, ROWS)
        problem = signalled(local, path, number, step) or signalled(local, path, None, "")
        missing = ROWS - len(seen_in(path))
        problem = problem or (f"{missing} of {ROWS} records are missing" if missing else "")
        return Row("signals", f"{number.name} when {step}", problem, time.monotonic() - began)


def rows_of_signals() -> Iterator[Row]:
    """Each signal at each step, several at a time: most of a row is waiting for a lease to expire."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(row_of_a_signal, *zip(*((number, step) for number in ENDS for step in STEPS), strict=True))


def rows_of_tests() -> Iterator[Row]:
    """The tests of each kind, in a process of its own that may hang."""
    for kind, files in TESTS.items():
        for file in files:
            began = time.monotonic()
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER / file)]
            try:
                done = subprocess.run(
                    command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
                )
            except subprocess.TimeoutExpired:
                problem, name = "it hangs", file
            else:
                lines = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
                problem = "; ".join(lines) or (f"pytest ended with {done.returncode}" if done.returncode else "")
                name = f"{file}: {done.stdout.strip().splitlines()[-1]}"
            yield Row(kind, name, problem, time.monotonic() - began)


def main() -> int:
    """Play all rows and print them; the exit code."""
    failed = 0
    with handled_by_python():
        for row in chain(rows_of_tests(), rows_of_signals()):
            failed += bool(row.problem)
            print(f"{row.kind:<16} {row.name:<60} {row.seconds:5.1f} s  {row.problem or 'ok'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
