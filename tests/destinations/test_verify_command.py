"""The command that proves a destination: what it says, and how it ends."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import deltalake
import pytest
from postgres_server import PostgresServer
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.config import Config

from streamclient.cli.main import main
from streamclient.destinations import (
    Commit,
    DeltaDestination,
    Destination,
    IcebergDestination,
    PostgresDestination,
    change_rows,
    records_digest,
)
from streamclient.records import ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord
from streamclient.server import LocalTablestore
from streamclient.testing.contracts.destination_contract import change, store
from tests.operate.operate_scene import STATUS, TABLE, Scene


def fill(destination: Destination, commits: int = 3, place: str = "place") -> None:
    """Two records in each commit of one shard."""
    last = None
    for number in range(1, commits + 1):
        records = [
            StreamRecord(
                RecordType.PUT,
                (("id", number * 2 + more),),
                (RecordColumn("a", ColumnOperation.PUT, number, 5),),
                SequenceInfo(1, number, more),
            )
            for more in range(2)
        ]
        last = Commit.after(
            last,
            application=destination.application,
            shard="shard-1",
            epoch=1,
            start="TRIM_HORIZON" if last is None else last.end,
            end=f"{place}-{number}",
            count=2,
            content=records_digest(records),
        )
        rows = change_rows(records, shard="shard-1", number=number, columns=destination.columns())
        destination.commit(rows, [last])


def ended(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["verify", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_whole_delta_table_is_proved_with_its_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(DeltaDestination(str(tmp_path / "lake")))
    code, out, err = ended(capsys, str(tmp_path / "lake"), "--rows")

    assert code == 0
    assert err.endswith("reading all rows\n"), "it is not silent until it ends"
    assert "place-3" in out
    assert out.endswith("1 shard, 3 commits, 6 records, 6 rows read: each record once\n")
    assert ended(capsys, str(tmp_path / "lake"))[1].endswith("6 records: no hole and no overlap\n")


def test_rows_that_are_gone_are_named_and_end_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = tmp_path / "lake"
    destination = DeltaDestination(str(lake))
    fill(destination)
    deltalake.DeltaTable(str(lake)).delete("_commit = 2")
    code, out, _ = ended(capsys, str(lake), "--rows", "--json")
    found: dict[str, Any] = json.loads(out)

    assert code == 1
    assert (found["is_whole"], found["commits"], found["rows"]) == (False, 3, 4)
    assert [(one["flaw"], one["shard"], one["from"], one["to"]) for one in found["findings"]] == [
        ("rows lost", "shard-1", "place-1", "place-2")
    ]
    code, out, _ = ended(capsys, str(lake), "--rows")
    assert code == 1
    assert "1 finding\nrows lost: shard shard-1 from place-1 to place-2: commit 2 has 2 records" in out


@pytest.mark.parametrize("command", [["verify"], ["maintain", "--once", "--verify", "now"]])
def test_a_table_that_its_library_cannot_read_ends_with_2_and_one_sentence(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = tmp_path / "lake"
    fill(DeltaDestination(str(lake)))
    (lake / "_delta_log" / f"{2:020}.json").write_bytes(b"\xff\xfe")
    code = main([*command, str(lake)])
    out, err = capsys.readouterr()

    assert (code, out) == (2, "")
    assert err.startswith(f"streamclient {command[0]}: {lake} cannot be used (DeltaError: ")
    assert err.count("\n") == 1


def test_what_holds_no_commit_proves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped address must not look like a destination in order."""
    code, out, err = ended(capsys, str(tmp_path / "nothing"))

    assert (code, out) == (2, "")
    assert "does not exist or holds no commit" in err
    assert not (tmp_path / "nothing").exists()


def test_a_table_in_postgresql_is_proved(capsys: pytest.CaptureFixture[str]) -> None:
    with PostgresServer() as server:
        conninfo = server.conninfo
        assert ended(capsys, conninfo, "--table", "orders")[0] == 2
        destination = PostgresDestination(conninfo, "orders")
        fill(destination)
        destination.close()
        code, out, _ = ended(capsys, conninfo, "--table", "orders", "--rows", "--json")

    assert (code, json.loads(out)["is_whole"], json.loads(out)["rows"]) == (0, True, 6)


def test_a_table_in_iceberg_is_proved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/data"}.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__MINE__{name.upper()}", value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # as it was read when pyiceberg was imported
    with load_catalog("mine") as catalog:
        catalog.create_namespace("lake")
        fill(IcebergDestination(catalog, "lake.orders"))
    code, out, _ = ended(capsys, "lake.orders", "--catalog", "mine", "--rows", "--json")

    assert (code, json.loads(out)["is_whole"], json.loads(out)["rows"]) == (0, True, 6)
    code, _, err = ended(capsys, "lake.orders", "--catalog", "nobodys")
    assert (code, "PYICEBERG_CATALOG__NOBODYS__URI" in err) == (2, True)


def test_a_catalog_that_answers_nothing_while_it_is_loaded_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    release = threading.Event()
    monkeypatch.setattr("pyiceberg.catalog.load_catalog", lambda name: release.wait())
    monkeypatch.setattr("streamclient.destinations.catalog_calls.ANSWER_SECONDS", 0.1)
    code, _, err = ended(capsys, "lake.orders", "--catalog", "mine")
    release.set()

    assert (code, "has not answered load_catalog for 0.1 s" in err) == (2, True)


class Split:
    """A stream whose shard was split, read to its end, into a table; the fleet's leases say so too."""

    def __init__(self, scene: Scene, lake: Path) -> None:
        self.scene, self.lake = scene, str(lake)
        self.parent = scene.shard
        scene.write(4)
        self.child, _ = scene.split()
        scene.put_lease(self.parent, checkpoint="SHARD_END")
        self.last = store(self.destination, None, [change(1)], shard=self.parent)

    @property
    def destination(self) -> DeltaDestination:
        return DeltaDestination(self.lake)

    def end(self) -> None:
        store(self.destination, self.last, [], shard=self.parent, end="SHARD_END")

    def begin(self) -> Commit:
        first = store(self.destination, None, [change(2)], shard=self.child)
        self.scene.put_lease(self.child, checkpoint=first.end, parents=[self.parent])
        return first

    def verify(self, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[tuple[str, str]]]:
        words = ["--endpoint", self.scene.local.endpoint, "--data-table", TABLE, "--status-table", STATUS, "--json"]
        code, out, err = ended(capsys, self.lake, *words)
        assert err == ""
        return code, [(one["flaw"], one["shard"]) for one in json.loads(out)["findings"]]


@pytest.fixture
def split(local: LocalTablestore, tmp_path: Path) -> Split:
    return Split(Scene(local), tmp_path / "lake")


def test_what_follows_the_tree_and_is_where_its_checkpoints_are_is_proved(
    split: Split, capsys: pytest.CaptureFixture[str]
) -> None:
    split.end()
    split.begin()

    assert split.verify(capsys) == (0, [])
    # The tables of the environment alone may be those of another fleet.
    assert ended(capsys, split.lake)[0] == 0


def test_a_child_before_the_end_of_its_parent_and_a_lost_end_are_named(
    split: Split, capsys: pytest.CaptureFixture[str]
) -> None:
    split.begin()

    assert split.verify(capsys) == (1, [("tree", split.child), ("checkpoint", split.parent)])


def test_a_status_table_without_leases_proves_nothing(
    local: LocalTablestore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = Scene(local)
    fill(DeltaDestination(str(tmp_path / "lake")))
    words = ["--endpoint", scene.local.endpoint, "--data-table", TABLE, "--status-table", STATUS]
    code, _, err = ended(capsys, str(tmp_path / "lake"), *words)

    assert (code, "no lease of the stream" in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("x", "--option", "s3cret"), "KEY=VALUE"),
        (("x", "--option", "a=b", "--table", "t"), "one of"),
        (("x", "--catalog", "c", "--table", "t"), "one of"),
        (("x", "--data-table", "t"), "--status-table"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = ended(capsys, *words)

    assert code == 2
    assert said in err
    assert "s3cret" not in err


@pytest.mark.parametrize("words", [["verify"], ["maintain", "--verify", "now", "--once"]], ids=lambda words: words[0])
def test_a_place_without_a_table_does_not_pass_for_a_whole_one(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, str(tmp_path / "misspelt")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "the destination does not exist or holds no commit" in err


@pytest.mark.parametrize("words", [["verify"], ["maintain", "--verify", "now", "--once"]], ids=lambda words: words[0])
def test_another_fleet_than_that_which_writes_proves_nothing(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What writers go by is asked for in a fleet's name: of another one there is nothing to compare with the log."""
    lake = str(tmp_path / "lake")
    fill(DeltaDestination(lake, application="blue"))

    assert main([*words, lake]) == 2
    assert "no commit of the application 'default'" in (said := capsys.readouterr().err)
    assert "give --application 'blue'" in said
    assert main([*words, lake, "--application", "blue"]) == 0
    deltalake.DeltaTable(lake).delete("_commit = 2")
    assert main([*words, lake, "--rows"]) == 1, "what is wrong comes first"
    out = capsys.readouterr().out
    assert {"verify": "no hole and no overlap", "maintain": "each record once"}[words[0]] in out
    assert "rows lost: " in out


@pytest.mark.parametrize("words", [["verify"], ["maintain", "--verify", "now", "--once"]], ids=lambda words: words[0])
def test_no_iterator_is_shown_as_it_is(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = tmp_path / "lake"
    fill(DeltaDestination(str(lake)), place="iterator" * 20)
    deltalake.DeltaTable(str(lake)).delete("_commit = 2")

    assert main([*words, str(lake), "--rows"]) == 1
    out = capsys.readouterr().out
    assert "rows lost: shard shard-1 from iterator ...erator-1 to iterator ...erator-2: " in out
    assert "iterator" * 3 not in out
