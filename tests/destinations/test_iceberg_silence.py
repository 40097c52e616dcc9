"""A catalog of Iceberg's that answers nothing more holds nobody up, and no commit is stored twice for it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from postgres_server import PostgresServer
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from silent_proxy import SilentProxy
from sqlalchemy.pool import QueuePool

from streamclient.destinations import Commit
from streamclient.destinations.catalog_calls import TimedCatalog
from streamclient.destinations.iceberg_destination import IcebergDestination
from streamclient.destinations.proof.verification import verify
from streamclient.errors import DependencyException, ErrorKind
from streamclient.testing.contracts.destination_contract import batch, change, rows_for, store, stored_numbers
from tests.patience import PATIENCE_SECONDS, until

pytestmark = pytest.mark.slow

SOON_SECONDS = 0.3
"""The limit of a call that is meant to be given up; all others have ``PATIENCE_SECONDS``."""


def limited(destination: IcebergDestination, seconds: float) -> IcebergDestination:
    destination._answer_seconds = destination._catalog._answer_seconds = seconds
    return destination


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    made = SqlCatalog("tests", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    made.create_namespace("lake")
    yield made
    made.engine.dispose()


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Lets calls go on that hang, at the end of the test at the latest."""
    event = threading.Event()
    yield event
    event.set()


WORKS: dict[str, Callable[[IcebergDestination, Commit], object]] = {
    "commit": lambda handle, last: handle.commit(pa.table({"id": [2]}), [batch(last, [])]),
    "last commits": lambda handle, last: handle.last_commits(["shard-1"]),
    "columns": lambda handle, last: handle.columns(),
    "log": lambda handle, last: list(handle.log()),
    "fenced shards": lambda handle, last: handle.fenced_shards(),
    "rows": lambda handle, last: list(handle.rows()),
    "files": lambda handle, last: list(handle.files()),
    "probe": lambda handle, last: handle.probe(),
    "verify": lambda handle, last: verify(handle),
}


@pytest.mark.parametrize("name", WORKS)
def test_a_database_of_a_catalog_that_falls_silent_is_given_up_and_asked_again_by_another_connection(
    name: str, server: PostgresServer, table: str, tmp_path: Path
) -> None:
    with SilentProxy(server.directory) as proxy:
        uri = f"postgresql+psycopg://writer@/postgres?host={proxy.directory}"
        catalog = SqlCatalog(table, uri=uri, warehouse=f"file://{tmp_path}")
        catalog.create_namespace("lake")
        handle = IcebergDestination(catalog, "lake.orders", answer_seconds=PATIENCE_SECONDS)
        handle.commit(pa.table({"id": [1]}), [last := batch(None, [])])
        proxy.fall_silent()
        with pytest.raises(DependencyException, match=r"has not answered load_table for 0\.3 s"):
            WORKS[name](limited(handle, SOON_SECONDS), last)

        WORKS[name](limited(handle, PATIENCE_SECONDS), last)
        found = sorted(number for table in handle.rows() for number in table["id"].to_pylist())
        assert found == ([1, 2] if name == "commit" else [1])
        catalog.engine.dispose()


def test_connections_of_calls_that_were_given_up_do_not_use_up_those_of_the_catalog(
    server: PostgresServer, table: str, tmp_path: Path
) -> None:
    """SQLAlchemy makes 15, and counts those that hang."""
    with SilentProxy(server.directory) as proxy:
        uri = f"postgresql+psycopg://writer@/postgres?host={proxy.directory}"
        catalog = SqlCatalog(table, uri=uri, warehouse=f"file://{tmp_path}")
        catalog.create_namespace("lake")
        handle = IcebergDestination(catalog, "lake.orders")
        hanging = handle._catalog._hanging
        while sum(not call.done() for call in hanging) < 15:  # one that is given up before it has a connection ends
            proxy.fall_silent()
            with pytest.raises(DependencyException, match="has not answered"):
                limited(handle, SOON_SECONDS / 10).probe()
            limited(handle, PATIENCE_SECONDS).probe()
            hanging = handle._catalog._hanging
        catalog.engine.dispose()


@pytest.mark.parametrize("is_other", [False, True], ids=["given up", "of another destination"])
def test_connections_that_are_in_use_while_the_catalog_gets_new_ones_are_closed_at_the_end_of_their_call(
    is_other: bool, catalog: SqlCatalog, release: threading.Event
) -> None:
    timed = TimedCatalog(catalog, SOON_SECONDS)
    first = TimedCatalog(catalog, SOON_SECONDS) if is_other else timed
    pool, is_connected = catalog.engine.pool, threading.Event()

    def wait_connected() -> None:
        with catalog.engine.connect():
            is_connected.set()
            release.wait()

    with pytest.raises(TimeoutError, match="has not answered first"):
        first.call("first", wait_connected)
    until(is_connected.is_set, "the connection of the first call")
    timed._has_bad_connections, timed._answer_seconds = True, PATIENCE_SECONDS
    assert timed.list_namespaces() == [("lake",)]
    release.set()
    until(lambda: all(one.done() for one in first._hanging), "the end of the first call")

    assert catalog.engine.pool is not pool
    assert isinstance(pool, QueuePool)
    assert (pool.checkedin(), pool.checkedout()) == (0, 0)


@contextmanager
def rest_server(release: threading.Event) -> Iterator[str]:
    """A REST catalog that says how it is set up, and nothing more; its address."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith("/v1/config"):
                release.wait()
            text = json.dumps({"defaults": {}, "overrides": {}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    release.set()
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def test_a_rest_catalog_that_falls_silent_is_given_up(release: threading.Event) -> None:
    with rest_server(release) as uri:
        catalog = RestCatalog("tests", uri=uri)
        handle = IcebergDestination(catalog, "lake.orders", answer_seconds=SOON_SECONDS)
        with pytest.raises(DependencyException, match="has not answered load_table") as raised:
            handle.last_commits(["shard-1"])

    assert raised.value.kind is ErrorKind.TRANSIENT


ENDS = """
import socket, sys
from pyiceberg.catalog.rest import RestCatalog
from streamclient.destinations.iceberg_destination import IcebergDestination
from streamclient.errors import DependencyException

handle = IcebergDestination(RestCatalog("tests", uri=sys.argv[1]), "lake.orders", answer_seconds=0.1)
try:
    handle.columns()
except DependencyException as error:
    print(error)
"""


def test_a_process_ends_though_a_call_of_a_catalog_hangs(release: threading.Event) -> None:
    with rest_server(release) as uri:
        command = [sys.executable, "-c", ENDS, uri]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)

    assert (done.returncode, "has not answered load_table for 0.1 s" in done.stdout) == (0, True), done.stderr


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Once it is set, the call that is waited for is given up."""
    event = threading.Event()

    def wait_for(futures: list[Future[Any]], _: float) -> None:
        until(lambda: futures[0].done() or event.is_set(), "the answer, or the end of patience")
        event.clear()

    monkeypatch.setattr("streamclient.destinations.catalog_calls.wait", wait_for)
    return event


@pytest.mark.parametrize("answer_seconds", [0.0, PATIENCE_SECONDS], ids=["by a last look", "by the next try"])
def test_a_commit_that_was_given_up_and_has_happened_is_found(
    answer_seconds: float,
    catalog: SqlCatalog,
    release: threading.Event,
    reached: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handle = IcebergDestination(catalog, "lake.orders")
    first = store(handle, None, [change(1)])
    rows = rows_for(handle, [change(2)], second := batch(first, [change(2)]))
    commit_table, calls = catalog.commit_table, []

    def answerless(*given: Any) -> Any:
        calls.append(given)
        answer = commit_table(*given)
        reached.set()
        release.wait()
        return answer

    monkeypatch.setattr(catalog, "commit_table", answerless)
    handle._answer_seconds = answer_seconds
    handle.commit(rows, [second])

    assert handle.last_commits(["shard-1"]) == {"shard-1": second}
    assert (len(calls), stored_numbers(handle)) == (1, [1, 2])


@pytest.mark.parametrize("is_late", [False, True], ids=["before the repeat", "after the repeat"])
def test_a_commit_that_was_given_up_and_happens_later_is_stored_once(
    is_late: bool,
    catalog: SqlCatalog,
    release: threading.Event,
    reached: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handle = IcebergDestination(catalog, "lake.orders")
    first = store(handle, None, [change(1)])
    rows = rows_for(handle, [change(2)], second := batch(first, [change(2)]))
    commit_table, ended = catalog.commit_table, threading.Event()

    def late(*given: Any) -> Any:
        reached.set()
        release.wait()
        try:
            return commit_table(*given)
        finally:
            ended.set()

    def go_on() -> None:
        release.set()
        until(ended.is_set, "the end of the call that was given up")

    handle._answer_seconds = 0.0
    with monkeypatch.context() as patched:
        patched.setattr(catalog, "commit_table", late)
        with pytest.raises(DependencyException, match="has not answered commit_table") as raised:
            handle.commit(rows, [second])
    assert raised.value.kind is ErrorKind.AMBIGUOUS
    if not is_late:
        go_on()
    handle.commit(rows, [second])
    if is_late:
        go_on()

    assert stored_numbers(handle) == [1, 2]
    assert verify(handle, with_rows=True).is_whole


def test_the_memory_of_sqlite_is_asked_by_the_thread_that_has_it(tmp_path: Path) -> None:
    catalog = InMemoryCatalog("tests", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("lake")
    handle = IcebergDestination(catalog, "lake.orders")
    store(handle, store(handle, None, [change(1)]), [change(2)])

    assert stored_numbers(handle) == [1, 2]
    catalog.engine.dispose()


class Hanging:
    """A catalog whose calls hang until they are let go on."""

    def __init__(self, release: threading.Event) -> None:
        self.calls = 0
        self._release = release

    def load_table(self, identifier: str) -> str:
        self.calls += 1
        self._release.wait()
        return identifier


def test_threads_of_calls_that_hang_do_not_pile_up(release: threading.Event) -> None:
    hanging = Hanging(release)
    catalog = TimedCatalog(hanging, 0.01)
    for _ in range(16):
        with pytest.raises(TimeoutError, match=r"has not answered load_table for 0\.01 s"):
            catalog.load_table("lake.orders")
    catalog._next_at += PATIENCE_SECONDS
    for _ in range(100):
        with pytest.raises(TimeoutError, match=r"16 calls.* possible in"):
            catalog.load_table("lake.orders")
    assert hanging.calls == 16
    release.set()
    until(lambda: all(one.done() for one in catalog._hanging), "the end of the calls")
    catalog._answer_seconds = PATIENCE_SECONDS

    assert catalog.load_table("lake.orders") == "lake.orders"
    assert isinstance(catalog, Hanging)


def test_while_calls_hang_the_catalog_is_asked_again_when_it_is_time(release: threading.Event) -> None:
    hanging = Hanging(release)
    catalog = TimedCatalog(hanging, 0.01)
    for turn in range(1, 20):
        catalog._next_at = 0.0
        with pytest.raises(TimeoutError, match="has not answered load_table"):
            catalog.load_table("lake.orders")
        assert hanging.calls == turn


@pytest.mark.parametrize("pause", [False, True], ids=["at once", "after more was sent"])
def test_the_proxy_tells_a_client_that_its_server_was_killed(tmp_path: Path, pause: bool) -> None:
    """Otherwise the client waits for ever, and the trouble that a test plays is another one than it says."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / ".s.PGSQL.5432"))
        listener.listen()
        with SilentProxy(tmp_path) as proxy, socket.socket(socket.AF_UNIX) as client:
            client.settimeout(PATIENCE_SECONDS)
            client.connect(str(proxy.directory / ".s.PGSQL.5432"))
            server, _ = listener.accept()
            client.sendall(b"a query")
            assert server.recv(1, socket.MSG_PEEK) == b"a"
            server.close()  # with a query unread, which resets the connection
            if pause:
                until(lambda: _is_broken(client), "the end of the connection")

            with suppress(ConnectionError):
                assert client.recv(1) == b""


def _is_broken(client: socket.socket) -> bool:
    try:
        client.sendall(b"more")
    except OSError:
        return True
    return False
