"""Calls that never return: named, logged with their stack, and at last the lease is let go. On virtual time."""

from __future__ import annotations

import logging
import random
import threading
from functools import partial
from typing import Any

import pytest

from streamclient import CallLimits
from streamclient.base.reasons import Cause, Reason, ReasonKind
from streamclient.interfaces import ProcessRecordsInput
from streamclient.model import ShardState, ShutdownReason
from streamclient.testing.simulation.workers import SimulatedWorker
from streamclient.worker.health import CallWatch
from streamclient.worker.read_calls import FAIR_TURN, ReadQueue
from tests.simulation.scene import RecordingProcessor
from tests.worker.stage import ManualPool, Stage


def hanging(world: Stage) -> threading.Event:
    """The processor hangs in its first batch until the event is set."""
    go_on = threading.Event()

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        world.simulation.wait(go_on, 1_000_000)
        world.journal.accepted[processor.shard_id] += given.records

    world.journal.on_process = process
    return go_on


def seconds_in(reason: str) -> float:
    return float(reason.split(" has been running for ")[1].split(" ", maxsplit=1)[0])


# --- user code --------------------------------------------------------------------------------------------------------


def test_a_long_call_is_named_and_logged_with_its_stack_at_each_doubling(caplog: pytest.LogCaptureFixture) -> None:
    world = Stage("a", limits=CallLimits(slow_processor_warning_millis=10_000))
    world.write("a", 1)
    hanging(world)
    worker = world.worker()
    with caplog.at_level(logging.WARNING):
        world.advance(100)

    warnings = [record.getMessage() for record in caplog.records if "process_records has been" in record.getMessage()]
    assert [round(seconds_in(text), -1) for text in warnings] == [10, 20, 50] or len(warnings) in (3, 4)
    assert all("now at:" in text and "world.simulation.wait(go_on" in text for text in warnings)
    status = worker.statuses()["a"]
    assert 90 <= seconds_in(status.reason) <= 101
    assert (status.reason_kind, status.state) == (ReasonKind.USER_CODE, ShardState.PROCESSING)


def test_a_call_over_its_limit_loses_the_lease_and_another_worker_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """Heartbeats alone would keep the shard here, unread, until its records are deleted."""
    world = Stage("a", limits=CallLimits(user_code_limit_millis=60_000))
    world.write("a", 1)
    hanging(world)
    first = world.worker("first")
    world.until(lambda: world.journal.delivered("a") != [], 20)
    second = world.worker("second")
    world.journal.on_process = world.journal.checkpoint_batch
    with caplog.at_level(logging.ERROR):
        world.until(lambda: world.journal.accepted["a"] == ["k0"], 300)

    assert world.owner("a") == "second"
    assert second.statuses()["a"].reason == ""
    assert any("process_records has been running for 6" in r.getMessage() for r in caplog.records)
    assert "over the limit of 60 s" in caplog.text
    status = first.statuses()["a"]
    assert status.reason.startswith("the lease is lost; process_records has been running for ")
    assert status.reason_kind is ReasonKind.LEASE


def test_the_worker_of_a_stalled_call_reads_its_other_shards() -> None:
    world = Stage("a", "b", limits=CallLimits(user_code_limit_millis=60_000))
    world.write("a", 1)

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        if processor.shard_id == "a":
            world.simulation.wait(threading.Event(), 1_000_000)
        world.journal.checkpoint_batch(processor, given)

    world.journal.on_process = process
    world.worker()
    world.advance(120)
    world.write("b", 3)
    world.until(lambda: len(world.journal.accepted["b"]) == 3, 10)


def test_a_call_that_returns_in_time_costs_nothing() -> None:
    world = Stage("a", limits=CallLimits(user_code_limit_millis=60_000))
    world.write("a", 1)
    go_on = hanging(world)
    worker = world.worker()
    world.until(lambda: world.journal.delivered("a") != [], 20)
    world.advance(50)
    go_on.set()
    world.advance(100)

    assert world.journal.shutdowns("a") == []
    assert worker.statuses()["a"].reason == ""


def test_without_a_limit_a_call_may_take_for_ever() -> None:
    world = Stage("a", limits=CallLimits(user_code_limit_millis=0))
    world.write("a", 1)
    hanging(world)
    world.worker()
    world.advance(3_000)

    assert world.owner("a") == "w1"
    assert world.journal.shutdowns("a") == []


def test_a_call_that_waits_for_a_thread_is_named_and_counts() -> None:
    """An executor whose threads all hang holds up every shard; others may have them."""
    world = Stage("a", limits=CallLimits(user_code_limit_millis=60_000))
    world.write("a", 1)
    worker = world.reader()
    world.simulation.pool("w1-processor").is_frozen = True
    world.advance(30)
    status = worker.statuses()["a"]
    assert "for a free thread of the executor" in status.reason
    assert status.reason_kind is ReasonKind.USER_CODE
    world.advance(60)

    assert world.journal.delivered("a") == []
    assert worker.statuses()["a"].reason.startswith("the lease is lost")


# --- reads ------------------------------------------------------------------------------------------------------------


def reading(seconds: float, **config: Any) -> tuple[Stage, SimulatedWorker]:
    """The fetch pool does nothing any more, for so long."""
    world = Stage("a", **config)
    world.write("a", 1)
    worker = world.reader()
    world.simulation.pool("w1-fetch").is_frozen = True
    world.advance(seconds)
    return world, worker


def test_a_read_that_waits_for_a_thread_is_named() -> None:
    _, worker = reading(20)
    status = worker.statuses()["a"]

    assert "reading has waited" in status.reason
    assert status.reason.endswith("s for a free thread of the fetch pool")
    assert status.reason_kind is ReasonKind.READING


def test_a_read_that_never_returns_loses_the_lease(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        world, _ = reading(100, limits=CallLimits(read_limit_millis=30_000))

    assert "reading has waited 3" in caplog.text
    assert "over the limit of 30 s" in caplog.text
    assert world.journal.shutdowns("a")[0] in (ShutdownReason.STOLEN, ShutdownReason.ZOMBIE)


# --- the watch --------------------------------------------------------------------------------------------------------


class Call:
    queued_cause, runs_cause = Cause.CALL_QUEUED, Cause.CALL_RUNS

    def __init__(self, queued_at: float) -> None:
        self.queued_at = queued_at
        self.started_at: float | None = None
        self.thread_id: int | None = None


def test_each_call_is_given_up_once() -> None:
    watch = CallWatch("s", 1_000_000, 10_000)
    call = Call(0.0)
    call.started_at = 4.0
    assert [bool(watch.look(call, "f", now)) for now in (9.9, 10.0, 11.0, 500.0)] == [False, True, False, False]
    other = Call(500.0)

    assert watch.look(None, "", 505.0) == ""
    assert watch.look(other, "f", 510.0) == (
        "f has waited 10 s for a free thread of the executor, over the limit of 10 s"
    )


def test_a_short_wait_is_not_worth_telling() -> None:
    watch = CallWatch("s", 30_000, 0)
    call = Call(0.0)

    assert watch.delay_reason(call, "f", 0.9) is None
    assert watch.delay_reason(call, "f", 1.0) == Reason(Cause.CALL_QUEUED, "f", "1 s")
    call.started_at = 1.0
    assert watch.delay_reason(call, "f", 30.0) is None
    assert watch.delay_reason(call, "f", 31.0) == Reason(Cause.CALL_RUNS, "f", "30 s")
    assert watch.look(call, "f", 100_000.0) == ""


# --- whose turn it is -------------------------------------------------------------------------------------------------


def test_the_shard_nearest_to_loss_reads_first() -> None:
    pool, done = ManualPool(), list[str]()
    queue = ReadQueue(pool)
    for loss, name in ((300.0, "late"), (100.0, "first"), (200.0, "second")):
        queue.submit(loss, partial(done.append, name))
    pool.run_all()

    assert done == ["first", "second", "late"]


def test_a_shard_that_is_caught_up_is_never_starved() -> None:
    """Every fourth turn is that of the longest wait."""
    pool, done = ManualPool(), list[str]()
    queue = ReadQueue(pool)
    queue.submit(1e18, lambda: done.append("caught up"))
    for number in range(10):
        queue.submit(float(number), lambda: done.append("behind"))
    for _ in range(FAIR_TURN):
        pool.run_one()

    assert done.count("caught up") == 1


def lost_seconds(in_order_of_loss: bool) -> float:
    """How many seconds of records are deleted unread until all shards are caught up.

    Forty shards after an outage, four of them nearly at their end; one thread, a read a second, each worth a minute of
    records.
    """
    retention, step = 3_600.0, 1.0
    dice = random.Random(4)
    behind = [3_590.0 if number < 4 else dice.uniform(600, 1_200) for number in range(40)]
    pool = ManualPool()
    queue = ReadQueue(pool)
    lost = 0.0

    def read(number: int) -> None:
        behind[number] = max(0.0, behind[number] - 60.0)

    order = list(range(40))
    dice.shuffle(order)
    for number in order:
        queue.submit(-behind[number] if in_order_of_loss else 0.0, partial(read, number))
    while pool.tasks:
        before = list(behind)
        pool.run_one()
        (number,) = [number for number in range(40) if behind[number] != before[number]]
        for each in range(40):
            if behind[each]:
                behind[each] += step
                lost += max(0.0, behind[each] - retention)
                behind[each] = min(behind[each], retention)
        if behind[number]:
            queue.submit(-behind[number] if in_order_of_loss else 0.0, partial(read, number))
    return lost


def test_reading_by_nearness_to_loss_loses_less_than_taking_turns() -> None:
    """The proof of the rule: the same shards, the same thread, the same moments."""
    by_loss, in_turn = lost_seconds(in_order_of_loss=True), lost_seconds(in_order_of_loss=False)
    assert by_loss < in_turn / 2, (by_loss, in_turn)
