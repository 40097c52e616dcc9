"""Samples that loop for ever: each runs against a local Tablestore until SIGTERM comes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import urlopen

import pytest
from tablestore import Condition, OTSClient, Row, RowExistenceExpectation

from streamclient.server import LocalTablestore
from tests.interrupts import handled_by_python
from tests.own_process import ROOT
from tests.patience import PATIENCE_SECONDS, until
from tests.stage import make_table, put_rows

pytestmark = pytest.mark.slow


@contextmanager
def running(local: LocalTablestore, sample: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A sample that runs beside a table of two rows; with the end of the block it gets SIGTERM, and ends in order."""
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
    command = [sys.executable, str(ROOT / "samples" / f"{sample}.py")]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with handled_by_python(), subprocess.Popen(command, env=environment, **pipes) as run:
        try:
            yield run
            run.send_signal(signal.SIGTERM)
            _, complained = run.communicate(timeout=PATIENCE_SECONDS)
        finally:
            run.kill()
    assert (run.returncode, complained) == (0 if sample == "http_service" else 143, "")


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

        with running(local, "upsert_rows", DSN=server.conninfo):
            until(lambda: rows() == [("a", 12), ("b", 12)], rows)
            change(local.client())
            until(lambda: rows() == [("a", 13)], rows)


def test_the_service_whose_rows_follow_the_table(local: LocalTablestore) -> None:
    with running(local, "http_service", PORT="0") as run:
        assert run.stdout is not None
        port = re.search(r"(\d+)\)", run.stdout.readline())
        assert port is not None

        def row(key: str) -> Any:
            with urlopen(f"http://127.0.0.1:{port[1]}/orders/{key}", timeout=PATIENCE_SECONDS) as answer:
                return json.load(answer)

        until(lambda: row("b") == {"id": "b", "amount": 12}, lambda: row("b"))
        change(local.client())
        until(lambda: (row("a"), row("b")) == ({"id": "a", "amount": 13}, None), lambda: (row("a"), row("b")))
