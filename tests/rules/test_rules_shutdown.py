"""Rules about stopping: nothing is abandoned, and nothing takes for ever."""

from __future__ import annotations

import threading

import pytest
from rules_scene import Scene, Writer, gate

from streamclient import ProcessRecordsInput, ShutdownReason, WorkerStatus
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.slow


def test_a_shutdown_during_a_batch_stores_it_tells_the_processor_and_hands_over(scene: Scene) -> None:
    """The next worker continues right behind that batch, long before a lease could expire, and repeats nothing."""
    mine, other = scene.split(scene.root, "m")
    scene.share(mine, other)
    with gate() as held:

        def process(writer: Writer, given: ProcessRecordsInput) -> None:
            if writer.worker == "w1":
                held.hold()
            given.checkpointer.checkpoint()

        scene.diary.on_process = process
        with scene.worker("w1") as first, scene.worker("w2"):
            scene.until(lambda: bool(scene.diary.starts(mine, "w1")) and bool(scene.diary.starts(other, "w2")))
            scene.write("a1")
            assert held.entered.wait(PATIENCE_SECONDS)
            stopper = threading.Thread(target=first.shutdown)
            stopper.start()
            scene.scans_pass(4)
            assert first.worker_status is WorkerStatus.RUNNING
            assert scene.lease(mine).owner == "w1"
            held.open()
            stopper.join(PATIENCE_SECONDS)
            assert first.worker_status is WorkerStatus.SHUTDOWN
            assert scene.diary.shutdowns(mine, "w1") == [ShutdownReason.STOLEN]
            scene.write("a2")
            scene.until(lambda: scene.diary.accepted(mine) == ["a1", "a2"])

    assert scene.diary.batches(mine, "w2") == [["a2"]]
    assert ShutdownReason.ZOMBIE not in scene.diary.shutdowns()


def test_a_shutdown_ends_in_bounded_time_although_a_processor_hangs(scene: Scene) -> None:
    """Every other processor is told and its lease handed over; the one that hangs stores nothing afterwards."""
    shards = scene.split(scene.root, "m")
    with gate() as held:
        late: list[str] = []

        def process(writer: Writer, given: ProcessRecordsInput) -> None:
            if writer.shard_id == shards[0]:
                held.hold()
                try:
                    given.checkpointer.checkpoint()
                except Exception as error:
                    late.append(type(error).__name__)
                    held.entered.clear()

        scene.diary.on_process = process
        with scene.worker("w1", shutdown_timeout_millis=1_000) as first:
            scene.until(lambda: all(scene.diary.starts(shard) for shard in shards))
            scene.write("a1")
            assert held.entered.wait(PATIENCE_SECONDS)
            assert first.shutdown()
            assert first.worker_status is WorkerStatus.SHUTDOWN
            assert scene.diary.shutdowns(shards[1]) == [ShutdownReason.STOLEN]
            assert scene.diary.shutdowns(shards[0]) == []
            held.open()
            scene.until(lambda: late == ["ShutdownException"])

    assert scene.lease(shards[0]).checkpoint == "TRIM_HORIZON"
