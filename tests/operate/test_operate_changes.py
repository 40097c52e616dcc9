"""Commands that change leases, against real HTTP: what they write, what they refuse, and what they leave behind."""

from __future__ import annotations

import threading
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
from operate_scene import Owner, Scene, until

from streamclient.core import leases as rule
from streamclient.model import Pause
from streamclient.operate.lease_changes import operator_name
from streamclient.server import Fail, FaultRule, LoseAnswer

if TYPE_CHECKING:
    from pathlib import Path

OLDEST, END = "TRIM_HORIZON", "SHARD_END"


def read_shard(scene: Scene, *, records: int = 10, after: int = 6, owner: str = "", **row: Any) -> str:
    """A shard of which some records were read; the row as its owner left it."""
    scene.write(records)
    scene.put_lease(scene.shard, owner, checkpoint=scene.iterator(after=after), **row)
    return scene.shard


def closed_family(scene: Scene) -> tuple[str, str, str]:
    """A finished parent, one child that was read to its end, and one that was begun; nobody owns them."""
    scene.write(4)
    parent = scene.shard
    first, second = scene.split()
    scene.write(40)
    scene.put_lease(parent, checkpoint=END)
    scene.put_lease(first, parents=[parent], checkpoint=scene.iterator(first, after=3))
    scene.put_lease(second, parents=[parent])
    return parent, first, second


# --- rewind --------------------------------------------------------------------------------------------------------


def test_a_free_lease_is_rewound_at_once_and_the_audit_says_who_did_it(scene: Scene) -> None:
    shard = read_shard(scene)
    before = scene.lease()
    ran = scene.run("leases", "rewind", shard, "--to", "oldest", "--reason", "bad hour")

    assert ran.code == 0, ran
    assert (scene.lease().checkpoint, scene.lease().counter) == (OLDEST, before.counter + 1)
    (record,) = scene.audit()
    assert record["who"] == operator_name()
    assert record["command"] == f"rewind {shard} --to oldest"
    assert (record["reason"], record["outcome"], record["shard"]) == ("bad hour", "done", shard)
    assert record["before"] == {"checkpoint": before.checkpoint, "pending": None}
    assert record["after"] == {"checkpoint": OLDEST, "pending": None}
    assert record["change"] in ran.out


def test_a_rewind_by_time_stores_an_iterator_of_that_time(scene: Scene) -> None:
    shard = read_shard(scene)
    records = scene.streams.get_stream_record(scene.iterator()).records
    moment = datetime.fromtimestamp(records[4].sequence_info.timestamp_micros / 1_000_000, tz=timezone.utc)
    assert scene.run("leases", "rewind", shard, "--to", moment.isoformat()).code == 0
    page = scene.streams.get_stream_record(scene.lease().checkpoint)

    assert page.records in (records[4:], records[3:]), "the moment itself, or one microsecond off"


def test_a_time_before_everything_is_the_beginning_of_the_shard(scene: Scene) -> None:
    shard = read_shard(scene)
    assert scene.run("leases", "rewind", shard, "--to", "1h-ago").code == 0

    assert scene.lease().checkpoint == OLDEST


def test_a_rewind_to_an_iterator_checks_that_it_is_one_of_the_shard(scene: Scene) -> None:
    shard = read_shard(scene)
    earlier = scene.iterator(after=2)
    other, _ = scene.split()
    foreign = scene.iterator(other)

    assert "is one of shard" in scene.run("leases", "rewind", shard, "--to", f"iterator:{foreign}").err
    assert scene.run("leases", "rewind", shard, "--to", "iterator:nonsense").code == 2
    assert scene.audit() == []
    assert scene.run("leases", "rewind", shard, "--to", f"iterator:{earlier}").code == 0
    assert scene.lease(shard).checkpoint == earlier


def test_going_forward_is_no_rewind(scene: Scene) -> None:
    shard = read_shard(scene)
    ahead = scene.iterator(after=9)
    ran = scene.run("leases", "rewind", shard, "--to", f"iterator:{ahead}")

    assert ran.code == 2
    assert "skips records" in ran.err
    assert "`leases skip`" in scene.run("leases", "rewind", shard, "--to", "latest").err


def test_a_dry_run_writes_nothing_and_says_what_it_would(scene: Scene) -> None:
    parent, first, second = closed_family(scene)
    commands = [
        ("rewind", first, "--to", "oldest"),
        ("rewind", parent, "--to", "oldest", "--with-descendants", "--pause"),
        ("skip", second, "--to", "latest"),
        ("skip", second, "--to", "1h-ago"),
        ("reset", "--to", "oldest"),
        ("release", first),
        ("move", first, "--to", "w1"),
        ("pause", "--all", "--reason", "x"),
        ("resume", "--all"),
    ]
    before = scene.cells()
    for command in commands:
        ran = scene.run("leases", *command, "--dry-run")

        assert "dry run: nothing was written" in ran.out or ran.code == 2, (command, ran)
        assert scene.cells() == before, command
    document = scene.run("leases", "rewind", first, "--to", "oldest", "--dry-run", "--json").document
    assert document["status"] == "planned"
    assert document["changes"][0]["after"]["checkpoint"] == OLDEST
    assert document["change"] is None


def test_a_finished_parent_is_only_rewound_together_with_its_descendants(scene: Scene) -> None:
    parent, first, second = closed_family(scene)
    refused = scene.run("leases", "rewind", parent, "--to", "oldest")
    assert refused.code == 1
    assert "--with-descendants" in refused.out
    assert scene.audit() == []
    ran = scene.run("leases", "rewind", parent, "--to", "oldest", "--with-descendants")

    assert ran.code == 0, ran
    assert [scene.lease(key).checkpoint for key in (parent, first, second)] == [OLDEST] * 3
    assert {record["shard"] for record in scene.audit()} == {parent, first}
    assert len({record["change"] for record in scene.audit()}) == 1


# --- the guard -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_lease_of_a_running_owner_is_left_alone(scene: Scene) -> None:
    """Nothing is written, and no audit row, whichever command asks."""
    shard = read_shard(scene, owner="w1")
    with Owner(scene, "w1", shard):
        checkpoint = scene.lease().checkpoint
        for command in (
            ("rewind", shard, "--to", "oldest"),
            ("skip", shard, "--to", "latest", "--yes"),
            ("reset",),
            ("release", shard),
            ("release", shard, "--force"),
        ):
            ran = scene.run("leases", *command)

            assert ran.code == 1, (command, ran)
            assert "refused: its owner w1 runs" in ran.out
            assert "--pause" in ran.out or "--force" in ran.out
            assert (scene.lease().checkpoint, scene.lease().owner) == (checkpoint, "w1")
    assert scene.audit() == []


@pytest.mark.slow
def test_a_running_owner_without_session_is_not_asked_for_a_pause_it_does_not_know(scene: Scene) -> None:
    shard = read_shard(scene, owner="java-1")
    with Owner(scene, "java-1", shard, has_session=False):
        ran = scene.run("leases", "rewind", shard, "--to", "oldest", "--pause")

    assert ran.code == 1
    assert "does not obey pauses" in ran.out
    assert scene.audit() == []


@pytest.mark.slow
def test_an_owner_that_stands_still_before_our_eyes_is_dead(hasty: Scene) -> None:
    shard = read_shard(hasty, owner="w1", beat=300)
    ran = hasty.run("leases", "rewind", shard, "--to", "oldest")

    assert ran.code == 0, ran
    assert "watching 1 lease(s)" in ran.err
    assert hasty.lease().checkpoint == OLDEST


@pytest.mark.slow
def test_an_owner_that_wakes_up_while_it_is_watched_is_not_dead(hasty: Scene) -> None:
    """Its stamps are old, but its counter moves while the command watches."""
    shard = read_shard(hasty, owner="w1", beat=300)
    stop = threading.Event()

    def renew_late() -> None:
        stop.wait(0.5)
        hasty.send(rule.renew(hasty.lease()))

    thread = threading.Thread(target=renew_late)
    thread.start()
    ran = hasty.run("leases", "rewind", shard, "--to", "oldest")
    thread.join(10)

    assert ran.code == 1
    assert hasty.lease().checkpoint != OLDEST
    assert hasty.audit() == []


def test_the_verdict_of_the_fleet_needs_no_watching(scene: Scene) -> None:
    shard = read_shard(scene, owner="w1")
    scene.put_worker("w1", state="killed")
    ran = scene.run("leases", "rewind", shard, "--to", "oldest")

    assert (ran.code, ran.err) == (0, "")


# --- pause, change, resume -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_with_pause_the_owner_is_paused_waited_for_and_resumed(scene: Scene) -> None:
    shard = read_shard(scene, owner="w1")
    with Owner(scene, "w1", shard) as owner:
        dry = scene.run("leases", "rewind", shard, "--to", "oldest", "--pause", "20s", "--dry-run")
        assert f"worker w1 would first pause {shard}" in dry.out
        assert dry.code == 0
        assert scene.lease().pause is None
        ran = scene.run("leases", "rewind", shard, "--to", "oldest", "--pause", "20s")
        assert ran.code == 0, ran
        lease = scene.lease()
        assert (lease.checkpoint, lease.owner, lease.pause, lease.pause_taken) == (OLDEST, "w1", None, "")
        until(lambda: scene.lease().counter > lease.counter + 3, "the owner renews on")
    assert owner.refused <= 1, "the rewind itself refuses at most the write that was under way"
    assert [record["outcome"] for record in scene.audit()] == ["done"]


@pytest.mark.slow
def test_an_owner_that_does_not_stop_in_time_gets_its_shard_back_unchanged(scene: Scene) -> None:
    shard = read_shard(scene, owner="w1")
    with Owner(scene, "w1", shard, obeys=False):
        checkpoint = scene.lease().checkpoint
        ran = scene.run("leases", "rewind", shard, "--to", "oldest", "--pause", "1s")

    assert ran.code == 1
    assert f"worker w1 did not stop reading {shard} in time; nothing was changed" in ran.out
    assert (scene.lease().checkpoint, scene.lease().pause) == (checkpoint, None)
    assert scene.audit()[0]["outcome"] == "not changed: not every owner paused in time"


@pytest.mark.slow
def test_an_operators_own_pause_is_kept_when_a_command_ends(scene: Scene) -> None:
    """A pause without end protects the change by itself; one that is about to end is put back afterwards."""
    mine = Pause("r9", "ann@ops", "maintenance")
    shard = read_shard(scene, owner="w1")
    with Owner(scene, "w1", shard):
        scene.send(rule.set_pause(scene.lease(), mine))
        assert scene.run("leases", "rewind", shard, "--to", "oldest", "--pause", "20s").code == 0
        assert scene.lease().pause == mine
        soon = Pause("r10", "ann@ops", "short", scene_now(scene) + 30_000_000)
        scene.send(rule.set_pause(scene.lease(), soon))
        assert scene.run("leases", "skip", shard, "--to", "latest", "--yes", "--pause", "20s").code == 0
        assert scene.lease().pause == soon


def scene_now(scene: Scene) -> int:
    now: int = scene.run("leases", "list", "--json", "--no-lag").document["now_micros"]
    return now


@pytest.mark.slow
def test_a_command_that_dies_leaves_its_intent_and_a_pause_that_ends(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the process were killed while it waits: nothing is cleaned up, and everything can be seen."""
    shard = read_shard(scene, owner="w1")
    scene.put_worker("w1")
    monkeypatch.setattr("streamclient.operate.orders.Executor._end_pauses", lambda *_: None)
    monkeypatch.setattr("streamclient.operate.orders.Executor._complete_audit", lambda *_: ())
    monkeypatch.setattr("streamclient.operate.watching.Watcher.await_quiet", _killed)
    ran = scene.run("leases", "rewind", shard, "--to", "oldest", "--pause", "20s")

    assert ran.code == 130
    assert [record["outcome"] for record in scene.audit()] == ["intended"]
    pause = scene.lease().pause
    assert pause is not None
    assert pause.until_micros is not None
    assert "while it is changed: rewind" in pause.reason


def _killed(*_: Any) -> list[str]:
    raise KeyboardInterrupt


@pytest.mark.slow
def test_an_interrupted_command_resumes_what_it_paused(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = read_shard(scene, owner="w1")
    scene.put_worker("w1")
    monkeypatch.setattr("streamclient.operate.watching.Watcher.await_quiet", _killed)
    ran = scene.run("leases", "rewind", shard, "--to", "oldest", "--pause", "20s")

    assert ran.code == 130
    assert scene.lease().pause is None
    assert "ended early: KeyboardInterrupt" in scene.audit()[0]["outcome"]


# --- skip and reset ------------------------------------------------------------------------------------------------


def test_a_skip_says_how_much_is_lost_and_wants_a_yes(scene: Scene) -> None:
    shard = read_shard(scene, records=10, after=6)
    asked = scene.run("leases", "skip", shard, "--to", "latest")
    assert asked.code == 2
    assert f"this skips 4 records of shard {shard}, which are never delivered; add --yes" in asked.err
    ran = scene.run("leases", "skip", shard, "--to", "latest", "--yes")

    assert ran.code == 0, ran
    assert "4 records" in ran.out
    assert scene.streams.get_stream_record(scene.lease().checkpoint).records == ()


def test_a_skip_to_an_iterator_counts_up_to_it(scene: Scene) -> None:
    shard = read_shard(scene, records=10, after=2)
    ran = scene.run("leases", "skip", shard, "--to", f"iterator:{scene.iterator(after=9)}")

    assert "this skips 7 records" in ran.err
    assert "lies behind" in scene.run("leases", "skip", shard, "--to", f"iterator:{scene.iterator(after=1)}").err


def test_a_skip_to_the_end_is_for_closed_shards_and_lets_children_start(scene: Scene) -> None:
    shard = read_shard(scene)
    refused = scene.run("leases", "skip", shard, "--to", "end", "--yes")
    assert refused.code == 1
    assert "it is open" in refused.out
    children = scene.split()
    ran = scene.run("leases", "skip", shard, "--to", "end", "--yes")

    assert ran.code == 0, ran
    assert f"at the end of a shard its children may start: {', '.join(sorted(children))}" in ran.out
    assert scene.lease(shard).checkpoint == END


def test_a_reset_moves_all_shards_and_a_forward_one_wants_a_yes(scene: Scene) -> None:
    parent, first, second = closed_family(scene)
    forward = scene.run("leases", "reset", "--to", "latest")
    assert forward.code == 2
    assert "never delivered; add --yes" in forward.err
    assert scene.run("leases", "reset").code == 0

    assert [scene.lease(key).checkpoint for key in (parent, first, second)] == [OLDEST] * 3


# --- owners --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_dead_owners_lease_is_released_after_watching_it_or_at_once_if_vouched(hasty: Scene) -> None:
    shard = read_shard(hasty, owner="w1", beat=0.7)
    forced = hasty.run("leases", "release", shard, "--force", "--dry-run")
    assert forced.code == 0, forced
    ran = hasty.run("leases", "release", shard)

    assert ran.code == 0
    assert "watching" in ran.err
    assert hasty.lease().owner == ""


def test_a_move_marks_for_a_living_worker_and_is_refused_for_a_dead_one(scene: Scene) -> None:
    shard = read_shard(scene, owner="w1")
    scene.put_worker("w1")
    scene.put_worker("w2")
    scene.put_worker("w3", beat=60)
    assert "does not live" in scene.run("leases", "move", shard, "--to", "w3").out
    ran = scene.run("leases", "move", shard, "--to", "w2")

    assert ran.code == 0, ran
    assert scene.lease().stealer == "w2"
    assert wakes(scene) == {"w1": 1, "w2": 1, "w3": 0}


def wakes(scene: Scene) -> dict[str, int]:
    return {row.worker_id: row.wake for row in scene.manager.list_workers()}


def test_a_free_lease_is_moved_by_handing_it_over(scene: Scene) -> None:
    shard = read_shard(scene)
    scene.put_worker("w2")
    assert scene.run("leases", "move", shard, "--to", "w2").code == 0

    assert scene.lease().is_handed_over


# --- pause and resume ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_pause_waits_for_the_owner_and_a_resume_ends_it(scene: Scene) -> None:
    shard = read_shard(scene, owner="w1")
    with Owner(scene, "w1", shard):
        ran = scene.run("leases", "pause", shard, "--reason", "maintenance", "--for", "2h")
        assert ran.code == 0, ran
        assert scene.lease().is_paused_by_owner
        assert scene.explain().startswith(f"Shard {shard} is paused by {operator_name()} until ")
        assert scene.run("leases", "resume", shard).code == 0
    assert scene.lease().pause is None
    assert [record["command"].split()[0] for record in scene.audit()] == ["resume", "pause"]


@pytest.mark.slow
def test_a_pause_that_is_not_acknowledged_is_reported_but_stays(scene: Scene) -> None:
    shard = read_shard(scene, owner="w1")
    with Owner(scene, "w1", shard, obeys=False):
        ran = scene.run("leases", "pause", shard, "--reason", "maintenance", "--wait", "1s")

    assert ran.code == 1
    assert f"still read after 1s: {shard}" in ran.out
    assert scene.lease().pause is not None


def test_pauses_are_selected_by_worker_or_for_all_and_leave_finished_shards_out(scene: Scene) -> None:
    parent, first, second = closed_family(scene)
    scene.put_lease(first, "w1", parents=[parent], checkpoint=scene.iterator(first, after=3), beat=300)
    assert scene.run("leases", "pause", "--worker", "w1", "--reason", "x", "--no-wait").code == 0
    assert [scene.lease(key).pause is not None for key in (parent, first, second)] == [False, True, False]
    assert scene.run("leases", "pause", "--all", "--reason", "x", "--no-wait").code == 0
    assert [scene.lease(key).pause is not None for key in (parent, first, second)] == [False, True, True]
    assert scene.run("leases", "resume", "--all").code == 0

    assert [scene.lease(key).pause for key in (parent, first, second)] == [None] * 3


def test_a_pause_wants_a_reason_and_one_selection(scene: Scene) -> None:
    assert "--reason is needed" in scene.run("leases", "pause", "--all").err
    assert "name either shards" in scene.run("leases", "pause", "--reason", "x").err
    assert "name either shards" in scene.run("leases", "resume", "x", "--all").err
    assert "owns no lease" in scene.run("leases", "pause", "--worker", "w9", "--reason", "x").err


# --- audit and failures --------------------------------------------------------------------------------------------


def test_nothing_is_changed_if_the_audit_cannot_be_written(scene: Scene) -> None:
    shard = read_shard(scene)
    checkpoint = scene.lease().checkpoint
    scene.local.add_fault(FaultRule(operation="BatchWriteRow", times=1, action=Fail("OTSServerBusy")))
    ran = scene.run("leases", "rewind", shard, "--to", "oldest")

    assert ran.code == 2
    assert scene.lease().checkpoint == checkpoint


def test_a_lost_answer_is_cleared_up_by_reading_the_row(scene: Scene) -> None:
    shard = read_shard(scene)
    scene.local.add_fault(FaultRule(operation="BatchWriteRow", after=1, times=1, action=LoseAnswer()))
    ran = scene.run("leases", "rewind", shard, "--to", "oldest")

    assert ran.code == 0, ran
    assert scene.lease().checkpoint == OLDEST
    assert scene.audit()[0]["outcome"] == "done"


@pytest.mark.slow
def test_children_are_left_alone_where_the_parent_could_not_be_written(scene: Scene) -> None:
    parent, first, _ = closed_family(scene)
    checkpoint = scene.lease(first).checkpoint
    scene.local.add_fault(FaultRule(operation="BatchWriteRow", after=1, times=6, action=Fail("OTSServerBusy")))
    ran = scene.run("leases", "rewind", parent, "--to", "oldest", "--with-descendants")

    assert ran.code == 1
    assert (scene.lease(parent).checkpoint, scene.lease(first).checkpoint) == (END, checkpoint)
    outcomes = {record["shard"]: record["outcome"] for record in scene.audit()}
    assert "OTSServerBusy" in outcomes[parent]
    assert outcomes[first] == "not changed"


def test_a_lost_answer_to_a_change_of_owner_is_no_refusal(scene: Scene) -> None:
    """Planned anew on the changed row, a release or a move would be refused: reading the row back tells."""
    shard = read_shard(scene, owner="w1")
    scene.put_worker("w1", state="killed")
    scene.put_worker("w2")
    for command in (("release", shard), ("move", shard, "--to", "w2")):
        scene.local.add_fault(FaultRule(operation="BatchWriteRow", after=1, times=1, action=LoseAnswer()))
        ran = scene.run("leases", *command)
        scene.local.clear_faults()

        assert ran.code == 0, (command, ran)
        assert scene.audit()[0]["outcome"] == "done"


def test_an_audit_that_cannot_be_completed_is_said(scene: Scene) -> None:
    shard = read_shard(scene)
    scene.local.add_fault(FaultRule(operation="BatchWriteRow", after=2, times=1, action=Fail("OTSServerBusy")))
    ran = scene.run("leases", "rewind", shard, "--to", "oldest")

    assert ran.code == 0
    assert "stay incomplete" in ran.out
    assert scene.audit()[0]["outcome"] == "intended"


def test_the_audit_is_listed_newest_first_and_by_shard(scene: Scene) -> None:
    parent, first, second = closed_family(scene)
    for shard in (first, second):
        scene.run("leases", "pause", shard, "--reason", "x", "--no-wait")
    rows = [record["shard"] for record in scene.audit()]
    only = scene.run("leases", "audit", "--shard", first, "--json").document["records"]

    assert rows == [second, first]
    assert [record["shard"] for record in only] == [first]
    assert len(scene.run("leases", "audit", "--limit", "1", "--json").document["records"]) == 1
    assert "pause" in scene.run("leases", "audit").out
    assert parent not in rows


def test_secrets_do_not_get_into_the_audit(scene: Scene, tmp_path: Path) -> None:
    shard = read_shard(scene)
    scene.run("leases", "pause", shard, "--reason", "x", "--access-key-secret", scene.local.access_key_secret)

    assert scene.local.access_key_secret not in str(scene.cells())


def test_audit_rows_are_none_of_the_workers_business(scene: Scene) -> None:
    shard = read_shard(scene)
    scene.run("leases", "rewind", shard, "--to", "oldest")

    assert [lease.lease_key for lease in scene.manager.list_leases()] == [shard]
    assert scene.manager.list_workers() == []
