"""``python -m tests.loops.programs``, or ``make loop-programs``: programs with loops and handlers, on every Python.

Each program runs under ``python -W error -X dev`` beside a local Tablestore, on each Python from 3.10 to 3.14 and, if
it has an event loop, on uvloop. It has to end with its exit code and nothing on standard error: no pending task,
nothing unraisable, no resource left open. Both type checkers then read the programs strictly. The table says "not at
hand" for what is not here. Environments are below ``build/pythons``, uvloop below ``build/uvloop``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from signal import SIGINT, SIGTERM, Signals
from typing import IO, Any
from urllib.request import urlopen

from attrs import define, field, frozen
from tablestore import Condition, OTSClient, Row, RowExistenceExpectation

from streamclient import TableParkingStore
from streamclient.server import LocalTablestore
from tests.interrupts import handled_by_python
from tests.loops.type_checkers import NOT_AT_HAND, type_rows
from tests.mirror.pythons import environment_of, shown
from tests.patience import PATIENCE_SECONDS, until
from tests.stage import make_table, put_rows
from tests.wire.wheels import ROOT, VERSIONS, pythons

ALL_VERSIONS = (*VERSIONS, "3.14")
OF_THE_SDK = "ignore::ImportWarning"
"""It looks for an extension that is of another Python."""

INTERRUPTED = (130, -SIGINT)
"""What a shell says of Ctrl-C, and what the system says."""


# --- what programs need ----------------------------------------------------------------------------------------------


class Warehouse:
    """A service that takes orders by ``POST /ship``."""

    def __init__(self) -> None:
        self.shipped: list[dict[str, Any]] = []
        shipped = self.shipped

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                shipped.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # as the base class names it
                """Keep quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Warehouse:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def postgres() -> Iterator[str]:
    """The address of a PostgreSQL with an empty table of orders."""
    import psycopg

    from tests.destinations.postgres_server import PostgresServer

    with PostgresServer() as server, psycopg.connect(server.conninfo, autocommit=True) as db:
        db.execute("create table orders (id text primary key, amount bigint)")
        yield server.conninfo


@define
class Run:
    """A program that runs beside a table of two rows."""

    local: LocalTablestore
    process: subprocess.Popen[str]
    errors: IO[str]
    warehouse: Warehouse
    dsn: str = ""

    @property
    def output(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def lines(self, count: int) -> list[str]:
        """The next lines that the program prints; fewer if it ends before."""
        return [self.output.readline().rstrip("\n") for _ in range(count)]

    def change(self) -> None:
        """Update one row and delete the other."""
        any_state = Condition(RowExistenceExpectation.IGNORE)
        self.client.update_row("orders", Row([("id", "a")], {"put": [("amount", 13)]}), any_state)
        self.client.delete_row("orders", Row([("id", "b")]), any_state)

    @property
    def client(self) -> OTSClient:
        return self.local.client()

    def await_end(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds, or the program has ended too early."""
        until(lambda: condition() or self.process.poll() is not None, "what the program does")


def prints(*expected: str) -> Callable[[Run], str]:
    """The program prints these lines, in any order; dots stand for what varies."""

    def look(run: Run) -> str:
        lines = sorted(run.lines(len(expected)))
        return "" if all(map(begins_with, lines, sorted(expected))) else f"it printed {lines}"

    return look


def begins_with(line: str, expected: str) -> bool:
    """Whether a line is as expected, dots apart."""
    begin, dots, end = expected.partition("...")
    return line == expected or bool(dots and line.startswith(begin) and line.endswith(end))


def parks(run: Run) -> str:
    """The orders are printed, and what is no order comes into the table of parked records."""
    problem = prints("Order(id='a', amount=12)", "Order(id='b', amount=12)")(run)
    if not problem:
        run.local.put("orders", id="c", amount="12,50")
        store = TableParkingStore(run.client, "parked_orders")
        run.await_end(lambda: bool(list(store.parked())))
        errors = [parked.error for parked in store.parked()]
        wanted = "column 'amount' must be int for Order, not the str '12,50'"
        problem = "" if len(errors) == 1 and wanted in errors[0] else f"parked are {errors}"
    return problem


def ships(run: Run) -> str:
    """The warehouse gets both orders."""
    wanted = [{"id": key, "amount": 12} for key in "ab"]
    run.await_end(lambda: len(run.warehouse.shipped) == len(wanted))
    found = sorted(run.warehouse.shipped, key=lambda order: str(order["id"]))
    return "" if found == wanted else f"the warehouse got {found}"


def upserts(run: Run) -> str:
    """The table of PostgreSQL becomes as that of Tablestore, and stays so."""
    import psycopg

    with psycopg.connect(run.dsn, autocommit=True) as db:

        def rows() -> list[Any]:
            return db.execute("select id, amount from orders order by id").fetchall()

        run.await_end(lambda: rows() == [("a", 12), ("b", 12)])
        run.change()
        run.await_end(lambda: rows() == [("a", 13)])
        return "" if rows() == [("a", 13)] else f"the table has {rows()}"


def serves(run: Run) -> str:
    """The service gives the rows of today, and what becomes of them."""
    (line,) = run.lines(1)
    if not line.startswith("serving "):
        return f"it printed {line!r}"

    def row(key: str) -> Any:
        with urlopen(f"http://127.0.0.1:{line.split()[1]}/orders/{key}", timeout=PATIENCE_SECONDS) as answer:
            return json.load(answer)

    until(lambda: row("b") == {"id": "b", "amount": 12}, lambda: row("b"))
    run.change()
    until(lambda: (row("a"), row("b")) == ({"id": "a", "amount": 13}, None), lambda: (row("a"), row("b")))
    return ""


# --- programs --------------------------------------------------------------------------------------------------------


@frozen
class Program:
    """A program, what to wait for, the signal that it gets then, and how it must end."""

    name: str
    look: Callable[[Run], str]
    number: Signals | None = SIGTERM
    codes: Sequence[int] = (143,)
    is_async: bool = False
    is_sample: bool = False
    last: str = ""
    """What it prints at its end."""
    logs: str = ""
    """What its log says on standard error; by default nothing."""

    @property
    def arguments(self) -> list[str]:
        """What follows the program that reroutes."""
        if self.is_sample:
            return [str(ROOT / "samples" / f"{self.name}.py")]
        return [str(ROOT / "tests" / "loops" / "loop_program.py"), self.name]

    @property
    def title(self) -> str:
        """The name in the table."""
        kind = f" + {self.number.name}" if self.number else ""
        return f"{'samples/' if self.is_sample else ''}{self.name}{kind}"


def sample(
    name: str, look: Callable[[Run], str], code: int | None = 143, *, is_async: bool = False, logs: str = ""
) -> Program:
    """A sample, which runs until SIGTERM; without an exit code, until its end."""
    number = None if code is None else SIGTERM
    return Program(name, look, number, (code or 0,), is_async, is_sample=True, logs=logs)


def program(
    name: str, number: Signals | None = None, codes: Sequence[int] = (0,), *, is_async: bool = False, last: str = ""
) -> Program:
    """A program that waits for its signal, or goes on to its end, from its first body on."""
    return Program(name, prints("in body"), number, codes, is_async, last=last)


PROGRAMS = (
    sample("iterate_changes", prints("PUT {id='a'} [amount=12@...", "PUT {id='b'} [amount=12@...")),
    sample("upsert_rows", upserts),
    sample("http_service", serves, 0, is_async=True),
    sample("test_my_consumer", prints(), None),
    sample("ship_orders", ships, 0, is_async=True),
    sample("typed_orders", parks, logs="parked PUT {id='c'}"),
    sample("shard_totals", prints("... 24"), 0, is_async=True),
    program("waits_in_its_body", SIGTERM, (143,)),
    program("waits_in_its_body", SIGINT, INTERRUPTED),
    program("waits_for_a_batch", SIGTERM, (143,)),
    program("runs_a_function", SIGTERM, (143,)),
    program("runs_a_function_of_a_record", SIGTERM, (143,)),
    program("runs_a_coroutine_in_threads", SIGTERM, (143,)),
    program("breaks"),
    program("ends_with_an_open_loop"),
    program("drops_an_object"),
    program("ends_its_async_loop", SIGTERM, is_async=True, last="after the loop\n"),
    program("waits_for_an_async_batch", SIGTERM, is_async=True),
    program("waits_in_an_async_body", SIGINT, INTERRUPTED, is_async=True),
    program("catches_ctrl_c", SIGINT, is_async=True),
    program("breaks_an_async_loop", is_async=True),
    program("breaks_in_an_async_block", is_async=True),
    program("cancels_a_body", is_async=True, last="cancelled\n"),
    program("cancels_a_run", is_async=True, last="cancelled\n"),
    program("cancels_each", is_async=True, last="cancelled\n"),
    program("leaves_an_async_loop", is_async=True),
    program("drops_an_async_object", is_async=True),
    program("closes_its_event_loop", is_async=True),
)

NAMES = [*dict.fromkeys(each.name for each in PROGRAMS)]


@contextmanager
def running(
    local: LocalTablestore, one: Program, python: str = sys.executable, loop: str = "asyncio", path: str = ""
) -> Iterator[Run]:
    """A program that runs beside a table of two rows; it is killed at the end of the block if it still runs."""
    make_table(local.client(), "orders")
    put_rows(local.client(), "orders", [Row([("id", key)], [("amount", 12)]) for key in "ab"])
    with ExitStack() as stack:
        warehouse = stack.enter_context(Warehouse())
        dsn = stack.enter_context(postgres()) if one.name == "upsert_rows" else ""
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), path])),
            "TABLESTORE_ENDPOINT": local.endpoint,
            "TABLESTORE_INSTANCE": local.instance,
            "TABLESTORE_ACCESS_KEY_ID": local.access_key_id,
            "TABLESTORE_ACCESS_KEY_SECRET": local.access_key_secret,
            "WAREHOUSE": warehouse.url,
            "DSN": dsn,
            "LOOP": loop,
        }
        rerouted = str(ROOT / "tests" / "samples" / "rerouted.py")
        command = [python, "-W", "error", "-W", OF_THE_SDK, "-X", "dev", rerouted, *one.arguments]
        errors = stack.enter_context(tempfile.TemporaryFile("w+"))
        pipes: Mapping[str, Any] = {"stdout": subprocess.PIPE, "stderr": errors, "text": True}
        with handled_by_python(), subprocess.Popen(command, env=environment, **pipes) as process:
            try:
                yield Run(local, process, errors, warehouse, dsn)
            finally:
                process.kill()


def ended(run: Run, one: Program) -> str:
    """The problem of a program that should end now: its exit code, or what it said on standard error."""
    if one.number is not None:
        run.process.send_signal(one.number)
    guard = threading.Timer(PATIENCE_SECONDS, run.process.kill)
    guard.start()
    printed = run.output.read()  # communicate() would lose what was read ahead of the lines
    run.process.wait()
    guard.cancel()
    run.errors.seek(0)
    complained = run.errors.read()
    problems = [] if run.process.returncode in one.codes else [f"it ended with {run.process.returncode}"]
    if one.last and printed != one.last:
        problems.append(f"it printed {printed!r}")
    said = complaint(complained, is_interrupted=one.codes == INTERRUPTED, logs=one.logs)
    return "; ".join([*problems, *filter(None, [said])])


def complaint(complained: str, *, is_interrupted: bool = False, logs: str = "") -> str:
    """What must not stand on standard error: all, but a step of an event loop that took long, Ctrl-C itself, a log."""
    lines = [line for line in complained.splitlines() if not line.startswith("Executing <")]
    is_ctrl_c = bool(lines) and lines[0].startswith("Traceback") and lines[-1] == "KeyboardInterrupt"
    # Before, between or after its lines nothing of the kind may stand.
    is_clean = not any(word in line for line in lines for word in ("Warning", "never", "Exception ignored", "pending"))
    is_told = bool(logs) and logs in complained
    return "" if is_clean and ((is_interrupted and is_ctrl_c) or is_told) else "\n".join(lines)


def played(one: Program, python: str = sys.executable, loop: str = "asyncio", path: str = "") -> str:
    """Run a program to its end beside a server of its own; the problem, if there is one."""
    with LocalTablestore() as local, running(local, one, python, loop, path) as run:
        problem = one.look(run)
        return ended(run, one) if not problem else f"{problem}; {ended(run, one)}"


# --- the table -------------------------------------------------------------------------------------------------------


@define
class Table:
    """Cells by program and by what it runs on."""

    columns: list[str] = field(factory=list)
    cells: dict[tuple[str, str], str] = field(factory=dict)
    problems: list[str] = field(factory=list)

    def add(self, row: str, column: str, cell: str, problem: str = "") -> None:
        """Add a cell, and what is wrong there."""
        self.cells[row, column] = "WRONG" if problem else cell
        if problem:
            self.problems.append(f"{row}, {column}: {problem}")

    def lines(self) -> list[list[str]]:
        """All of it, with a head."""
        rows = dict.fromkeys(row for row, _ in self.cells)
        return [["", *self.columns], *([row, *(self.cells.get((row, at), "-") for at in self.columns)] for row in rows)]


def uvloop_for(version: str, python: str) -> str:
    """Install uvloop for a Python; the folder to find it in, or nothing if it cannot be had."""
    place = ROOT / "build" / "uvloop" / version
    if not (place / "uvloop").is_dir():
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(place)]
        if subprocess.run([*pip, "uvloop"], check=False, stdin=subprocess.DEVNULL).returncode != 0:
            return ""
    return str(place)


def fill(table: Table, programs: Sequence[Program], versions: Sequence[str]) -> None:
    """Run the programs on each of these Pythons, as far as it is at hand."""
    found = dict(pythons(versions))
    for version in versions:
        python = environment_of(version, found[version], "postgres,server") if version in found else ""
        path = uvloop_for(version, python) if python else ""
        for loop, is_there in (("asyncio", bool(python)), ("uvloop", bool(path))):
            column = version if loop == "asyncio" else f"{version} uvloop"
            table.columns.append(column)
            for one in programs:
                if loop == "uvloop" and not one.is_async:
                    continue
                problem = played(one, python, loop, path) if is_there else ""
                table.add(one.title, column, "ok" if is_there else NOT_AT_HAND, problem)
            done = sum(cell == "ok" for (_, at), cell in table.cells.items() if at == column)
            print(f"{column}: {done if is_there else NOT_AT_HAND}", file=sys.stderr, flush=True)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.loops.programs", description=__doc__.split("\n")[0])
    parser.add_argument("--python", action="append", choices=ALL_VERSIONS, help="only this version; may be repeated")
    parser.add_argument("--program", action="append", choices=NAMES, help="only this one; may be repeated")
    parser.add_argument("--no-types", action="store_true", help="without the type checkers")
    asked = parser.parse_args()
    table = Table()
    fill(table, [one for one in PROGRAMS if one.name in (asked.program or NAMES)], asked.python or ALL_VERSIONS)
    print(shown(table.lines()))
    problems = list(table.problems)
    for row, cell, problem in () if asked.no_types else type_rows(ROOT / "build"):
        print(f"{row}: {'WRONG' if problem else cell}", flush=True)
        problems += [f"{row}: {problem}"] if problem else []
    print("\n".join(problems), end="\n" if problems else "", file=sys.stderr)
    runs, missing = ([*table.cells.values()].count(cell) for cell in ("ok", NOT_AT_HAND))
    right = f"loop programs: ok: {runs} runs" + (f", {missing} {NOT_AT_HAND}" if missing else "")
    print(f"loop programs: {len(problems)} WRONG" if problems else right)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
