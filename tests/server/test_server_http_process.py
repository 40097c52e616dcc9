"""The command ``streamclient server`` as a process: starting, stopping, and being killed under load."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen
from server_http_tools import connect, create_table
from server_state_driver import over_http

from streamclient.records import SequenceInfo
from streamclient.server import DEFAULT_ACCESS_KEY_ID, DEFAULT_ACCESS_KEY_SECRET, DEFAULT_INSTANCE, LocalTablestore
from streamclient.server.auth import Credentials, is_loopback, require_own_secret
from tests.patience import PATIENCE_SECONDS
from tests.service_under_test import signed_headers
from tests.stage import put_rows

ENOUGH_ROWS = 40
"""Acknowledged rows of each writer before the server is killed."""


@frozen
class ServerProcess:
    """A running server process, addressed like a LocalTablestore."""

    process: subprocess.Popen[str]
    endpoint: str
    instance: str = DEFAULT_INSTANCE
    access_key_id: str = DEFAULT_ACCESS_KEY_ID
    access_key_secret: str = DEFAULT_ACCESS_KEY_SECRET

    def client(self, **options: Any) -> Any:
        from tablestore import OTSClient

        return OTSClient(
            self.endpoint,
            self.access_key_id,
            self.access_key_secret,
            self.instance,
            logger_name="streamclient.server.client",
            **options,
        )


def spawn(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "streamclient", "server", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def serving(*arguments: str) -> Iterator[ServerProcess]:
    process = spawn("--port", "0", "--no-console", *arguments)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("listening on http://127.0.0.1:"), (line, process.stderr and process.stderr.read())
        yield ServerProcess(process, line.removeprefix("listening on ").strip())
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_SECONDS)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_cleanly(number: signal.Signals) -> None:
    """Even while clients are connected: exit code 0, and not a word more on either output."""
    with serving() as server:
        client = server.client()
        assert client.list_table() == ()
        server.process.send_signal(number)
        out, err = server.process.communicate(timeout=PATIENCE_SECONDS)
        client.connection.pool.clear()

    assert (server.process.returncode, out, err) == (0, "", "")


@pytest.mark.slow
def test_a_server_that_cannot_stop_ends_with_one_line() -> None:
    """A request that takes for ever keeps the thread that answers, but neither the process nor its last words."""
    program = (
        "import threading\n"
        "from streamclient.cli.main import main\n"
        "from streamclient.server import engine, http_server\n"
        "http_server.JOIN_TIMEOUT_SECONDS = 0.5\n"
        "engine.Engine.answer = lambda *_: (print('taken', flush=True), threading.Event().wait())\n"
        "raise SystemExit(main(['server', '--port', '0', '--no-console']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        server = ServerProcess(process, process.stdout.readline().removeprefix("listening on ").strip())
        with closing(connect(server)) as connection:
            connection.request("POST", "/ListTable", b"", signed_headers(server, "ListTable", b""))
            assert process.stdout.readline() == "taken\n"
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_SECONDS)

    assert process.returncode not in (0, -signal.SIGKILL)
    assert err.count("\n") == 1
    assert "did not end in 0.5 s" in err


def test_the_server_starts_without_what_it_does_not_use() -> None:
    """Its first line comes as late as its imports are many."""
    program = (
        "import sys; from streamclient.cli.main import main\n"
        "from streamclient.server.local import LocalTablestore as Local\n"
        "start = Local.start; Local.start = lambda self: print(*(start(self), sys.modules)[1]) or sys.exit();"
        "main(['server', '--port', '0'])"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()

    assert "streamclient.server.engine" in loaded
    assert {"aiohttp", "apscheduler", "numpy", "pyarrow", "pyspark", "tablestore"}.isdisjoint(loaded)
    rooms = {name.split(".")[1] for name in loaded if name.startswith("streamclient.")}
    others = {"copying", "core", "destinations", "operate", "spark", "testing", "tunnel", "worker"}
    assert rooms.isdisjoint(others)


@pytest.mark.slow
def test_own_credentials_are_the_only_ones() -> None:
    from tablestore import OTSServiceError

    with serving("--instance", "mine", "--access-key-id", "id", "--access-key-secret", "secret") as server:
        stranger = server.client()
        owner = ServerProcess(server.process, server.endpoint, "mine", "id", "secret").client()
        with pytest.raises(OTSServiceError, match="The AccessKeyID does not exist"):
            stranger.list_table()
        assert owner.list_table() == ()
        for client in (stranger, owner):
            client.connection.pool.clear()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--port", "{port}"], "cannot listen on 127.0.0.1:{port}"),
        (["--port", "99999"], "port must be a port number from 0 to 65535, not 99999"),
        (["--port", "0", "--host", "203.0.113.1"], "cannot listen on 203.0.113.1:0"),
        (["--port", "0", "--data", "{data}"], "{data}"),
        (["--port", "0", "--data", "/dev/null/x"], "/dev/null/x"),
        (["--port", "0", "--instance", ""], "name the instance name: --instance"),
        (["--port", "0", "--host", "0.0.0.0"], "--allow-public-secret"),
        (["--port", "0", "--access-key-secret-file", "{data}/none"], "{data}/none"),
    ],
)
def test_a_server_that_cannot_start_says_why_on_one_line(tmp_path: Path, arguments: list[str], reason: str) -> None:
    """Port in use, no such port or address, data held by another server, arguments that cannot work, secrets."""
    with LocalTablestore(data_dir=tmp_path) as holder:
        facts = {"port": holder.endpoint.rpartition(":")[2], "data": str(tmp_path)}
        process = spawn(*(argument.format(**facts) for argument in arguments))
        out, err = process.communicate(timeout=PATIENCE_SECONDS)

    assert (process.returncode, out) == (2, "")
    assert err.startswith("streamclient server: ")
    assert reason.format(**facts) in err
    assert err.count("\n") == 1


class Writer(threading.Thread):
    """Writes rows one after another until the server is gone, and remembers what was acknowledged."""

    def __init__(self, server: ServerProcess, number: int) -> None:
        super().__init__()
        from tablestore import NoRetryPolicy

        self.number = number
        self.acknowledged: list[tuple[int, int]] = []
        """Key and value of each write, in order."""
        self.wrote_enough = threading.Event()
        self._client = server.client(retry_policy=NoRetryPolicy(), socket_timeout=PATIENCE_SECONDS)

    def run(self) -> None:
        from urllib3.exceptions import HTTPError

        try:
            for value in range(100_000):
                self.acknowledged += self._write(value)
                if len(self.acknowledged) >= ENOUGH_ROWS:
                    self.wrote_enough.set()
        except HTTPError:
            return
        finally:
            self._client.connection.pool.clear()

    def _write(self, value: int) -> list[tuple[int, int]]:
        """A single row or a batch over the writer's own keys; the rows, once they are acknowledged."""
        from tablestore import Row

        keys = [self.number * 100 + value % 7] if value % 3 else [self.number * 100 + key for key in range(7)]
        rows = [Row([("pk", key)], [("v", value)]) for key in keys]
        if len(rows) == 1:
            self._client.put_row("t", rows[0])
        else:
            put_rows(self._client, "t", rows)
        return [(key, value) for key in keys]


def stream_of(server: ServerProcess) -> tuple[list[tuple[Any, Any]], list[SequenceInfo]]:
    """Key and value of each record, and the sequence numbers."""
    records = over_http(server).all_records()
    return [(each.key["pk"], each.columns[0].value) for each in records], [each.sequence_info for each in records]


def is_subsequence(part: list[tuple[int, int]], whole: list[tuple[int, int]]) -> bool:
    rest = iter(whole)
    return all(each in rest for each in part)


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_or_reordered_by_a_kill(tmp_path: Path) -> None:
    """Three times over the same data: kill -9 under writes, restart, compare with what was acknowledged."""
    acknowledged: list[list[tuple[int, int]]] = []
    earlier: list[tuple[int, int]] = []
    for round_number in range(3):
        with serving("--data", str(tmp_path)) as server:
            if round_number == 0:
                create_table(server)
            writers = [Writer(server, round_number * 10 + number) for number in range(3)]
            for writer in writers:
                writer.start()
            assert all(writer.wrote_enough.wait(PATIENCE_SECONDS) for writer in writers)
            server.process.kill()
            for writer in writers:
                writer.join(PATIENCE_SECONDS)
            acknowledged += [writer.acknowledged for writer in writers]

        with serving("--data", str(tmp_path)) as server:
            changes, sequences = stream_of(server)
            table = {key: row["v"] for key, row in over_http(server).table().items()}

        assert changes[: len(earlier)] == earlier, "records of an earlier round changed"
        assert sequences == sorted(sequences), "the stream is out of order"
        assert all(is_subsequence(written, changes) for written in acknowledged), "an acknowledged write is missing"
        assert dict(changes) == table, "stream and table disagree"
        earlier = changes


@pytest.mark.parametrize(("host", "expected"), [("127.0.0.1", True), ("::1", True), ("localhost", True)])
def test_loopback_is_this_machine_only(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "no.such.name.invalid"])
def test_the_public_secret_is_for_loopback_unless_insisted_on(host: str) -> None:
    with pytest.raises(ValueError, match="public access key secret"):
        LocalTablestore(host=host).start()
    require_own_secret(host, 0, Credentials(access_key_secret="another"))


def test_whoever_insists_listens_with_the_public_secret() -> None:
    with LocalTablestore(host="0.0.0.0", allow_public_secret=True) as local:
        assert over_http(local).tables() == []


def test_secrets_come_from_the_arguments_a_file_or_the_environment(tmp_path: Path) -> None:
    from argparse import ArgumentParser

    from streamclient.cli.options import connection_of, connection_parent

    parser = ArgumentParser(parents=[connection_parent()])
    (tmp_path / "secret").write_text("from-file\n")
    environment = {"TABLESTORE_ACCESS_KEY_SECRET": "from-environment"}

    given = {
        name: connection_of(parser.parse_args(arguments), environment).access_key_secret
        for name, arguments in {
            "argument": ["--access-key-secret", "mine"],
            "file": ["--access-key-secret-file", str(tmp_path / "secret")],
            "environment": [],
        }.items()
    }

    assert given == {"argument": "mine", "file": "from-file", "environment": "from-environment"}
    assert connection_of(parser.parse_args([]), {}).access_key_secret == "local-access-key-secret"
