"""Several workers and their leases, on virtual time: hand-over, loss, outages, shutdown, splits and merges."""

from __future__ import annotations

from typing import Any

from streamclient.core.events import CheckpointOutcome
from streamclient.core.membership import WorkerRow
from streamclient.core.write_rules import WriteKind
from streamclient.errors import DependencyException, ErrorKind
from streamclient.interfaces import ProcessRecordsInput
from streamclient.model import ShardInfo, ShutdownReason
from streamclient.testing.simulation.workers import SimulatedWorker
from streamclient.worker.checkpointer import CheckpointTicket
from tests.simulation.scene import FaultyLeases, RecordingProcessor
from tests.worker.stage import Stage, keys


def balanced(world: Stage, *workers: SimulatedWorker) -> bool:
    """Whether every shard is read, and each worker reads one."""
    return all(len(worker.reads) == 1 for worker in workers)


def reading(world: Stage, worker: SimulatedWorker, count: int) -> None:
    world.until(lambda: len(worker.reads) == count, 200)


def test_joining_worker_gets_its_share_and_each_shard_one_reader() -> None:
    world = Stage("a", "b", "c", "d")
    first = world.reader("w1")
    second = world.worker("w2")
    world.until(lambda: len(first.reads) == len(second.reads) == 2, 200)
    for name in "abcd":
        world.write(name, 3)
    world.until(lambda: all(world.journal.accepted[name] == keys(3) for name in "abcd"), 60)

    assert not first.reads & second.reads
    moved = [reasons for name in "abcd" if (reasons := world.journal.shutdowns(name))]
    assert moved == [[ShutdownReason.STOLEN]] * 2


def test_handed_over_shard_continues_at_the_checkpoint_of_the_stolen_shutdown() -> None:
    world = Stage("a", "b")
    world.journal.on_process = lambda processor, given: world.journal.accepted[processor.shard_id].extend(
        record.key["id"] for record in given.records
    )
    first = world.reader("w1")
    for name in "ab":
        world.write(name, 3)
    world.advance(3)
    second = world.worker("w2")
    world.until(lambda: balanced(world, first, second), 200)
    world.advance(10)

    assert world.journal.delivered("a") == world.journal.delivered("b") == keys(3)


# --- loss -------------------------------------------------------------------------------------------------------------


def test_killed_worker_is_replaced_at_its_last_checkpoint(world: Stage) -> None:
    world.write("a", 6)
    first = world.worker("w1", max_records=2)
    world.until(lambda: len(world.journal.accepted["a"]) >= 2, 60)
    first.kill()
    kept = world.checkpoint("a")
    world.worker("w2", max_records=2)
    world.until(lambda: world.journal.delivered("a")[-1:] == ["k5"], 60)

    initial = [detail for what, detail in world.journal.by_shard["a"] if what == "initialize"]
    assert initial == ["TRIM_HORIZON", kept]


def cut_off_fleet() -> tuple[Stage, FaultyLeases, SimulatedWorker]:
    world = Stage("a")
    table = FaultyLeases(world.stream.stream_id)
    world.leases = table
    worker = world.reader("w1")
    return world, table, worker


def test_a_worker_that_is_cut_off_stops_before_anybody_else_may_start() -> None:
    """Validity is counted from before the last heartbeat was sent, and its end is noticed at once."""
    world, table, _ = cut_off_fleet()
    counter = table.get_lease("a").counter  # type: ignore[union-attr]
    world.until(lambda: table.get_lease("a").counter > counter, 60)  # type: ignore[union-attr]
    last_heartbeat = world.simulation.now
    table.is_cut_off = True
    world.until(lambda: world.journal.shutdowns("a") == [ShutdownReason.ZOMBIE], 60)

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
    world.write("a", 1)
    world.until(lambda: table.is_cut_off, 10)
    worker.coordinator._shutdown_seconds = 3.0
    start = world.simulation.now
    worker.stop()
    world.until(lambda: bool(told), 60)

    assert told[0][0] - start < 4
    assert told[0][1] is ErrorKind.AMBIGUOUS


# --- shutdown ---------------------------------------------------------------------------------------------------------


def test_uncertain_transfer_endangers_neither_worker_nor_lease() -> None:
    """A hand-over whose answer is lost is cleared up in the background."""
    world = Stage("a", "b")
    table = FaultyLeases(world.stream.stream_id)
    world.leases = table
    first = world.reader("w1")
    table.lose_answers_of = {WriteKind.TRANSFER}
    second = world.worker("w2")
    world.until(lambda: balanced(world, first, second), 200)
    world.write("a", 2)
    world.write("b", 2)
    world.until(lambda: len(world.journal.accepted["a"] + world.journal.accepted["b"]) == 4, 60)

    assert (first.error, second.error) == (None, None)
    assert not first.reads & second.reads


def test_fault_of_the_package_ends_the_worker_but_tells_the_processors(world: Stage) -> None:
    worker = world.reader("w1")
    coordinator = worker.coordinator
    coordinator._holdings.handle = lambda event, now: 1 // 0  # type: ignore[method-assign,assignment,return-value]
    world.until(lambda: worker.is_over, 60)

    assert isinstance(worker.error, ZeroDivisionError)
    assert world.journal.shutdowns("a") == [ShutdownReason.ZOMBIE]


def test_whoever_asks_as_the_worker_ends_is_answered(world: Stage) -> None:
    worker = world.reader("w1")
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


def test_stop_of_an_unused_worker_is_immediate(world: Stage) -> None:
    worker = world.worker("w1")
    world.stop(worker)
    assert world.journal.entries == []


def test_a_worker_that_stood_still_beats_once_and_not_as_often_as_it_missed() -> None:
    world = Stage("a", renewer_interval_millis=1_000)
    worker = world.reader()
    (before,) = world.leases.list_workers()
    worker.freeze(10.2)
    world.advance(10.1)
    assert beats_since(world, before) == 0
    world.advance(0.3)
    assert beats_since(world, before) == 1
    world.advance(3.0)

    assert beats_since(world, before) == 4, "at the same rate as before"


def beats_since(world: Stage, before: WorkerRow) -> int:
    (row,) = world.leases.list_workers()
    return row.beat - before.beat


# --- leading ----------------------------------------------------------------------------------------------------------


def leaders(world: Stage, *workers: SimulatedWorker) -> list[str]:
    now = world.simulation.now
    signals = {worker.name: worker.holdings._state.signals for worker in workers if not worker.is_over}
    return [name for name, own in signals.items() if own.session.is_valid(now) and own.is_leader]


def test_one_of_a_fleet_leads_and_after_it_the_next_by_name() -> None:
    world = Stage("a", "b")
    second = world.worker("w2")
    world.until(lambda: leaders(world, second) == ["w2"])
    first = world.worker("w1")
    world.until(lambda: leaders(world, first, second) == ["w1"])
    world.stop(first)
    world.until(lambda: leaders(world, second) == ["w2"], 5)
    third = world.worker("w0")
    world.until(lambda: leaders(world, third, second) == ["w0"])
    third.kill()

    world.until(lambda: leaders(world, second) == ["w2"], 30)


def test_a_worker_without_a_session_does_not_lead() -> None:
    world, table, worker = cut_off_fleet()
    assert leaders(world, worker) == ["w1"]
    table.is_cut_off = True
    world.advance(20.1)

    assert leaders(world, worker) == []
