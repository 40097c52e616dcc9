"""Skipping, resetting, moving, releasing, pausing, and the audit of it all: against real HTTP."""

from __future__ import annotations

import pytest
from operate_scene import Owner, Scene, closed_family, read_shard

from streamclient.cli.options import operator_name
from streamclient.server import Fail, FaultRule, LoseAnswer

OLDEST, END = "TRIM_HORIZON", "SHARD_END"


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
    back = scene.run("leases", "skip", shard, "--to", f"iterator:{scene.iterator(after=1)}")
    assert "is before the checkpoint" in back.err


def test_a_skip_to_the_end_is_for_closed_shards_and_lets_children_start(scene: Scene, shard: str) -> None:
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


def test_a_free_lease_is_moved_by_handing_it_over(scene: Scene, shard: str) -> None:
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


def test_nothing_is_changed_if_the_audit_cannot_be_written(scene: Scene, shard: str) -> None:
    checkpoint = scene.lease().checkpoint
    scene.local.add_fault(FaultRule(operation="BatchWriteRow", times=1, action=Fail("OTSServerBusy")))

    assert scene.run("leases", "rewind", shard, "--to", "oldest").code == 2
    assert scene.lease().checkpoint == checkpoint


def test_a_lost_answer_is_cleared_up_by_reading_the_row(scene: Scene, shard: str) -> None:
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

    assert scene.run("leases", "rewind", parent, "--to", "oldest", "--with-descendants").code == 1
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


def test_an_audit_that_cannot_be_completed_is_said(scene: Scene, shard: str) -> None:
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


def test_secrets_do_not_get_into_the_audit(scene: Scene, shard: str) -> None:
    scene.run("leases", "pause", shard, "--reason", "x", "--access-key-secret", scene.local.access_key_secret)
    assert scene.local.access_key_secret not in str(scene.cells())


def test_audit_rows_are_none_of_the_workers_business(scene: Scene, shard: str) -> None:
    scene.run("leases", "rewind", shard, "--to", "oldest")
    assert [lease.lease_key for lease in scene.manager.list_leases()] == [shard]
    assert scene.manager.list_workers() == []
