"""Rules about leases: marks, hand-overs, lost answers, lost leases."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from attrs import evolve
from rules_scene import SHORT_LEASE_MILLIS, STATUS, Scene, Writer, gate, is_well

from streamclient import (
    InitializationInput,
    IRecordProcessor,
    Lease,
    ProcessRecordsInput,
    ShardState,
    ShutdownException,
    ShutdownInput,
    ShutdownReason,
)
from streamclient.server.fault_rules import Cut, Fail, FaultRule, LateAnswer, LoseAnswer
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.slow


def test_a_restart_under_the_same_name_hands_a_marked_lease_over(scene: Scene) -> None:
    """The former life of the worker was asked for the lease and never answered; no expiry helps within this test."""
    scene.write("a1")
    scene.store(Lease(scene.root, scene.stream_id, owner="w1", counter=5, stealer="w2"))
    with scene.worker("w1") as first, scene.worker("w2") as second:
        scene.until(lambda: scene.diary.accepted() == ["a1"])
        assert is_well(first)
        assert is_well(second)
        assert [entry.worker for entry in scene.diary.starts()] == ["w2"]


def test_a_restart_under_the_same_name_reads_on_at_once(scene: Scene) -> None:
    """A row in the worker's own name is its own, however young."""
    scene.write("a1")
    scene.store(Lease(scene.root, scene.stream_id, owner="w1", counter=5))
    with scene.working("w1"):
        scene.until(lambda: scene.diary.accepted() == ["a1"])


def test_a_waiting_child_is_handed_over_at_once(scene: Scene) -> None:
    """Nothing of it runs, so nothing has to end first; its parent may take hours."""
    scene.write("a1")
    with gate() as held:
        scene.diary.on_process = lambda writer, given: held.hold()
        with scene.worker("w1") as worker:
            assert held.entered.wait(PATIENCE_SECONDS)
            child, other = scene.split(scene.root, "m")
            scene.until(lambda: {child, other} <= set(worker.shard_statuses()))
            assert worker.shard_statuses()[child].state is ShardState.WAITING_ON_PARENT_SHARDS
            scene.mark(child, "w2")
            scene.until(lambda: scene.lease(child).owner == "w2")
            assert scene.lease(child).is_handed_over
            assert scene.diary.shutdowns() == []
            held.open()


def test_a_mark_is_noticed_by_the_next_heartbeat(scene: Scene) -> None:
    """Without any scan: the heartbeat compares the stealer, and its refusal tells."""
    with scene.worker("w1", lease_duration_millis=SHORT_LEASE_MILLIS):
        scene.until(lambda: bool(scene.diary.starts()))
        scene.local.add_fault(FaultRule("GetRange", Fail("OTSServerBusy"), table=STATUS))
        scene.mark(scene.root, "w2")
        scene.until(lambda: scene.lease(scene.root).owner == "w2")

    assert scene.diary.shutdowns() == [ShutdownReason.STOLEN]


def test_a_mark_is_noticed_by_a_scan_between_two_heartbeats(scene: Scene) -> None:
    """Even if each scan is older than the last checkpoint, because its answer is slow and checkpoints are many."""
    with scene.worker("w1"):
        scene.until(lambda: bool(scene.diary.starts()))
        scene.local.add_fault(FaultRule("GetRange", LateAnswer(0.5), table=STATUS))
        scene.mark(scene.root, "w2")
        keys = iter(f"a{number:03}" for number in range(1_000))

        def handed_over() -> bool:
            scene.write(next(keys))
            return scene.lease(scene.root).owner == "w2"

        scene.until(handed_over)

    assert scene.diary.shutdowns() == [ShutdownReason.STOLEN]


@pytest.mark.parametrize("seconds_of_silence", [0.0, 3.0], ids=["cut", "time-out"])
def test_a_take_whose_answer_was_lost_is_kept(scene: Scene, seconds_of_silence: float) -> None:
    scene.write("a1")
    scene.store(Lease(scene.root, scene.stream_id))
    lose_next_write(scene, seconds_of_silence)
    with scene.working(lease_duration_millis=SHORT_LEASE_MILLIS):
        scene.until(lambda: scene.diary.accepted() == ["a1"])
        assert_undisturbed(scene, counters=[1, 2])


def test_a_renewal_whose_answer_was_lost_keeps_the_lease(scene: Scene) -> None:
    with scene.working(lease_duration_millis=SHORT_LEASE_MILLIS):
        scene.until(lambda: bool(scene.diary.starts()))
        lose_next_write(scene)
        scene.until(lambda: scene.local.faults()[0].struck == 1)
        counter = scene.lease(scene.root).counter
        scene.until(lambda: scene.lease(scene.root).counter > counter)
        scene.write("a1")
        scene.until(lambda: scene.diary.accepted() == ["a1"])
        assert_undisturbed(scene)


def test_a_checkpoint_whose_answer_was_lost_is_told_as_stored(scene: Scene) -> None:
    """The caller hears neither an error nor of a lost lease, for neither is true."""
    told: list[str] = []

    def process(writer: Writer, given: ProcessRecordsInput) -> None:
        lose_next_write(scene)
        given.checkpointer.checkpoint()
        told.append(given.checkpointer.largest_permitted_checkpoint_value)

    scene.diary.on_process = process
    with scene.working():
        scene.until(lambda: bool(scene.diary.starts()))
        scene.write("a1")
        scene.until(lambda: bool(told))
        assert scene.local.faults()[0].struck == 1
        assert scene.lease(scene.root).checkpoint == told[0]
        assert_undisturbed(scene)


def lose_next_write(scene: Scene, seconds_of_silence: float = 0.0) -> None:
    scene.local.add_fault(FaultRule("BatchWriteRow", LoseAnswer(seconds_of_silence), table=STATUS, times=1))


def assert_undisturbed(scene: Scene, counters: Sequence[int] = ()) -> None:
    """One processor, never shut down, and the lease where it was."""
    assert len(scene.diary.starts()) == 1
    assert scene.diary.shutdowns() == []
    assert scene.lease(scene.root).owner == "w1"
    assert not counters or scene.lease(scene.root).counter in counters


def test_whoever_lost_its_lease_stores_nothing(scene: Scene) -> None:
    """A worker cut off from the table stops believing in its lease before another may take it; its checkpoint fails."""
    refused: list[str] = []
    short = {"lease_duration_millis": SHORT_LEASE_MILLIS}
    leases = scene.severed_leases(**short)

    with gate() as held:

        def process(writer: Writer, given: ProcessRecordsInput) -> None:
            if writer.worker == "w2":
                given.checkpointer.checkpoint()
                return
            held.hold()
            try:
                given.checkpointer.checkpoint()
            except ShutdownException:
                refused.append(writer.worker)

        scene.diary.on_process = process
        scene.write("a1")
        with scene.worker("w1", lease_manager=leases, **short) as first:
            assert held.entered.wait(PATIENCE_SECONDS)
            with scene.worker("w2", **short):
                leases.is_severed = True
                scene.until(lambda: scene.lease(scene.root).owner == "w2")
                assert "the lease is lost" in first.shard_statuses()[scene.root].reason
                scene.until(lambda: scene.diary.accepted() == ["a1"])
                stored = scene.lease(scene.root).checkpoint
                held.open()
                scene.until(lambda: scene.diary.shutdowns(worker="w1") == [ShutdownReason.ZOMBIE])
                assert refused == ["w1"]
                assert scene.lease(scene.root).owner == "w2"
                assert scene.lease(scene.root).checkpoint == stored
                leases.is_severed = False


def test_a_shard_lost_and_regained_has_one_processor_at_a_time(scene: Scene) -> None:
    """The table is away for longer than the lease; the worker takes its shard again, but the old call still runs."""
    inside: list[str] = []
    most: list[int] = []
    refused = threading.Event()

    with gate() as held:

        def process(writer: Writer, given: ProcessRecordsInput) -> None:
            inside.append(writer.tenancy)
            most.append(len(inside))
            if not held.is_open:
                held.hold()
            try:
                given.checkpointer.checkpoint()
            except ShutdownException:
                refused.set()
            finally:
                inside.remove(writer.tenancy)

        scene.diary.on_process = process
        scene.write("a1")
        with scene.working(lease_duration_millis=SHORT_LEASE_MILLIS) as worker:
            assert held.entered.wait(PATIENCE_SECONDS)
            scene.local.add_fault(FaultRule("*", Cut(), table=STATUS))
            scene.until(lambda: "the lease is lost" in worker.shard_statuses()[scene.root].reason)
            scene.local.clear_faults()
            scene.scans_pass(10)
            held.open()
            scene.until(lambda: len(scene.diary.starts()) == 2)
            scene.until(lambda: scene.diary.batches() == [["a1"], ["a1"]])

    assert refused.is_set()
    assert max(most) == 1
    assert scene.diary.shutdowns()[0] is ShutdownReason.ZOMBIE
    first, second = scene.diary.starts()
    assert first.tenancy != second.tenancy


def test_what_another_worker_wrote_meanwhile_is_never_overwritten(scene: Scene) -> None:
    """Counter and owner are compared, so even a row made anew with the same counter is safe from a stranger."""
    scene.store(Lease(scene.root, scene.stream_id, owner="w1", counter=7))
    mine = scene.lease(scene.root)
    scene.leases.delete_lease(mine)
    scene.store(evolve(mine, owner="w2"))

    assert not scene.leases.renew_lease(mine)
    assert not scene.leases.update_lease(mine, "elsewhere")
    assert not scene.leases.transfer_lease(mine, "w3")
    assert not scene.leases.delete_lease(mine)
    assert not scene.leases.create_lease(Lease(scene.root, scene.stream_id))
    assert scene.lease(scene.root) == evolve(mine, owner="w2")


def test_each_acquisition_of_a_shard_has_a_greater_epoch(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A destination that remembers the greatest epoch can refuse whoever lost its lease and does not know it yet."""
    epochs: list[int] = []

    class Noting(IRecordProcessor):
        def initialize(self, initialization_input: InitializationInput) -> None:
            epochs.append(initialization_input.shard_info.epoch)

        def process_records(self, process_records_input: ProcessRecordsInput) -> None: ...

        def shutdown(self, shutdown_input: ShutdownInput) -> None: ...

    monkeypatch.setattr("rules_scene.Writer", lambda diary, worker: Noting())
    for acquisitions in (1, 2, 3):
        with scene.worker("w1"):
            scene.until(lambda expected=acquisitions: len(epochs) == expected)

    assert 0 < epochs[0] < epochs[1] < epochs[2]
