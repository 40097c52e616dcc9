"""Samples that loop for ever: each runs against a local Tablestore until SIGTERM comes."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import urlopen

import pytest
from tablestore import Condition, OTSClient, Row, RowExistenceExpectation

from streamclient import TableParkingStore
from streamclient.server import LocalTablestore
from tests.interrupts import handled_by_python
from tests.own_process import ROOT
from tests.patience import PATIENCE_SECONDS, until
from tests.stage import make_table, put_rows

pytestmark = pytest.mark.slow


MOST_LINES = {
    "iterate_changes": 4,
    "test_my_consumer": 11,
    "upsert_rows": 17,
    "http_service": 18,
    "ship_orders": 9,
    "typed_orders": 14,
}
"""The most lines of these programs, as ``lines_of`` counts them: the smallest consumers are to stay small. Five lines
of ``upsert_rows`` say what to install."""


def source(sample: str) -> str:
    return (ROOT / "samples" / f"{sample}.py").read_text()


def lines_of(program: str) -> int:
    """Lines of code: not those of the docstring, blank ones, and that which keeps an import from running it."""
    docstring = ast.parse(program).body[0]
    code = program.splitlines()[docstring.end_lineno :]
    return sum(1 for line in code if line.strip() and not line.startswith("if __name__"))


@pytest.mark.parametrize("sample", MOST_LINES)
def test_a_program_stays_small(sample: str) -> None:
    assert lines_of(source(sample)) <= MOST_LINES[sample]


@contextmanager
def running(
    local: LocalTablestore, sample: str, replaced: tuple[str, str] = ("", ""), *, failure: str = "", **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """A sample that runs beside a table of two rows; with the end of the block it gets SIGTERM, and ends in order.

    ``replaced`` has a text of the program, such as the address of a service, and one to take in its place; ``failure``
    is the one error of which the program tells on stderr.
    """
    make_table(local.client(), "orders")
    put_rows(local.client(), "orders", [Row([("id", key)], [("amount", 12)]) for key in "ab"])
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TABLESTORE_ENDPOINT": local.endpoint,
        "TABLESTORE_INSTANCE": local.instance,
        "TABLESTORE_ACCESS_KEY_ID": local.access_key_id,
        "TABLESTORE_ACCESS_KEY_SECRET": local.access_key_secret,
        **variables,
    }
    program, (text, other) = source(sample), replaced
    assert text in program
    warnings = ["-X", "dev", "-W", "error", "-W", "ignore:OTS C++ SDK:ImportWarning"]
    command = [sys.executable, *warnings, "-c", program.replace(text, other) if text else program]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with handled_by_python(), subprocess.Popen(command, env=environment, **pipes) as run:
        try:
            yield run
            run.send_signal(signal.SIGTERM)
            _, complained = run.communicate(timeout=PATIENCE_SECONDS)
        finally:
            run.kill()
    awaited = "asyncio.run(" in program  # which ends after the present body, without an exception
    assert run.returncode == (0 if awaited else 143), complained
    # In Python's development mode asyncio tells what kept an event loop for long, as anything does on a slow machine.
    told = [line for line in complained.splitlines() if not line.startswith("Executing <")]
    assert failure in complained, complained
    assert failure or told == [], complained


def change(client: OTSClient) -> None:
    """Update one row and delete the other."""
    any_state = Condition(RowExistenceExpectation.IGNORE)
    client.update_row("orders", Row([("id", "a")], {"put": [("amount", 13)]}), any_state)
    client.delete_row("orders", Row([("id", "b")]), any_state)


def test_the_loop_that_prints(local: LocalTablestore) -> None:
    with running(local, "iterate_changes") as run:
        assert run.stdout is not None
        lines = [run.stdout.readline() for _ in "ab"]

    assert sorted(line.split(" at ")[0] for line in lines) == sorted(
        [f"PUT {{id='{key}'}} [amount=12@{line_time(line)}]" for key, line in zip("ab", sorted(lines), strict=True)]
    )


def line_time(line: str) -> str:
    found = re.search(r"amount=12@(\d+)", line)
    assert found is not None, line
    return found[1]


def test_the_loop_that_upserts_into_postgresql(local: LocalTablestore) -> None:
    import psycopg

    from tests.destinations.postgres_server import PostgresServer

    with PostgresServer() as server, psycopg.connect(server.conninfo, autocommit=True) as db:
        db.execute("create table orders (id text primary key, amount bigint)")

        def rows() -> list[Any]:
            return db.execute("select id, amount from orders order by id").fetchall()

        with running(local, "upsert_rows", DSN=server.conninfo) as run:
            until(lambda: rows() == [("a", 12), ("b", 12)] or run.poll() is not None, rows)
            change(local.client())
            until(lambda: rows() == [("a", 13)] or run.poll() is not None, rows)


def test_the_service_whose_rows_follow_the_table(local: LocalTablestore) -> None:
    with running(local, "http_service", ("8000", "0")) as run:
        assert run.stdout is not None
        port = re.search(r"(\d+)\)", run.stdout.readline())
        assert port is not None

        def row(key: str) -> Any:
            with urlopen(f"http://127.0.0.1:{port[1]}/orders/{key}", timeout=PATIENCE_SECONDS) as answer:
                return json.load(answer)

        until(lambda: row("b") == {"id": "b", "amount": 12}, lambda: row("b"))
        change(local.client())
        until(lambda: (row("a"), row("b")) == ({"id": "a", "amount": 13}, None), lambda: (row("a"), row("b")))


def test_each_change_is_sent_to_another_service(local: LocalTablestore) -> None:
    sent: list[Any] = []

    class Taking(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            sent.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *given: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Taking) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever).start()
        with running(local, "ship_orders", ("127.0.0.1:8080", f"127.0.0.1:{server.server_port}")) as run:
            until(lambda: len(sent) == 2 or run.poll() is not None, lambda: sent)
        server.shutdown()

    assert sorted(sent, key=str) == [("/ship", {"id": key, "amount": 12}) for key in "ab"]


def keys(store: TableParkingStore) -> list[Any]:
    return [parked.record["id"] for parked in store.parked()]


def test_orders_are_handled_as_objects_and_what_does_not_fit_is_parked(local: LocalTablestore) -> None:
    with running(local, "typed_orders", failure="UnfitValueError: PUT {id='c'}") as run:
        client = local.client()
        put_rows(client, "orders", [Row([("id", "c")], [("amount", "12,50")]), Row([("id", "d")], [("amount", 13)])])
        store, printed = TableParkingStore(client, "parked_orders"), set[str]()
        assert run.stdout is not None
        while len(printed) < 3:
            printed.add(run.stdout.readline())
        until(lambda: keys(store) == ["c"] or run.poll() is not None, "the parked order")

    assert printed == {f"Order(id='{key}', amount={amount})\n" for key, amount in (("a", 12), ("b", 12), ("d", 13))}


def test_each_shard_has_a_total_of_its_own(local: LocalTablestore) -> None:
    with running(local, "shard_totals") as run:
        assert run.stdout is not None
        totals = [run.stdout.readline().split()]
        while totals[-1][-1:] not in (["24"], []):
            totals.append(run.stdout.readline().split())

    assert totals[-1][-1:] == ["24"]
    assert len({shard for shard, _ in totals}) == 1
