"""``docs/commands.md``: its commands, and what they print; ``python -m tests.commands.commands_page`` writes it anew.

The page is written by hand but for what commands print. Every ``$ streamclient ...`` in it runs, in order, on a
terminal of 80 columns against one local Tablestore that looks like a small fleet's. Ids of shards are those of the
page: the beginning of the real ones is replaced in both directions.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from attrs import field, frozen
from deltalake import DeltaTable
from tablestore import Row

from streamclient.cli.console_command import DEFAULT_PORT as DEFAULT_FLEETS_PORT
from streamclient.cli.options import operator_name
from streamclient.cli.server_command import DEFAULT_CONSOLE_PORT, DEFAULT_PORT
from streamclient.core.worker_info import WorkerInfo
from streamclient.destinations import Commit, DeltaDestination, change_rows, records_digest
from streamclient.model import ParkedRecord
from streamclient.records import ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord
from streamclient.server import LocalTablestore
from streamclient.worker.parking import TableParkingStore
from streamclient.worker.parking.parked_frames import record_id
from tests.docs.page_examples import commands
from tests.operate.operate_scene import IGNORE, STATUS, TABLE, Scene

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "commands.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN_IDS = ("1f0c77a2", "52d4b8e1", "c90a6d3f")
"""The first shard of the fleet's table, and its two children in the order of their ids."""

INTERRUPTED = {
    "run": "reading from",
    "console": "console at",
    "maintain": "clean: next at",
    "mirror": "  lag ",
    "server": "console at",
    "tail": "Berlin",
    "top": "TIME TO LOSS",
}
"""Commands that go on until Ctrl-C, which is pressed once they have shown this."""

ENDING = {"--limit", "--once", "--help", "--verify", "--check"}
"""Options with which they end by themselves."""

NOON = 1_767_268_800_000_000


@frozen
class Ran:
    """What a command did."""

    command: str
    shown: str
    ending: str
    """The line that the page has below it if its exit code is not 0."""

    @property
    def on_the_page(self) -> str:
        return self.shown + self.ending


@frozen
class Stage:
    """A Tablestore, a folder, and a terminal."""

    local: LocalTablestore
    folder: Path
    process: subprocess.Popen[str]
    ids: dict[str, str] = field(factory=dict)
    """Beginnings on the page and in truth."""

    def run(self, command: str) -> Ran:
        """Run a line of the page."""
        for shown, real in self.ids.items():
            command = command.replace(shown, real)
        words = shlex.split(command)[1:]
        is_default_server = words == ["server"]
        if is_default_server:  # its port may be taken here
            words = ["server", "--port", "0", "--console-port", "0"]
        if words[0] == "console":
            words += ["--port", "0"]
        if words == ["replicate", "copy.json"]:
            words += ["--poll-seconds", "0.2"]  # so that it takes no longer than it must
        if words[:2] == ["control", "requests"]:
            self.local.reset_requests()
            self.local.client().describe_table(TABLE)
        if words[0] == "replicate" and "--all" in words:
            self.local.client().delete_row("orders_copy", Row([("id", "key-07")]), IGNORE)
        endless = INTERRUPTED.get(words[0]) if not ENDING & {*words} else None
        asked = {
            "words": words,
            "folder": str(self.folder),
            "environment": {"TABLESTORE_ENDPOINT": self.local.endpoint, **ENVIRONMENT},
            "interrupt_after": endless,
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        shown = answer["shown"].replace(operator_name(), "ann@ops")
        if is_default_server:
            ports = {"listening on": DEFAULT_PORT, "console at": DEFAULT_CONSOLE_PORT}
            for said, port in ports.items():
                shown = re.sub(rf"(?<={said} http://127\.0\.0\.1:)\d+", str(port), shown)
        if words[0] == "console":
            shown = re.sub(r"(?<=console at http://127\.0\.0\.1:)\d+", str(DEFAULT_FLEETS_PORT), shown)
        for short, real in self.ids.items():
            shown = shown.replace(real, short)
        return Ran(command, shown, f"[exit code {answer['code']}]\n" if answer["code"] else "")


ENVIRONMENT = {"TABLESTORE_DATA_TABLE": TABLE, "TABLESTORE_STATUS_TABLE": STATUS}


@contextmanager
def stage() -> Iterator[Stage]:
    """A Tablestore with a small fleet's tables, as the page describes them."""
    with ExitStack() as stack:
        local = stack.enter_context(LocalTablestore())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "tests.commands.terminal_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        )
        stack.callback(process.kill)
        ids = furnish(local)
        fill_lake(folder / "lake", ids)
        (folder / "copy.json").write_text(json.dumps(replication(local)))
        (folder / "mirror.toml").write_text(mirroring(local))
        (folder / "run.toml").write_text(RUN)
        yield Stage(local, folder, process, ids)


RUN = """
[run]
factory = "print_changes:PrintChanges"
worker = "worker"

[failure]
then = "park"
retries = 5

[parking]
table = "parked"
"""
"""A configuration for a run of the sample that the page copies; the tables are in the environment."""


def mirroring(local: LocalTablestore) -> str:
    """A configuration for a mirror beside the lake, of a table that the page makes."""
    return f"""
[source]
endpoint = "{local.endpoint}"
instance = "{local.instance}"
table = "visits"
status_table = "visits_mirror"
access_key_id = "{local.access_key_id}"
access_key_secret = "{local.access_key_secret}"

[destination]
kind = "delta"
url = "visits_mirrored"
"""


def furnish(local: LocalTablestore) -> dict[str, str]:
    """A table whose first shard was split and read to its end; one child is read, the other one's owner is dead."""
    scene, parent, low, high = split_table(local)
    scene.write(40)
    told = WorkerInfo(host="ops-1", pid=4711, version="0.1.0", lease_duration_millis=3_600_000, obeys_orders=True)
    scene.put_worker("worker-1", info=told)
    scene.put_lease(parent, "worker-1", checkpoint="SHARD_END")
    scene.put_lease(low, "worker-1", parents=[parent], checkpoint=scene.iterator(low, after=3))
    scene.put_lease(high, "worker-2", parents=[parent], beat=7_500, moved=7_500)
    store = TableParkingStore(scene.client, "parked")
    store.park([parked("k1", 3, low, scene.stream_id), parked("k2", 5, low, scene.stream_id)])
    return dict(zip(SHOWN_IDS, (each[:8] for each in (parent, low, high)), strict=True))


def fill_lake(folder: Path, ids: Mapping[str, str]) -> None:
    """A Delta table of two shards with a commit each, of which the second one's row is gone."""
    lake = DeltaDestination(str(folder))
    for number, shard in enumerate([*ids.values()][1:]):
        records = [StreamRecord(RecordType.PUT, (("id", f"k{number}"),), (), SequenceInfo(1, NOON + number, 0))]
        commit = Commit.after(
            None,
            application="default",
            shard=f"{shard}-0000-4000-8000-00000000000{number}",
            epoch=1,
            start="TRIM_HORIZON",
            end="SHARD_END",
            count=1,
            content=records_digest(records),
        )
        lake.commit(change_rows(records, shard=commit.shard, number=1, columns=lake.columns()), [commit])
    DeltaTable(str(folder)).delete("id = 'k1'")


def split_table(local: LocalTablestore) -> tuple[Scene, str, str, str]:
    """The first shard and its children, whose ids have the order of their keys: commands sort by either."""
    while True:
        scene = Scene(local, lease_seconds=None)
        scene.write(20)
        parent = scene.shard
        low, high = scene.split()
        if low < high:
            return scene, parent, low, high
        scene.client.delete_table(TABLE)
        scene.client.delete_table(STATUS)


def parked(key: str, number: int, shard_id: str, stream_id: str) -> ParkedRecord:
    column = RecordColumn("amount", ColumnOperation.PUT, "twelve", NOON // 1_000)
    record = StreamRecord(RecordType.PUT, (("id", key),), (column,), SequenceInfo(0, NOON + number, 0))
    error = "ValueError: amount must be a number, not 'twelve'"
    trace = 'File "shop.py", line 12, in process_records'
    name = record_id(record)
    return ParkedRecord(name, stream_id, shard_id, record, "TRIM_HORIZON", number, 1, error, trace, 4, NOON)


def replication(local: LocalTablestore) -> dict[str, Any]:
    def side(table: str, **more: str) -> dict[str, str]:
        keys = {"accessId": local.access_key_id, "accessKey": local.access_key_secret}
        return {"endpoint": local.endpoint, "instanceName": local.instance, "tableName": table, **keys, **more}

    reader = side(TABLE, source="stream", statusTableName="copy_status", endTime="2020-01-01 00:00:00")
    return {"ots-reader": reader, "ots-writer": side("orders_copy")}


def commands_of(text: str) -> list[tuple[str, str]]:
    """Every command on the page with what it prints there, in order."""
    return [each for each in commands(text) if each[0].startswith("streamclient ")]


TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z"
LASTING = r"\d+(\.\d+)? (ms|s|min|h|d)\b( \d+ (s|min|h)\b)?"


def shape(text: str) -> str:
    """Without what depends on the moment: numbers, times, ids, and how lines are broken and padded."""
    text = re.sub(r"(?<=injected: ).*?(?=^took )", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\s+\d+ rows/s", "", text)  # which is known once the rows of two moments are, so not in a quick copy
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}(_\d+)?|request [0-9a-f-]+", "ID", text)
    text = re.sub(r"\b[0-9a-f]{12}(?:[0-9a-f]{4})?\b|\b[0-9a-f]{8}\b", "ID", text)
    text = re.sub(LASTING, "LASTING", re.sub(TIME, "TIME", text))
    return re.sub(r"\[exit code \d+\]|(\d+)", lambda found: "#" if found[1] else found[0], text).strip()


def agrees(expected: str, actual: str) -> bool:
    """Where something was cut, the few words before it may be cut elsewhere."""
    parts = re.split(r"(?:\S+ ){0,3}\S*…", shape(expected))
    return re.fullmatch(".*?".join(re.escape(part) for part in parts), shape(actual), re.DOTALL) is not None


def leaf_parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parsers of all commands that do something."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        yield parser
    for group in groups:
        for below in group.choices.values():
            yield from leaf_parsers(below)


def is_for_programs(command: str) -> bool:
    """Whether it prints a document, which may be as wide as it is."""
    return "--json" in command


def write_page() -> None:
    """Run every command of the page, and put what it prints below it."""
    text = PAGE.read_text()
    with stage() as here:

        def renewed(block: re.Match[str]) -> str:
            parts = re.split(r"^\$ ", block[1], flags=re.MULTILINE)[1:]
            commands = [part.partition("\n")[0] for part in parts]
            done = [
                (each, here.run(each).on_the_page.strip("\n") if each.startswith("streamclient ") else "")
                for each in commands
            ]
            lines = [f"$ {each}\n{shown}".rstrip() for each, shown in done]
            return "```console\n" + "\n".join(lines) + "\n```"

        text = BLOCK.sub(renewed, text)
    PAGE.write_text(text)


if __name__ == "__main__":
    write_page()
