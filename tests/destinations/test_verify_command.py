"""The command that proves a destination: what it says, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
import pytest
from postgres_server import PostgresServer

from streamclient.cli import main
from streamclient.destinations import (
    Commit,
    DeltaDestination,
    Destination,
    PostgresDestination,
    change_rows,
    records_digest,
)
from streamclient.records import ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord


def fill(destination: Destination, commits: int = 3) -> None:
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
            application="default",
            shard="shard-1",
            epoch=1,
            start="TRIM_HORIZON" if last is None else last.end,
            end=f"place-{number}",
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
    code, out, _ = ended(capsys, str(tmp_path / "lake"), "--rows")

    assert code == 0
    assert "place-3" in out
    assert out.endswith("1 shard(s), 3 commit(s), 6 record(s), 6 row(s) read: each record once\n")
    assert ended(capsys, str(tmp_path / "lake"))[1].endswith("6 record(s): no hole and no overlap\n")


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
    assert "1 finding(s)\nrows lost: shard shard-1 from place-1 to place-2: commit 2 has 2 records" in out


def test_what_holds_no_commit_proves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped address must not look like a destination in order."""
    code, out, err = ended(capsys, str(tmp_path / "nothing"))

    assert (code, out) == (2, "")
    assert "is not there or holds no commit" in err
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


@pytest.mark.parametrize(
    ("words", "said"),
    [(("x", "--option", "s3cret"), "KEY=VALUE"), (("x", "--option", "a=b", "--table", "t"), "one of")],
)
def test_options_that_make_no_sense_are_refused(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = ended(capsys, *words)

    assert code == 2
    assert said in err
    assert "s3cret" not in err
