"""What other pages than that of the commands show of commands is what they print, but for numbers, times and ids."""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
import time
import urllib.request
from pathlib import Path
from types import ModuleType

import pytest
from page_examples import FENCE, commands, examples
from tablestore import CapacityUnit, ReservedThroughput, Row, TableMeta, TableOptions

from samples.tunnel_table import make_table
from streamclient.cli.main import main
from streamclient.copying.replication_progress import Snapshot, describe
from streamclient.model import ParkedRecord
from streamclient.records import ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord
from streamclient.server import LocalTablestore
from streamclient.tablestore import StreamSpecification, TablestoreStreamApi
from streamclient.worker.parking import FileParkingStore
from streamclient.worker.parking.parked_frames import record_id
from tests.commands.commands_page import NOON, agrees
from tests.installed import ROOT
from tests.patience import PATIENCE_SECONDS

DOCS = ROOT / "docs"


def shown_with(page: str, beginning: str) -> tuple[str, str]:
    """The command of a page that begins so, and what is shown below it."""
    (found,) = [each for each in commands((DOCS / page).read_text()) if each[0].startswith(beginning)]
    return found


def block(page: str, part: str) -> str:
    """The block of a page that has this part."""
    (found,) = [body for _, body in FENCE.findall((DOCS / page).read_text()) if part in body]
    return str(found)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# --- parked records ----------------------------------------------------------------------------------------------


def park(amount: object, number: int, error: str, attempts: int) -> None:
    column = RecordColumn("amount", ColumnOperation.PUT, amount, NOON // 1_000)
    record = StreamRecord(RecordType.PUT, (("id", 61),), (column,), SequenceInfo(0, NOON + number, 0))
    name = record_id(record)
    parked = ParkedRecord(name, "stream", "shard", record, "TRIM_HORIZON", number, 1, error, "", attempts, NOON)
    FileParkingStore("parked").park([parked])


def processors_of_the_page() -> ModuleType:
    """The classes that the page calls ``orders:Adding`` and ``orders:Mended``."""
    module = ModuleType("orders")
    exec("from streamclient import IRecordProcessor", vars(module))
    for example in examples((DOCS / "failing-records.md").read_text()):
        for node in ast.parse(example.code).body:
            if isinstance(node, ast.ClassDef) and node.name in {"Adding", "Mended"}:
                exec(ast.unparse(node), vars(module))
    return module


def test_the_shell_lists_and_replays_parked_records_as_the_page_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    park("12,50", 1, "TypeError: amount '12,50' of order 61 is no number", 7)
    park(13.0, 2, "not tried: an earlier record of its key is parked", 0)
    monkeypatch.setitem(sys.modules, "orders", processors_of_the_page())
    shown = [each for each in commands((DOCS / "failing-records.md").read_text()) if "streamclient parked" in each[0]]

    assert len(shown) == 3
    for command, expected in shown:
        main(shlex.split(command)[1:])
        printed = capsys.readouterr()
        assert agrees(expected, printed.out + printed.err), f"$ {command}\n{printed.out}{printed.err}"


# --- replication -------------------------------------------------------------------------------------------------


def test_mistakes_of_a_replication_are_named_as_the_page_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = json.loads(block("replicate.md", '"ots-reader": {'))
    settings["ots-reader"]["endTime"] = "tomorrow"
    settings["ots-writer"]["batchWriteCount"] = 500
    Path("copy.json").write_text(json.dumps(settings))
    for side in ("READER", "WRITER"):
        monkeypatch.setenv(f"OTS_{side}_ACCESS_ID", "id")
        monkeypatch.setenv(f"OTS_{side}_ACCESS_KEY", "key")

    assert main(["replicate", "copy.json", "--check"]) == 2
    assert block("replicate.md", "cannot work") in capsys.readouterr().err


def test_the_progress_of_a_replication_is_a_line_as_the_page_shows() -> None:
    seconds = 1_000_000
    now = Snapshot(
        stage="changes",
        rows=24_000,
        rows_per_second=812.4,
        channels_done=0,
        channels_total=1,
        created_micros=NOON,
        consumed_micros=NOON + 1743 * seconds // 10,
        now_micros=NOON + 2324 * seconds // 10,
    )

    assert describe(now, 20.0).startswith(block("replicate.md", "rows/s").strip())


def test_differences_of_a_copy_are_named_as_the_page_shows(
    local: LocalTablestore, capsys: pytest.CaptureFixture[str]
) -> None:
    client, now = local.client(), round(time.time() * 1_000)
    for name in ("orders", "orders_copy"):
        make_table(client, name)
    for number in range(10):
        client.put_row("orders", Row([("order", number)], [("state", "paid", now)]))
        cell = ("state", "open", now - 100_000) if number == 7 else ("state", "paid", now)
        if number != 3:
            client.put_row("orders_copy", Row([("order", number)], [cell]))
    keys = {"accessId": local.access_key_id, "accessKey": local.access_key_secret}
    side = {"endpoint": local.endpoint, "instanceName": local.instance, **keys}
    reader, writer = {**side, "tableName": "orders", "tunnelName": "copy"}, {**side, "tableName": "orders_copy"}
    Path("copy.json").write_text(json.dumps({"ots-reader": reader, "ots-writer": writer}))
    (as_json,) = re.findall(r"`({\"rows\": .*?})`", (DOCS / "replicate.md").read_text())

    assert main(["replicate", "copy.json", "--verify"]) == 3
    assert agrees(block("replicate.md", "is missing in"), capsys.readouterr().out)
    assert main(["replicate", "copy.json", "--verify", "--json"]) == 3
    assert agrees(as_json, capsys.readouterr().out)


# --- the local server --------------------------------------------------------------------------------------------


def make_table_of_text(local: LocalTablestore) -> None:
    TablestoreStreamApi(local.client()).create_table(
        TableMeta("orders", [("id", "STRING")]),
        TableOptions(),
        ReservedThroughput(CapacityUnit(0, 0)),
        stream=StreamSpecification(enable_stream=True, expiration_time_hours=24),
    )


def test_a_server_is_told_to_split_over_http_as_the_page_shows(local: LocalTablestore) -> None:
    make_table_of_text(local)
    command, expected = shown_with("server.md", "curl ")
    _, _, header, _, body, url = shlex.split(command)
    address = url.replace("http://127.0.0.1:8180", local.endpoint)
    request = urllib.request.Request(address, body.encode(), dict([header.split(": ")]))
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        printed = answer.read().decode()

    assert re.fullmatch('[^"]+'.join(map(re.escape, re.split("[0-9a-f]{4}…", expected.strip()))), printed.strip())


def test_a_fault_is_added_as_the_page_shows(local: LocalTablestore, capsys: pytest.CaptureFixture[str]) -> None:
    command, expected = shown_with("server.md", "streamclient control fault add")

    assert main([*shlex.split(command)[1:], "--endpoint", local.endpoint]) == 0
    assert capsys.readouterr().out == expected
