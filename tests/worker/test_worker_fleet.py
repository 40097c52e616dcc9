"""Several workers and their leases, on virtual time: hand-over, loss, outages, shutdown, splits and merges."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from streamclient.core.events import CheckpointOutcome
from streamclient.core.membership import WorkerRow
from streamclient.core.write_rules import WriteKind, WriteOutcome
from streamclient.errors import DependencyException, ErrorKind, ShutdownException
from streamclient.interfaces import ProcessRecordsInput
from streamclient.model import ShardInfo, ShutdownReason
from streamclient.testing.fakes import make_record
from streamclient.testing.simulation.scene import UNREACHABLE, FaultyLeases, RecordingProcessor, World
from streamclient.testing.simulation.workers import SimulatedWorker
from streamclient.worker.checkpointer import CheckpointTicket
from streamclient.worker.lease import WriteAnswer


def records(count: int, start: int = 0) -> list[Any]:
    return [make_record(f"k{number}", number) for number in range(start, start + count)]


def keys(count: int, start: int = 0) -> list[str]:
    return [f"k{number}" for number in range(start, start + count)]


def balanced(world: World, *workers: SimulatedWorker) -> bool:
    """Whether every shard is read, and each worker reads one."""
    return all(len(worker.reads) == 1 for worker in workers)


def reading(world: World, worker: SimulatedWorker, count: int) -> None:
    world.simulation.until(lambda: len(worker.reads) == count, 200)


# --- hand-over --------------------------------------------------------------------------------------------------------


def test_joining_worker_gets_its_share_and_each_shard_one_reader() -> None:
    world = World("a", "b", "c", "d")
    first = world.worker("w1")
    reading(world, first, 4)
    second = world.worker("w2")
    world.simulation.until(lambda: len(first.reads) == len(second.reads) == 2, 200)
    for name in "abcd":
        world.stream.append(name, *records(3))
    world.simulation.until(lambda: all(world.journal.accepted[name] == keys(3) for name in "abcd"), 60)

    assert not first.reads & second.reads
    moved = [reasons for name in "abcd" if (reasons := world.journal.shutdowns(name))]
    assert moved == [[ShutdownReason.STOLEN]] * 2


def test_handed_over_shard_continues_at_the_checkpoint_of_the_stolen_shutdown() -> None:
    world = World("a", "b")
    world.journal.on_process = lambda processor, given: world.journal.accepted[processor.shard_id].extend(
        record.key["id"] for record in given.records
    )
    first = world.worker("w1")
    reading(world, first, 2)
    for name in "ab":
        world.stream.append(name, *records(3))
    world.simulation.advance(3)
    second = world.worker("w2")
    world.simulation.until(lambda: balanced(world, first, second), 200)
    world.simulation.advance(10)

    assert world.journal.delivered("a") == world.journal.delivered("b") == keys(3)


def test_children_start_only_after_their_parents_ended() -> None:
    """Split, then merge: no child before its parents, over two workers."""
    world = World("a")
    world.stream.append("a", *records(4))
    first, second = world.worker("w1", max_records=1), world.worker("w2", max_records=1)
    world.simulation.until(lambda: bool(world.journal.delivered("a")), 60)
    world.stream.split("a", "b", "c")
    world.stream.append("b", *records(3, 10))
    world.stream.append("c", *records(3, 20))
    world.simulation.until(lambda: len(world.journal.delivered("b") + world.journal.delivered("c")) == 6, 200)
    world.stream.merge("b", "c", "d")
    world.stream.append("d", *records(2, 30))
    world.simulation.until(lambda: world.journal.delivered("d") == keys(2, 30), 200)

    order = [shard for shard, what, _ in world.journal.entries if what == "process"]
    assert order.index("d") > max(place for place, shard in enumerate(order) if shard in "bc")
    assert min(order.index("b"), order.index("c")) > max(place for place, shard in enumerate(order) if shard == "a")
    assert (first.error, second.error) == (None, None)


# --- loss -------------------------------------------------------------------------------------------------------------


def test_killed_worker_is_replaced_at_its_last_checkpoint() -> None:
    world = World("a")
    world.stream.append("a", *records(6))
    first = world.worker("w1", max_records=2)
    world.simulation.until(lambda: len(world.journal.accepted["a"]) >= 2, 60)
    first.kill()
    kept = world.checkpoint("a")
    world.worker("w2", max_records=2)
    world.simulation.until(lambda: world.journal.delivered("a")[-1:] == ["k5"], 60)

    initial = [detail for what, detail in world.journal.by_shard["a"] if what == "initialize"]
    assert initial == ["TRIM_HORIZON", kept]


def cut_off_fleet() -> tuple[World, FaultyLeases, SimulatedWorker]:
    world = World("a")
    table = FaultyLeases(world.stream.stream_id)
    world.leases = table
    worker = world.worker("w1")
    reading(world, worker, 1)
    return world, table, worker


def test_checkpoint_of_a_lost_lease_is_refused() -> None:
    """A zombie stores nothing, is told so, and its processor hears ZOMBIE."""
    world = World("a")
    mine = FaultyLeases(world.stream.stream_id, behind=world.leases)
    slow = threading.Event()
    errors: list[BaseException] = []

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        world.journal.on_process = world.journal.checkpoint_batch
        world.simulation.wait(slow, 1_000)
        try:
            given.checkpointer.checkpoint()
        except ShutdownException as error:
            errors.append(error)
            raise

    world.journal.on_process = process
    world.stream.append("a", *records(2))
    first = world.worker("w1", lease_manager=mine)
    world.simulation.until(lambda: world.journal.delivered("a") == keys(2), 60)
    mine.is_cut_off = True
    second = world.worker("w2")
    world.simulation.until(lambda: world.checkpoint("a") == "a@2", 100)
    assert "the lease is lost" in first.statuses()["a"].reason
    slow.set()
    mine.is_cut_off = False
    world.simulation.until(lambda: world.journal.shutdowns("a") == [ShutdownReason.ZOMBIE], 60)

    assert len(errors) == 1
    assert second.reads == {"a"}
    assert first.error is None


def test_a_worker_that_is_cut_off_stops_before_anybody_else_may_start() -> None:
    """Validity is counted from before the last heartbeat was sent, and its end is noticed at once."""
    world, table, _ = cut_off_fleet()
    counter = table.get_lease("a").counter  # type: ignore[union-attr]
    world.simulation.until(lambda: table.get_lease("a").counter > counter, 60)  # type: ignore[union-attr]
    last_heartbeat = world.simulation.now
    table.is_cut_off = True
    world.simulation.until(lambda: world.journal.shutdowns("a") == [ShutdownReason.ZOMBIE], 60)

    assert 18 < world.simulation.now - last_heartbeat < 20


def test_a_waiting_checkpoint_is_answered_when_the_worker_ends() -> None:
    """The bound of a shutdown also bounds who waits for the status table."""
    world, table, worker = cut_off_fleet()
    told: list[tuple[float, ErrorKind]] = []

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        table.is_cut_off = True
        try:
            given.checkpointer.checkpoint()
        except DependencyException as error:
            told.append((world.simulation.now, error.kind))

    world.journal.on_process = process
    world.stream.append("a", *records(1))
    world.simulation.until(lambda: table.is_cut_off, 10)
    worker.coordinator._shutdown_seconds = 3.0
    start = world.simulation.now
    worker.stop()
    world.simulation.until(lambda: bool(told), 60)

    assert told[0][0] - start < 4
    assert told[0][1] is ErrorKind.AMBIGUOUS


def test_regained_shard_waits_until_its_old_processor_returned() -> None:
    """Never two calls for one shard in one worker."""
    world, table, worker = cut_off_fleet()
    slow = threading.Event()
    inside: list[str] = []
    overlaps: list[str] = []

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        overlaps.extend(inside)
        inside.append(processor.lease_identifier)
        if len(overlaps) == 0 and not slow.is_set():
            world.simulation.wait(slow, 1_000)
        inside.remove(processor.lease_identifier)

    world.journal.on_process = process
    world.stream.append("a", *records(2))
    world.simulation.until(lambda: bool(inside), 10)
    table.is_cut_off = True
    world.simulation.advance(60)
    table.is_cut_off = False
    world.simulation.advance(60)
    assert world.owner("a") == "w1"
    assert "the lease is lost; process_records has been running for" in worker.statuses()["a"].reason

    slow.set()
    world.simulation.until(lambda: world.journal.delivered("a") == keys(2) * 2, 60)
    assert overlaps == []
    assert world.journal.shutdowns("a")[0] is ShutdownReason.ZOMBIE


def test_table_outage_stops_reading_and_ends_by_itself() -> None:
    """However long the status table is away, the worker lives, says so, and resumes."""
    world, table, worker = cut_off_fleet()
    table.is_cut_off = True
    world.simulation.advance(300)

    assert worker.statuses() == {}
    health = worker.coordinator.health
    assert not health.is_healthy
    assert "no scan of the status table succeeded for" in health.reason
    assert "no route to the status table" in health.reason
    table.is_cut_off = False
    world.stream.append("a", *records(2))
    world.simulation.until(lambda: world.journal.accepted["a"] == keys(2), 60)
    world.simulation.advance(15)
    assert worker.coordinator.health.is_healthy
    assert worker.error is None


def test_failing_renewals_alone_make_the_worker_unhealthy() -> None:
    """Health is judged by answers, not by what was sent."""
    world, table, worker = cut_off_fleet()
    answer = table.write_many
    table.write_many = lambda writes: [WriteAnswer(WriteOutcome.UNCERTAIN, UNREACHABLE)] * len(writes)  # type: ignore[method-assign]
    world.simulation.advance(200)
    health = worker.coordinator.health
    assert not health.is_healthy
    assert "no write of a worker's row was answered for" in health.reason, "it has no lease left to write"

    table.write_many = answer  # type: ignore[method-assign]
    world.simulation.until(lambda: worker.coordinator.health.is_healthy, 100)


@pytest.mark.parametrize("kind", [WriteKind.RENEW, WriteKind.CHECKPOINT])
def test_applied_write_with_a_lost_answer_keeps_the_lease(kind: WriteKind) -> None:
    """One lost packet costs neither the lease nor a processor."""
    world, table, worker = cut_off_fleet()
    table.lose_answers_of = {kind}
    world.stream.append("a", *records(2))
    world.simulation.advance(30)

    assert world.journal.accepted["a"] == keys(2)
    assert world.journal.shutdowns("a") == []
    assert worker.reads == {"a"}


# --- slow user code ---------------------------------------------------------------------------------------------------


def test_hung_processor_is_visible_and_never_delays_heartbeats(caplog: pytest.LogCaptureFixture) -> None:
    world = World("a", "b")
    hang = threading.Event()

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        if processor.shard_id == "a":
            world.simulation.wait(hang, 10_000)

    world.journal.on_process = process
    world.stream.append("a", *records(1))
    worker = world.worker("w1")
    world.simulation.until(lambda: world.journal.delivered("a") == keys(1), 60)
    before = world.leases.get_lease("a")
    with caplog.at_level(logging.WARNING):
        world.simulation.advance(200)
    after = world.leases.get_lease("a")

    assert before is not None
    assert after is not None
    assert after.counter - before.counter >= 200 // 6 - 1
    status = worker.statuses()["a"]
    assert status.reason == "process_records has been running for 200 s"
    assert status.user_code_seconds == pytest.approx(200, abs=1)
    warnings = [record.getMessage() for record in caplog.records if "process_records has been" in record.getMessage()]
    assert len(warnings) == 3
    assert "world.simulation.wait(hang" in warnings[0]
    world.stream.append("b", *records(2))
    world.simulation.until(lambda: world.journal.delivered("b") == keys(2), 60)


# --- shutdown ---------------------------------------------------------------------------------------------------------


def test_shutdown_lets_the_batch_end_checkpoints_and_hands_every_lease_over() -> None:
    """The running batch is stored, every processor hears of it, and another worker has the leases at once."""
    world = World("a", "b")
    working = threading.Event()
    first = world.worker("w1")
    reading(world, first, 2)
    second = world.worker("w2")
    world.simulation.until(lambda: balanced(world, first, second), 200)
    name = next(iter(first.reads))

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        if processor.shard_id == name:
            world.simulation.wait(working, 5)
        world.journal.checkpoint_batch(processor, given)

    world.journal.on_process = process
    world.stream.append(name, *records(2))
    world.simulation.until(lambda: world.journal.delivered(name) == keys(2), 20)
    start = world.simulation.now
    first.stop()
    first.stop()
    world.simulation.until(lambda: first.is_over, 20)
    world.simulation.until(lambda: second.reads == {"a", "b"}, 7)

    assert world.simulation.now - start <= 12
    assert world.checkpoint(name).endswith("@2")
    assert world.journal.shutdowns(name)[-1] is ShutdownReason.STOLEN
    assert {world.owner("a"), world.owner("b")} == {"w2"}
    world.simulation.advance(10)
    assert world.journal.delivered(name) == keys(2)


def test_shutdown_is_bounded_in_spite_of_a_hung_processor(caplog: pytest.LogCaptureFixture) -> None:
    """The others are handed over, the hung one is named and left to expire, and stores nothing later."""
    world = World("a", "b", shutdown_timeout_millis=10_000)
    hang = threading.Event()
    late: list[BaseException] = []

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        world.simulation.wait(hang, 10_000)
        try:
            given.checkpointer.checkpoint()
        except ShutdownException as error:
            late.append(error)

    world.journal.on_process = process
    first = world.worker("w1")
    reading(world, first, 2)
    world.stream.append("a", *records(1))
    world.simulation.until(lambda: world.journal.delivered("a") == keys(1), 10)
    start = world.simulation.now
    first.stop()
    world.simulation.until(lambda: first.is_over, 60)
    hang.set()
    world.simulation.advance(1)

    assert world.simulation.now - start <= 11.1
    assert world.journal.shutdowns("b") == [ShutdownReason.STOLEN]
    assert world.journal.shutdowns("a") == []
    assert len(late) == 1
    assert "gave up waiting for <consumer of a, delivering" in caplog.text
    assert world.checkpoint("a") == "TRIM_HORIZON"


def test_uncertain_transfer_endangers_neither_worker_nor_lease() -> None:
    """A hand-over whose answer is lost is cleared up in the background."""
    world = World("a", "b")
    table = FaultyLeases(world.stream.stream_id)
    world.leases = table
    first = world.worker("w1")
    reading(world, first, 2)
    table.lose_answers_of = {WriteKind.TRANSFER}
    second = world.worker("w2")
    world.simulation.until(lambda: balanced(world, first, second), 200)
    world.stream.append("a", *records(2))
    world.stream.append("b", *records(2))
    world.simulation.until(lambda: len(world.journal.accepted["a"] + world.journal.accepted["b"]) == 4, 60)

    assert (first.error, second.error) == (None, None)
    assert not first.reads & second.reads


def test_fault_of_the_package_ends_the_worker_but_tells_the_processors() -> None:
    world = World("a")
    worker = world.worker("w1")
    reading(world, worker, 1)
    coordinator = worker.coordinator
    coordinator._holdings.handle = lambda event, now: 1 // 0  # type: ignore[method-assign,assignment,return-value]
    world.simulation.until(lambda: worker.is_over, 60)

    assert isinstance(worker.error, ZeroDivisionError)
    assert world.journal.shutdowns("a") == [ShutdownReason.ZOMBIE]


def test_whoever_asks_as_the_worker_ends_is_answered() -> None:
    world = World("a")
    worker = world.worker("w1")
    reading(world, worker, 1)
    coordinator = worker.coordinator
    heard: list[Any] = []
    ticket = CheckpointTicket("iterator", lambda: True)
    coordinator.shard_statuses(heard.append)
    coordinator.accept_loss("a", heard.append)
    coordinator.send_checkpoint(ShardInfo("a", "stream", frozenset(), "lease"), ticket, 1.0)
    coordinator.close()

    (statuses, loss) = heard
    assert list(statuses) == ["a"]
    assert loss is None
    assert ticket.answered.is_set()
    assert ticket.outcome is CheckpointOutcome.LEASE_LOST


def test_stop_of_an_unused_worker_is_immediate() -> None:
    world = World("a")
    worker = world.worker("w1")
    worker.stop()
    world.simulation.until(lambda: worker.is_over, 2)

    assert world.journal.entries == []


def test_a_worker_that_stood_still_beats_once_and_not_as_often_as_it_missed() -> None:
    world = World("a", renewer_interval_millis=1_000)
    worker = world.worker()
    reading(world, worker, 1)
    (before,) = world.leases.list_workers()
    worker.freeze(10.2)
    world.simulation.advance(10.1)
    assert beats_since(world, before) == 0
    world.simulation.advance(0.3)
    assert beats_since(world, before) == 1
    world.simulation.advance(3.0)

    assert beats_since(world, before) == 4, "at the same rate as before"


def beats_since(world: World, before: WorkerRow) -> int:
    (row,) = world.leases.list_workers()
    return row.beat - before.beat


# --- leading ----------------------------------------------------------------------------------------------------------


def leaders(world: World, *workers: SimulatedWorker) -> list[str]:
    now = world.simulation.now
    signals = {worker.name: worker.holdings._state.signals for worker in workers if not worker.is_over}
    return [name for name, own in signals.items() if own.session.is_valid(now) and own.is_leader]


def test_one_of_a_fleet_leads_and_after_it_the_next_by_name() -> None:
    world = World("a", "b")
    second = world.worker("w2")
    world.simulation.until(lambda: leaders(world, second) == ["w2"])
    first = world.worker("w1")
    world.simulation.until(lambda: leaders(world, first, second) == ["w1"])
    first.stop()
    world.simulation.until(lambda: first.is_over)
    world.simulation.until(lambda: leaders(world, second) == ["w2"], 5)
    third = world.worker("w0")
    world.simulation.until(lambda: leaders(world, third, second) == ["w0"])
    third.kill()

    world.simulation.until(lambda: leaders(world, second) == ["w2"], 30)


def test_a_worker_without_a_session_does_not_lead() -> None:
    world, table, worker = cut_off_fleet()
    assert leaders(world, worker) == ["w1"]
    table.is_cut_off = True
    world.simulation.advance(20.1)

    assert leaders(world, worker) == []
