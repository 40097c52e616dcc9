"""``run --check``: what it says after asking a real server, and that it writes nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tablestore import CapacityUnit, ReservedThroughput, TableMeta, TableOptions

from streamclient.server import LocalTablestore
from tests.operate.operate_scene import STATUS, TABLE, Ran, Scene, run_cli

MODULE = """
def process(batch):
    raise SystemExit("--check calls no handler")
"""

FILE = """
[run]
factory = "shop:process"
worker = "shop"
processes = 2

[connection]
endpoint = "{endpoint}"

[stream]
data_table_name = "{table}"
status_table_name = "{status}"

[failure]
then = "park"
retries = 2

[parking]
table = "parked"

[serve]
port = 9100
"""

WRITES = {"CreateTable", "UpdateTable", "DeleteTable", "PutRow", "UpdateRow", "DeleteRow", "BatchWriteRow"}


@pytest.fixture
def check(local: LocalTablestore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Runs ``run --check`` with the file of this page and further words."""
    (tmp_path / "shop.py").write_text(MODULE)
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(*words: str, table: str = TABLE, status: str = "leases") -> Ran:
        Path("run.toml").write_text(FILE.format(endpoint=local.endpoint, table=table, status=status))
        return run_cli("run", "--config", "run.toml", "--check", *words)

    return run


def test_it_says_what_the_run_would_do_and_writes_nothing(local: LocalTablestore, check: Callable[..., Ran]) -> None:
    scene = Scene(local)
    scene.write(4)
    scene.split()
    tables = sorted(scene.client.list_table())
    local.reset_requests()
    ran = check()

    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        "2 workers, shop-1 to shop-2, each in a process of its own",
        f"reads table {TABLE}: 3 shards, changes are kept for 24 hours",
        "leases: in status table leases, which the first worker creates; shards without one begin at the oldest record",
        "parked records: in table parked, which is created for the first record",
        "a batch that fails: is delivered again 2 times, then the record is parked and its shard goes on",
        "metrics and health: http://127.0.0.1:9100, each further process on the next port",
        "nothing was written or created",
    ]
    assert {count.operation for count in local.requests()} & WRITES == set()
    assert sorted(scene.client.list_table()) == tables


def test_it_creates_no_directory_of_parked_records(local: LocalTablestore, check: Callable[..., Ran]) -> None:
    Scene(local)
    ran = check("--parking-directory", "aside", "--from", "2h-ago", "--set", "run.processes=1", status=STATUS)

    assert ran.code == 0
    assert "parked records: in directory aside" in ran.out.splitlines()
    assert f"in status table {STATUS}, which exists; shards without one begin at 20" in ran.out
    assert not Path("aside").exists()


def test_a_refused_key_is_told_once(local: LocalTablestore, check: Callable[..., Ran]) -> None:
    Scene(local)
    ran = check("--access-key-secret", "wrong")

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("streamclient run: asking the service failed: ")
    assert ran.err.endswith("Check the keys and their permissions.\n")
    assert ran.err.count("OTSAuthFailed") == 1
    assert "wrong" not in ran.err


def test_an_endpoint_that_nobody_listens_on_is_told_once(check: Callable[..., Ran]) -> None:
    ran = check("--endpoint", "http://127.0.0.1:1")

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("streamclient run: asking the service failed: ")
    assert ran.err.endswith("Check endpoint and network.\n")


def make_table(local: LocalTablestore, name: str) -> None:
    """A table without a stream, whose key is not that of leases or of parked records."""
    meta, capacity = TableMeta(name, [("id", "STRING")]), ReservedThroughput(CapacityUnit(0, 0))
    local.client().create_table(meta, TableOptions(), capacity)


def test_what_is_wrong_with_the_tables_is_told_at_once_by_file_section_and_key(
    local: LocalTablestore, check: Callable[..., Ran]
) -> None:
    for name in ("plain", "status", "parked"):
        make_table(local, name)
    ran = check(table="plain", status="status")

    first, *mistakes = ran.err.splitlines()
    assert (ran.code, ran.out) == (2, "")
    assert first == "streamclient run: 3 settings cannot work:"
    assert mistakes[0].startswith("  run.toml: stream.data_table_name: data table 'plain' has no stream: ")
    assert mistakes[1].startswith("  run.toml: stream.status_table_name: table 'status' cannot be the status table: ")
    assert mistakes[2].startswith("  run.toml: parking.table: table 'parked' cannot hold parked records: its primary")


def test_a_table_that_is_not_there_is_told(local: LocalTablestore, check: Callable[..., Ran]) -> None:
    ran = check(table="nothing")

    assert ran.code == 2
    assert ran.err == (
        "streamclient run: run.toml: stream.data_table_name: table 'nothing' does not exist: check the name and the "
        "instance\n"
    )


def test_an_import_that_raises_is_one_mistake(check: Callable[..., Ran]) -> None:
    Path("broken.py").write_text("raise RuntimeError('no licence')\n")
    ran = check("broken:process")

    assert ran.code == 2
    assert "'broken:process' names no factory" in ran.err
    assert "importing broken failed: RuntimeError: no licence" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--metrics-port", "0"], "prometheus_client cannot be imported"),
        (["--parking-directory", "shop.py"], "--parking-directory: shop.py cannot be a directory of parked records: "),
        (
            ["--parking-directory", "shop.py/x"],
            "--parking-directory: shop.py/x cannot be a directory of parked records",
        ),
        (["--parking-directory", "nowhere"], "--parking-directory: nowhere cannot be a directory of parked records: "),
        (["--parking-directory", "x" * 300], f"--parking-directory: {'x' * 300} cannot be a directory of parked recor"),
    ],
    ids=lambda value: value[-1][:12] if isinstance(value, list) else "",
)
def test_what_a_run_refuses_is_refused_in_advance_in_the_same_words(
    local: LocalTablestore,
    check: Callable[..., Ran],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    told: str,
) -> None:
    Scene(local)
    Path("nowhere").symlink_to("gone")
    if words[0] == "--metrics-port":
        monkeypatch.setitem(sys.modules, "prometheus_client", None)  # as without the extra
    checked = check(*words)
    config = Path("run.toml")
    config.write_text(config.read_text().replace("processes = 2\n", ""))
    ran = run_cli("run", "--config", "run.toml", *words)

    assert (checked.code, checked.out) == (2, "")
    assert ran.code == 2
    assert checked.err == ran.err
    assert checked.err.startswith(f"streamclient run: {told}")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_may_not_be_written_is_refused_in_advance(
    local: LocalTablestore, check: Callable[..., Ran]
) -> None:
    Scene(local)
    Path("locked").mkdir(mode=0o500)
    for directory in ("locked", "locked/x/y"):
        ran = check("--parking-directory", directory)
        assert ran.code == 2
        assert f"--parking-directory: {directory} cannot be a directory of parked records: [Errno 13]" in ran.err
