"""Stuck situations that stand in the tables: rows as dead, foreign or departed workers leave them, and the service."""

from __future__ import annotations

import inspect
import os
import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from operate_scene import STATUS, TABLE, Owner, Scene, run_cli
from stuck_page import check, checked, is_told, page_rows

from streamclient.base.processes import process_space
from streamclient.core.worker_info import WorkerInfo
from streamclient.model import Pause
from streamclient.operate import situations
from streamclient.operate.collection import FleetReader
from streamclient.operate.explanation import explain
from streamclient.operate.site import Site
from streamclient.server import Fail, FaultRule, http_service
from streamclient.tablestore import StreamSpecification

if TYPE_CHECKING:
    from streamclient.server import LocalTablestore

PAUSE = Pause("r1", "ann@ops", "maintenance")
HERE = Path(__file__).parent


def test_every_situation_is_on_the_page_and_produced_by_a_test() -> None:
    known = {
        value.name: value for _, value in inspect.getmembers(situations) if isinstance(value, situations.Situation)
    }
    source = "".join(path.read_text() for path in HERE.glob("test_operate_stuck_*.py"))
    tested = set(re.findall(r'(?:(?:check(?:ed)?|is_told)\(\s*[^"\n]*?|^    )"([a-z-]+)"', source, re.MULTILINE))

    assert {row.name for row in page_rows()} == set(known)
    assert set(known) <= tested, set(known) - tested
    for row in page_rows():
        assert row.advice == known[row.name].advice


# --- service and stream --------------------------------------------------------------------------------------------


def test_no_status_table(scene: Scene) -> None:
    scene.client.delete_table(STATUS)
    check(scene, "no-status-table")


def test_a_status_table_that_holds_no_leases(scene: Scene) -> None:
    scene.put_lease(scene.shard)
    options = ["--endpoint", scene.local.endpoint, "--data-table", TABLE, "--status-table", TABLE]
    ran = run_cli("explain", scene.shard, "--json", "--observe", "0", *options)
    checked(ran, "not-a-status-table")


def test_wrong_keys(scene: Scene) -> None:
    scene.put_lease(scene.shard)
    ran = scene.run("explain", scene.shard, "--json", "--access-key-secret", "wrong", "--observe", "0")
    checked(ran, "access-refused")


@pytest.mark.parametrize(("minutes", "wrong"), [(20, "slow"), (-20, "fast")])
def test_a_clock_that_the_service_refuses(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, minutes: int, wrong: str
) -> None:
    shard = scene.shard
    scene.put_lease(shard)
    real_time = http_service.real_time
    monkeypatch.setattr(http_service, "real_time", lambda: real_time() + timedelta(minutes=minutes))
    if wrong == "slow":
        check(scene, "clock-wrong", shard)
    for words in (["explain"], ["leases", "list"], ["top", "--once"]):
        ran = scene.run(*words)
        assert (ran.code, ran.out) == (2, "")
        assert (
            f"this machine's clock is 20 min {wrong}, by the service's clock. {situations.CLOCK_WRONG.advice}"
            in ran.err
        )


@pytest.mark.slow
def test_a_throttled_status_table(scene: Scene) -> None:
    scene.local.add_fault(FaultRule(operation="GetRange", table=STATUS, action=Fail("OTSServerBusy")))
    check(scene, "throttled")


@pytest.mark.slow
def test_an_endpoint_that_does_not_answer(local: LocalTablestore) -> None:
    options = ["--data-table", TABLE, "--status-table", STATUS, "--observe", "0", "--json"]
    endpoint = local.endpoint
    local.stop()
    ran = run_cli("explain", "s1", "--endpoint", endpoint, *options)
    checked(ran, "unreachable")
    local.start()


def test_a_data_table_that_is_missing(scene: Scene) -> None:
    scene.put_lease(scene.shard)
    options = ["--endpoint", scene.local.endpoint, "--data-table", "typo", "--status-table", STATUS]
    explained = run_cli("explain", scene.shard, "--json", "--observe", "0", *options)
    checked(explained, "no-data-table")
    for words in (["explain", scene.shard], ["explain"], ["leases", "list"], ["top", "--once"]):
        ran = run_cli(*words, *options)

        assert (ran.code, ran.out) == (2, "")
        assert "the stream of table typo cannot be read: the table does not exist" in ran.err


def test_what_cannot_be_read_is_an_error_and_no_verdict(scene: Scene) -> None:
    """Without ``--json`` nothing is printed but the one line on standard error."""
    scene.client.delete_table(STATUS)
    words = ["--observe", "0", "--access-key-secret", "wrong"]
    missing, refused = scene.run("explain", scene.shard), scene.run("explain", "--all", *words)
    scene.streams.update_table(TABLE, stream=StreamSpecification(enable_stream=False))
    off = scene.run("explain", "--all")

    assert [(ran.code, ran.out, ran.err.count("\n")) for ran in (missing, refused, off)] == [(2, "", 1)] * 3
    assert missing.err.startswith("streamclient explain: status table orders_status cannot be read: the table does")
    assert refused.err.endswith(f"{situations.REFUSED.advice}\n")
    assert off.err.startswith("streamclient explain: data table 'orders' has no stream. Enable the stream again")


def test_a_stream_that_is_off(scene: Scene) -> None:
    shard = scene.shard
    scene.put_lease(shard, "w1")
    scene.streams.update_table(TABLE, stream=StreamSpecification(enable_stream=False))
    check(scene, "stream-off", shard)


def test_a_stream_that_was_replaced(scene: Scene) -> None:
    shard = scene.shard
    scene.put_lease(shard, "w1")
    scene.streams.update_table(TABLE, stream=StreamSpecification(enable_stream=False))
    scene.streams.update_table(TABLE, stream=StreamSpecification(enable_stream=True, expiration_time_hours=24))
    check(scene, "stream-replaced", shard)


def test_a_shard_that_nobody_knows(scene: Scene) -> None:
    scene.put_lease(scene.shard)
    check(scene, "unknown-shard", "nowhere")


def test_a_shard_that_left_the_stream(scene: Scene) -> None:
    scene.put_lease(scene.shard)
    scene.put_lease("long-gone", "w1", checkpoint=scene.iterator())
    check(scene, "left-stream", "long-gone")


# --- rows ----------------------------------------------------------------------------------------------------------


def test_a_shard_without_row(scene: Scene) -> None:
    scene.put_worker("w1")
    check(scene, "no-row-yet")


def test_a_parent_without_row(scene: Scene) -> None:
    parent = scene.shard
    scene.write(40)
    child, _ = scene.split()
    scene.put_worker("w1")
    assert parent in check(scene, "parent-has-no-row", child)


def test_a_finished_shard(scene: Scene) -> None:
    parent = scene.shard
    scene.write(40)
    scene.split()
    scene.put_lease(parent, "w1", checkpoint="SHARD_END")
    check(scene, "finished", parent)


def test_no_worker_at_all(scene: Scene) -> None:
    check(scene, "no-worker")
    scene.put_lease(scene.shard)
    check(scene, "no-worker")


def test_a_child_and_its_unfinished_grandparent(scene: Scene) -> None:
    grandparent = scene.shard
    scene.write(40)
    parent, _ = scene.split()
    child, _ = scene.split(parent)
    scene.put_lease(grandparent, "w1", checkpoint=scene.iterator(grandparent), beat=100)
    scene.put_lease(parent, "w1", parents=[grandparent], beat=100)
    scene.put_lease(child, "w1", parents=[parent], beat=100)
    assert f"waits for its ancestor {grandparent}, which has a dead owner" in check(scene, "waits-for-parent", child)


LEFT: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {
    "free": ({}, {"w1": {}}),
    "owner-silent": ({"owner": "w1", "beat": 12}, {}),
    "owner-dead": ({"owner": "w1", "beat": 34}, {"w1": {"state": "killed", "beat": 34}, "w2": {}}),
    "changing-hands": ({"owner": "w2", "stealer": "w2"}, {"w2": {}}),
    "not-handed-over": ({"owner": "java-1", "stealer": "w2", "marked": 200}, {"w2": {}}),
    "pause-not-obeyed": ({"owner": "java-1", "pause": PAUSE}, {}),
    "malformed-row": ({"owner": "w1", "without": "Checkpoint"}, {}),
    "unknown-format": ({"owner": "w1", "row_format": 2}, {}),
}
"""Situations by the row of the lease, and by those of workers; Java owners have none and know no pauses."""


@pytest.mark.parametrize("situation", LEFT)
def test_rows_as_owners_leave_them(scene: Scene, situation: str) -> None:
    lease, workers = LEFT[situation]
    scene.put_lease(scene.shard, **lease)
    for name, session in workers.items():
        scene.put_worker(name, **session)
    check(scene, situation)


@pytest.mark.skipif(not process_space(), reason="only Linux says what process ids count in")
def test_a_process_that_runs_here_and_writes_nothing(scene: Scene) -> None:
    """As after its key was revoked: this process stands for it. Nobody is told to start a worker."""
    info = WorkerInfo(host="h", pid=os.getpid(), space=process_space())
    scene.put_lease(scene.shard, "w1", beat=34)
    scene.put_worker("w1", beat=34, info=info)
    check(scene, "owner-cut-off")


def test_a_lease_that_was_asked_for_a_moment_ago(scene: Scene) -> None:
    scene.put_lease(scene.shard, "w1", stealer="w2", marked=2)
    scene.put_worker("w1")
    scene.put_worker("w2")
    assert "asked worker w1 for it" in check(scene, "changing-hands")


def test_a_lease_that_is_not_picked_up(scene: Scene) -> None:
    scene.put_lease(scene.shard, "w2", stealer="w2", owned=45, beat=45)
    scene.put_worker("w2")
    check(scene, "not-picked-up")
    scene.put_worker("w2", beat=60)
    assert check(scene, "not-picked-up").endswith("the worker is dead.")


def test_a_java_owner_that_renews_and_does_not_move(scene: Scene) -> None:
    scene.write(3)
    scene.put_lease(scene.shard, "java-1", moved=90, owned=300)
    with Owner(scene, "java-1", scene.shard, has_session=False):
        check(scene, "owner-mute")


def test_a_lease_whose_records_were_not_looked_up(scene: Scene) -> None:
    scene.write(3)
    scene.put_lease(scene.shard, "w1", moved=90, owned=300)
    with Owner(scene, "w1", scene.shard):
        (listed,) = scene.run("leases", "list", "--no-lag", "--json").document["leases"]
        facts = FleetReader(Site(scene.client, TABLE, STATUS)).collect()

    told = {"situation": listed["situation"], "first_line": explain(facts, scene.shard).first_line}
    assert is_told(told, "held")


def test_a_position_that_was_trimmed_seen_from_outside(scene: Scene) -> None:
    scene.write(5)
    scene.put_lease(scene.shard, "java-1", checkpoint=scene.iterator(after=1))
    scene.local.trim(TABLE, keep_last=1)
    check(scene, "position-trimmed")
