"""``streamclient leases`` and ``explain``, as far as they only read: against real HTTP."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from operate_scene import STATUS, TABLE, Scene, run_cli

from streamclient.core import leases as rule
from streamclient.core.worker_info import WorkerInfo
from streamclient.model import ParkedRecord, Pause, RecordOrder
from streamclient.operate.service_clock import ServiceClock
from streamclient.records import StreamRecord
from streamclient.server import Fail, FaultRule
from streamclient.worker.parking import FileParkingStore

PAUSE = Pause("r1", "ann@ops", "maintenance")
LEASE_MEMBERS = {
    "shard",
    "owner",
    "stealer",
    "counter",
    "checkpoint",
    "checkpoint_kind",
    "parents",
    "pause",
    "pause_acknowledged",
    "orders",
    "progress",
    "pending",
    "problem",
    "situation",
    "moves",
    "heartbeat_seconds",
    "checkpoint_seconds",
    "lag_seconds",
    "lag_is_bound",
    "seconds_to_loss",
}


def family(scene: Scene) -> tuple[str, str, str]:
    """A finished parent and its two children, one of them held and one free."""
    scene.write(4)
    parent = scene.shard
    first, second = scene.split()
    scene.write(40)
    scene.put_lease(parent, "w1", checkpoint="SHARD_END")
    scene.put_lease(first, "w1", parents=[parent], pause=PAUSE, taken=True)
    scene.put_lease(second, parents=[parent])
    scene.put_worker("w1")
    return parent, first, second


def test_list_shows_every_lease_with_its_state(scene: Scene) -> None:
    parent, first, second = family(scene)
    ran = scene.run("leases", "list")
    lines = [line.split() for line in ran.out.splitlines()]

    assert ran.code == 0
    assert lines[0][:4] == ["SHARD", "OWNER", "STATE", "CHECKPOINT"]
    states = {line[0]: (line[1], line[2], line[3]) for line in lines[1:]}
    assert states == {
        parent: ("w1", "finished", "end"),
        first: ("w1", "paused", "oldest"),
        second: ("-", "free", "oldest"),
    }
    assert [line[-1] for line in lines[1:] if line[0] == first] == ["ann@ops"]


def test_list_as_json_has_the_documented_members(scene: Scene) -> None:
    _, first, second = family(scene)
    document = scene.run("leases", "list", "--json").document
    leases = {lease["shard"]: lease for lease in document["leases"]}

    assert document["table"] == TABLE
    assert document["stream"] == scene.stream_id
    assert document["expiration_hours"] == 24
    assert all(set(lease) == LEASE_MEMBERS for lease in leases.values())
    assert leases[first]["pause"]["by"] == "ann@ops"
    assert 0 < leases[second]["lag_seconds"] < 60
    assert 23 * 3_600 < leases[second]["seconds_to_loss"] < 24 * 3_600


def test_list_reads_no_records_if_the_lag_is_not_wanted(scene: Scene) -> None:
    _, _, second = family(scene)
    scene.local.reset_requests()
    document = scene.run("leases", "list", "--json", "--no-lag").document
    operations = {count.operation for count in scene.local.requests()}

    assert "GetStreamRecord" not in operations
    assert [lease["lag_seconds"] for lease in document["leases"] if lease["shard"] == second] == [None]


def test_show_has_the_verdict_the_row_and_the_history(scene: Scene) -> None:
    scene.write(3)
    scene.put_lease(scene.shard)
    assert scene.run("leases", "pause", scene.shard, "--reason", "look at it").code == 0
    ran = scene.run("leases", "show", scene.shard)
    document = scene.run("leases", "show", scene.shard, "--json").document

    assert ran.first_line.startswith(f"Shard {scene.shard} is paused by ")
    assert "next unread record: written" in ran.out
    assert "pause" in ran.out.splitlines()[-1]
    assert document["explanation"]["situation"] == "paused"
    assert [record["command"] for record in document["history"]] == [f"pause {scene.shard}"]
    assert set(document["lease"]) == LEASE_MEMBERS


def test_explain_names_the_last_change_by_an_operator(scene: Scene) -> None:
    scene.put_lease(scene.shard)
    scene.run("leases", "pause", scene.shard, "--reason", "look at it")
    scene.run("leases", "resume", scene.shard)

    assert f"last change by an operator: resume {scene.shard}, by " in scene.run("explain", scene.shard).out


def parked_record(scene: Scene, record: StreamRecord, place: int) -> ParkedRecord:
    return ParkedRecord(
        record_id=f"r{place}",
        stream_id=scene.stream_id,
        shard_id=scene.shard,
        record=record,
        position="TRIM_HORIZON",
        index=place,
        generation=1,
        error="ValueError: bad record",
        traceback="",
        attempts=1,
        parked_micros=1,
    )


def test_parked_keys_are_counted_if_their_store_is_named(scene: Scene, tmp_path: Path) -> None:
    scene.write(2)
    scene.put_lease(scene.shard)
    page = scene.streams.get_stream_record(scene.iterator())
    store = FileParkingStore(tmp_path)
    store.park([parked_record(scene, record, place) for place, record in enumerate(page.records)])
    ran = scene.run("explain", scene.shard, "--parking-directory", str(tmp_path), "--observe", "0")

    assert "keys with parked records: 2; `streamclient parked list` names them" in ran.out


@pytest.mark.parametrize("words", [["explain", "--observe", "0"], ["leases", "show"]])
def test_a_parking_store_that_does_not_exist_is_refused_and_not_made(
    scene: Scene, words: list[str], tmp_path: Path
) -> None:
    """A wrong name is not a store without parked records."""
    scene.write(1)
    scene.put_lease(scene.shard)
    tables = scene.client.list_table()
    directory = tmp_path / "aside"
    for option, name, text in (
        ("--parking-directory", str(directory), f"{directory} is not a directory of parked records"),
        ("--parking-table", "no_such_table", "the table 'no_such_table' of parked records does not exist: a worker"),
    ):
        ran = scene.run(*words, scene.shard, option, name)
        assert (ran.code, ran.out) == (2, "")
        assert text in ran.err

    assert not directory.exists()
    assert scene.client.list_table() == tables


def test_the_audit_of_one_shard_is_named_by_the_beginning_of_its_id(scene: Scene) -> None:
    _, first, second = family(scene)
    for shard in (first, second):
        assert scene.run("leases", "pause", shard, "--reason", "why", "--no-wait").code == 0
    ran = scene.run("leases", "audit", "--shard", second[:8], "--json")

    assert [each["shard"] for each in ran.document["records"]] == [second]


def test_show_of_an_unknown_shard_says_so(scene: Scene) -> None:
    ran = scene.run("leases", "show", "nowhere")
    assert ran.code == 1
    assert ran.first_line.startswith("Shard nowhere is unknown to stream")


def test_a_status_table_that_is_missing_is_named(scene: Scene) -> None:
    scene.client.delete_table(STATUS)
    ran = scene.run("leases", "list")

    assert ran.code == 2
    assert "status table" in ran.err
    assert STATUS in ran.err


def test_a_malformed_row_hinders_no_command_that_reads(scene: Scene) -> None:
    scene.put_lease(scene.shard, "w1", without="Checkpoint")
    lease = scene.run("leases", "list", "--json").document["leases"][0]

    assert lease["situation"] == "malformed-row"
    assert lease["owner"] is None
    assert "Checkpoint" in lease["problem"]
    assert scene.run("leases", "show", scene.shard).code == 0


def test_a_snapshot_and_its_differences_are_told_in_words(scene: Scene, tmp_path: Path) -> None:
    parent, first, second = family(scene)
    before, after = str(tmp_path / "before.json"), str(tmp_path / "after.json")
    assert scene.run("leases", "snapshot", before).out == f"saved 3 leases and 1 worker to {before}\n"
    assert scene.run("leases", "diff", before).out == "no difference\n"
    scene.put_lease(second, "w2", parents=[parent], checkpoint=scene.iterator(second))
    scene.put_lease(first, "w1", parents=[parent], counter=99)
    scene.put_worker("w1", nonce="n2")
    scene.put_worker("w2")
    assert scene.run("leases", "snapshot", after, "--json").document["leases"] == 3
    ran = scene.run("leases", "diff", before, after)

    told = {
        first: [f"shard {first}: the pause by ann@ops ended"],
        second: [f"shard {second}: owner none -> w2", f"shard {second}: its checkpoint moved"],
    }
    shards = [line for shard in sorted(told) for line in told[shard]]
    assert ran.out.splitlines() == [*shards, "worker w1: was restarted", "worker w2: joined"]
    assert scene.run("leases", "diff", before, "--json").document["differences"][0]["kind"]


def test_a_difference_names_orders_about_records_that_came_and_went(scene: Scene, tmp_path: Path) -> None:
    scene.put_lease(scene.shard)
    before = str(tmp_path / "before.json")
    scene.run("leases", "snapshot", before)
    scene.send(rule.set_orders(scene.lease(), (RecordOrder("o1", "ann@ops", "bad", 1, 10**16, ("r1",), "parked"),)))
    came = scene.run("leases", "diff", before).out
    scene.run("leases", "snapshot", before)
    shown = scene.run("leases", "show", scene.shard).out
    scene.send(rule.set_orders(scene.lease(), ()))

    assert came == f"shard {scene.shard}: one record is to be taken out, by order of ann@ops\n"
    assert "order o1: by ann@ops, one record parked in table parked, until" in shown
    assert scene.run("leases", "diff", before).out == f"shard {scene.shard}: the order by ann@ops ended\n"


def test_a_file_that_is_no_snapshot_is_refused(scene: Scene, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"format": "something else"}))

    for path in (str(other), str(tmp_path / "missing.json")):
        ran = scene.run("leases", "diff", path)
        assert ran.code == 2
        assert "is not a snapshot" in ran.err


def test_a_snapshot_may_go_to_standard_output(scene: Scene) -> None:
    scene.put_lease(scene.shard)
    assert scene.run("leases", "snapshot", "-").document["leases"][0]["shard"] == scene.shard


def test_explain_all_has_a_line_for_each_shard_and_an_exit_code(scene: Scene) -> None:
    parent, first, second = family(scene)
    ran = scene.run("explain", "--all", "--observe", "0")
    document = scene.run("explain", "--all", "--observe", "0", "--json").document

    assert ran.code == 1
    assert ran.out.startswith(f"{document['verdict']['sentence']}\n")
    assert len(ran.out.partition("\n\n")[2].splitlines()) == 3
    assert {entry["shard"] for entry in document["shards"]} == {parent, first, second}
    assert all(entry["evidence"] and entry["advice"] for entry in document["shards"])


def test_explain_alone_begins_with_what_does_not_move_and_only_counts_what_is_finished(scene: Scene) -> None:
    parent, held, free = family(scene)
    scene.put_lease(held, "w1", parents=[parent])
    ran = scene.run("explain", "--observe", "0")
    whole = scene.run("explain", "--all", "--observe", "0")

    assert ran.code == whole.code == 1
    lines, all_lines = (each.out.partition("\n\n")[2].splitlines() for each in (ran, whole))
    assert [line.split()[1] for line in lines[:2]] == [free, held]
    assert lines[2:] == ["1 finished, not shown without --all"]
    assert [line.split()[1] for line in all_lines[:2]] == [free, held]
    assert all_lines[2].startswith(f"Shard {parent} is finished: ")
    shown = scene.run("explain", "--observe", "0", "--json").document["shards"]
    assert [entry["shard"] for entry in shown] == [free, held]


def test_explain_takes_one_shard_or_all(scene: Scene) -> None:
    assert scene.run("explain", "x", "--all").code == 2


def test_lease_duration_is_taken_from_what_workers_publish(quick: Scene) -> None:
    quick.put_lease(quick.shard)
    assert quick.run("leases", "list", "--json").document["lease_duration_seconds"] == 20
    quick.put_worker("w1", info=WorkerInfo(lease_duration_millis=7_000))

    assert quick.run("leases", "list", "--json").document["lease_duration_seconds"] == 7


def test_tables_may_be_named_in_the_environment(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.put_lease(scene.shard)
    monkeypatch.setenv("TABLESTORE_ENDPOINT", scene.local.endpoint)
    ran = run_cli("leases", "list")
    assert ran.code == 2
    assert "--data-table" in ran.err
    monkeypatch.setenv("TABLESTORE_DATA_TABLE", TABLE)
    monkeypatch.setenv("TABLESTORE_STATUS_TABLE", STATUS)

    assert run_cli("leases", "list").code == 0


def test_ages_are_by_the_services_clock_not_by_the_operators(scene: Scene) -> None:
    """An operator's machine that is an hour slow still sees how old a heartbeat is."""
    slow = ServiceClock(lambda: time.time_ns() // 1_000 - 3_600_000_000)
    slow.watching(scene.client).list_table()
    assert abs(slow.now_micros() - time.time_ns() // 1_000) < 30_000_000


def test_a_throttled_read_is_repeated_before_it_is_reported(scene: Scene) -> None:
    scene.put_lease(scene.shard)
    scene.local.add_fault(FaultRule(operation="GetRange", times=2, action=Fail("OTSServerBusy")))
    assert scene.run("leases", "list").code == 0
