"""Reports of lag and time to loss: what they say of groups of shards, and what is kept of them in a directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from operate_facts import NOW, OLDEST, ago, facts, row, worker
from operate_scene import TABLE, Scene

from streamclient.errors import ConfigurationError
from streamclient.model import Pause
from streamclient.operate.facts import HeadFacts
from streamclient.operate.fleet_reports import REPORT_FORMAT, ReportDirectory, fleet_report, shard_groups
from streamclient.operate.overview import Overview, overview
from streamclient.operate.snapshots import load_snapshot

MINUTE = 60_000_000
HOUR = 3_600.0


def behind() -> Overview:
    """Two shards that are read, one of them late; one that is paused and later still; one without any record."""
    pause = Pause("r1", "ann", "x")
    return overview(
        facts(
            row("a", "w1"),
            row("b", "w1"),
            row("c", "w1", pause=pause, taken=True),
            row("d", "w1", checkpoint=OLDEST),
            workers=[worker("w1")],
            heads={
                "a": HeadFacts(next_record_micros=ago(10)),
                "b": HeadFacts(next_record_micros=ago(2 * HOUR)),
                "c": HeadFacts(next_record_micros=ago(5 * HOUR)),
                "d": HeadFacts(),
            },
        )
    )


def test_groups_name_the_shard_that_is_furthest_behind_and_the_one_that_loses_first() -> None:
    said = [str(group) for group in shard_groups(behind())]

    assert said == [
        "orders: 1 shard paused, longest lag 5 h (shard c), first loss in 19 h (shard c); shard c is paused by ann: x",
        "orders: 2 shards reading, longest lag 2 h (shard b), first loss in 22 h (shard b)",
        "orders: 1 shard caught-up, longest lag 0.0 s (shard d)",
    ]


def test_a_report_is_what_top_prints_and_the_groups() -> None:
    document = fleet_report(behind())

    assert (document["format"], document["totals"]["longest_lag_seconds"]) == (REPORT_FORMAT, 5 * HOUR)
    assert document["groups"][1] == {
        "situation": "reading",
        "moves": True,
        "shards": 2,
        "longest_lag_seconds": 2 * HOUR,
        "longest_lag_shard": "b",
        "seconds_to_loss": 22 * HOUR,
        "nearest_to_loss_shard": "b",
    }
    assert document["groups"][2]["seconds_to_loss"] is None
    assert json.loads(json.dumps(document)) == document


def test_the_newest_of_each_name_stay_and_nothing_else_is_touched(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "reports"
    directory, view = ReportDirectory(folder, 2), behind()
    (folder / "orders.snapshot.json").write_text("mine")
    (folder / "orders-20200101T0000Z.snapshot.json.0f0f").write_text("left by a process that was killed")
    for minutes in range(4):
        for name in ("orders", "orders-2", "a b/c"):
            directory.save(name, view, NOW + minutes * MINUTE)

    times = ("20231114T2215Z", "20231114T2216Z")
    kinds = ("snapshot", "report")
    expected = {f"{n}-{t}.{k}.json" for n in ("orders", "orders-2", "a%20b%2Fc") for t in times for k in kinds}
    assert {path.name for path in folder.iterdir()} == expected | {"orders.snapshot.json"}


def test_a_second_report_of_a_minute_takes_the_place_of_the_first(tmp_path: Path) -> None:
    directory, view = ReportDirectory(tmp_path, 5), behind()
    first = directory.save("orders", view, NOW)
    second = directory.save("orders", overview(facts(row("a", "w1"))), NOW + 1)

    assert first == second
    assert len(list(tmp_path.iterdir())) == 2
    assert len(json.loads(second.read_text())["shards"]) == 1


def test_what_cannot_be_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="file cannot be a directory of reports"):
        ReportDirectory(tmp_path / "file", 1)


def test_a_file_that_could_not_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    directory = ReportDirectory(tmp_path, 5)
    (tmp_path / "orders-20231114T2213Z.report.json").mkdir()
    with pytest.raises(OSError, match="report"):
        directory.save("orders", behind(), NOW)

    assert sorted(path.suffixes[0] for path in tmp_path.iterdir()) == [".report", ".snapshot"]


def test_the_command_prints_a_report_and_keeps_it(scene: Scene, tmp_path: Path) -> None:
    scene.write(3)
    scene.put_lease(scene.shard, "w1")
    scene.put_worker("w1")
    ran = scene.run("leases", "report", "--directory", str(tmp_path), "--keep", "1")
    headline, group, saved = ran.out.splitlines()

    assert (ran.code, ran.err) == (0, "")
    assert headline.startswith(f"{TABLE}: 1 worker, 1 of 1 shard moves, 0 finished, longest lag ")
    assert group.startswith(f"{TABLE}: 1 shard reading, longest lag ")
    report = Path(saved.removeprefix("saved as "))
    snapshot = report.with_name(report.name.replace(".report.", ".snapshot."))
    assert sorted(tmp_path.iterdir()) == [report, snapshot]
    assert load_snapshot(snapshot)["leases"][0]["owner"] == "w1"
    assert scene.run("leases", "diff", str(snapshot)).out == "no difference\n"
    assert json.loads(report.read_text())["groups"][0]["shards"] == 1


def test_the_command_keeps_nothing_unless_asked_and_refuses_what_makes_no_sense(scene: Scene, tmp_path: Path) -> None:
    scene.put_lease(scene.shard, "w1")
    assert scene.run("leases", "report", "--json").document["groups"][0]["shards"] == 1
    (tmp_path / "file").write_text("")
    for words, complaint in (
        (("--keep", "3"), "name one"),
        (("--directory", str(tmp_path), "--keep", "0"), "--keep must be a whole number above 0"),
        (("--directory", str(tmp_path / "file")), "cannot be a directory of reports"),
    ):
        ran = scene.run("leases", "report", *words)
        assert ran.code == 2
        assert complaint in ran.err
