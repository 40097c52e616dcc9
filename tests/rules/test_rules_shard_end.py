"""Rules about shards, their ends, their lineage and their rows."""

from __future__ import annotations

import pytest
from rules_scene import SHORT_LEASE_MILLIS, STATUS, Scene, Writer, checkpoint_unless_zombie, is_well
from tablestore import Row

from streamclient import CheckpointPosition, Lease, ProcessRecordsInput, ShutdownInput, ShutdownReason
from streamclient.server.fault_rules import Fail, FaultRule
from streamclient.worker.lease.lease_rows import key_of

pytestmark = pytest.mark.slow


def delete_row(scene: Scene, shard_id: str) -> None:
    """As an operator would, or a clean-up that knows nothing of this shard."""
    key = key_of(scene.stream_id, shard_id)
    scene.client.delete_row(STATUS, Row(key))


def test_a_shard_that_ends_without_a_checkpoint_is_repeated_and_the_worker_lives(scene: Scene) -> None:
    """Its children wait until the end is stored; shards beside it go on."""
    left, right = scene.split(scene.root, "m")
    scene.write("a1", "a2", "a3")
    children = scene.split(left, "b")
    never_stores = True

    def process(writer: Writer, given: ProcessRecordsInput) -> None:
        if writer.shard_id != left:
            given.checkpointer.checkpoint()

    def shut_down(writer: Writer, given: ShutdownInput) -> None:
        if writer.shard_id != left or not never_stores:
            checkpoint_unless_zombie(writer, given)

    scene.diary.on_process, scene.diary.on_shutdown = process, shut_down
    with scene.worker() as worker:
        scene.until(lambda: scene.diary.shutdowns(left).count(ShutdownReason.TERMINATE) >= 2)
        scene.write("z1", "z2")
        scene.until(lambda: scene.diary.accepted(right) == ["z1", "z2"])
        assert is_well(worker)
        assert scene.diary.delivered(left)[:6] == ["a1", "a2", "a3"] * 2
        assert not any(scene.diary.starts(child) for child in children)
        assert scene.lease(left).checkpoint == CheckpointPosition.TRIM_HORIZON

        never_stores = False
        scene.until(lambda: all(scene.diary.starts(child) for child in children))
        assert scene.lease(left).is_finished


def test_a_deleted_row_comes_back_where_it_stood(scene: Scene) -> None:
    """Whoever deletes the row of a living shard costs it neither its progress nor its processor."""
    scene.write("a1", "a2")
    with scene.working(lease_duration_millis=SHORT_LEASE_MILLIS):
        scene.until(lambda: scene.diary.accepted() == ["a1", "a2"])
        before = scene.lease(scene.root)
        delete_row(scene, scene.root)
        scene.until(lambda: scene.row(scene.root) is not None)
        after = scene.lease(scene.root)
        scene.write("a3")
        scene.until(lambda: scene.diary.accepted() == ["a1", "a2", "a3"])

    assert (after.owner, after.checkpoint) == ("w1", before.checkpoint)
    assert after.counter > before.counter
    assert len(scene.diary.starts()) == 1


def test_a_row_that_was_put_anew_gets_its_owner_and_checkpoint_back(scene: Scene) -> None:
    """The Java client's shard sync puts rows without a condition, over whatever is there."""
    scene.write("a1", "a2")
    with scene.working(lease_duration_millis=SHORT_LEASE_MILLIS):
        scene.until(lambda: scene.diary.accepted() == ["a1", "a2"])
        before = scene.lease(scene.root)
        delete_row(scene, scene.root)
        scene.leases.create_lease(Lease(scene.root, scene.stream_id))
        scene.until(lambda: scene.lease(scene.root).owner == "w1")
        after = scene.lease(scene.root)
        scene.write("a3")
        scene.until(lambda: scene.diary.accepted() == ["a1", "a2", "a3"])

    assert after.checkpoint == before.checkpoint
    assert len(scene.diary.starts()) == 1


def test_a_missing_parent_row_starts_no_child(scene: Scene) -> None:
    """Absence proves nothing while the stream cannot be asked whether the parent is still there."""
    scene.write("a1", "z1")
    children = scene.split(scene.root, "m")
    scene.write("a2", "z2")
    scene.store(*(Lease(child, scene.stream_id, parent_shard_ids=frozenset({scene.root})) for child in children))
    scene.local.add_fault(FaultRule("DescribeStream", Fail("OTSServerBusy")))
    with scene.working() as worker:
        scene.until(lambda: {scene.lease(child).owner for child in children} == {"w1"})
        scene.scans_pass(5)
        assert scene.diary.starts() == []
        assert all("parent" in worker.shard_statuses()[child].reason for child in children)

        scene.local.clear_faults()
        scene.until(lambda: len(scene.diary.accepted()) == 4)
        assert scene.diary.accepted()[:2] == ["a1", "z1"]


def test_a_finished_parent_whose_row_was_deleted_is_not_read_again(scene: Scene) -> None:
    """It would come again after its children: repeated, and out of order."""
    scene.write("a1", "a2")
    children = scene.split(scene.root, "m")
    scene.write("a3", "z1")
    with scene.worker("w1"):
        scene.until(lambda: len(scene.diary.accepted()) == 4)
    delete_row(scene, scene.root)
    with scene.worker("w1"):
        scene.until(lambda: scene.row(scene.root) is not None)
        scene.write("a4", "z2")
        scene.until(lambda: len(scene.diary.accepted()) == 6)

    assert scene.lease(scene.root).is_finished
    assert len(scene.diary.starts(scene.root)) == 1
    assert [scene.diary.accepted(child) for child in children] == [["a3", "a4"], ["z1", "z2"]]


def test_a_shard_whose_processor_is_done_is_read_on_by_another_worker(scene: Scene) -> None:
    """Done means "not here": the shard is not left unread, and nobody keeps the lease alive for nothing."""

    def process(writer: Writer, given: ProcessRecordsInput) -> None:
        given.checkpointer.checkpoint()
        if writer.worker == "w1":
            given.shutdown_marker.mark_for_process_done()

    scene.diary.on_process = process
    left, right = scene.split(scene.root, "m")
    scene.share(left, right)
    with scene.worker("w1"), scene.working("w2"):
        scene.until(lambda: len(scene.diary.starts()) == 2)
        scene.write("a1", "z1")
        scene.until(lambda: ShutdownReason.PROCESS_DONE in scene.diary.shutdowns(worker="w1"))
        scene.until(lambda: scene.lease(left).owner == "w2")
        scene.write("a2", "z2")
        scene.until(lambda: sorted(scene.diary.accepted()) == ["a1", "a2", "z1", "z2"])
        assert len(scene.diary.starts(left, "w1")) == 1
