"""One shard in one worker, on virtual time: failures, ends, positions, pauses."""

from __future__ import annotations

import itertools
import logging
import re
import threading
from typing import Any

import pytest
from attrs import evolve

from streamclient import Backoff, Prefetch
from streamclient.base.reasons import ReasonKind
from streamclient.core.events import CheckpointOutcome
from streamclient.errors import (
    ApplicationException,
    ConfigurationError,
    DependencyException,
    ErrorKind,
    ShutdownException,
    TrimmedDataException,
)
from streamclient.interfaces import IRetryStrategy, ProcessRecordsInput, RetryableAction, ShutdownInput
from streamclient.model import ShardState, ShutdownReason, TrimmedDataPolicy
from streamclient.testing.fakes import make_record
from streamclient.testing.simulation.scene import Journal, RecordingProcessor, World
from streamclient.worker.checkpointer import CheckpointTicket

TRANSIENT = DependencyException("connection reset", kind=ErrorKind.TRANSIENT)


def records(count: int, start: int = 0) -> list[Any]:
    return [make_record(f"k{number}", number) for number in range(start, start + count)]


def keys(count: int, start: int = 0) -> list[str]:
    return [f"k{number}" for number in range(start, start + count)]


# --- end of shard -----------------------------------------------------------------------------------------------------


def test_end_of_shard_without_checkpoint_restarts_only_the_shard() -> None:
    """The processor checkpoints "sometimes"; the worker lives, the shard repeats, nothing is lost."""
    world = World("a", "other")
    world.stream.append("a", *records(7))
    world.stream.close("a")
    world.journal.on_process = lambda processor, given: None
    world.journal.on_shutdown = lambda processor, given: None
    worker = world.worker(max_records=5)
    world.simulation.until(lambda: len(world.journal.shutdowns("a")) == 2, 30)

    assert world.journal.delivered("a") == keys(7) * 2
    assert world.journal.shutdowns("a") == [ShutdownReason.TERMINATE] * 2
    world.simulation.advance(0.1)
    status = worker.statuses()["a"]
    assert status.reason.startswith("shard ended but the processor did not checkpoint SHARD_END; next start in")
    assert (status.state, status.failures, status.checkpoint) == (ShardState.INITIALIZING, 2, "TRIM_HORIZON")
    assert worker.statuses()["other"].reason == ""

    world.journal.on_shutdown = Journal.checkpoint_end
    world.simulation.until(lambda: world.checkpoint("a") == "SHARD_END", 30)


def test_the_end_may_be_stored_with_the_last_batch_or_in_shutdown() -> None:
    for at_shutdown in (False, True):
        world = World("a")
        world.stream.append("a", *records(3))
        world.stream.close("a")
        if at_shutdown:
            world.journal.on_process = lambda processor, given: None
        else:
            world.journal.on_shutdown = lambda processor, given: None
        world.worker()
        world.simulation.until(lambda world=world: world.leases.list_leases() != [], 10)
        world.simulation.until(lambda world=world: world.checkpoint("a") == "SHARD_END", 10)
        world.simulation.advance(5)

        assert world.journal.shutdowns("a") == [ShutdownReason.TERMINATE]
        assert world.journal.delivered("a") == keys(3)


def test_permitted_position_is_the_next_one_and_the_end_with_the_last_batch() -> None:
    world = World("a")
    world.stream.append("a", *records(3))
    world.stream.close("a")
    seen: list[str] = []

    def note(processor: RecordingProcessor, given: ProcessRecordsInput | ShutdownInput) -> None:
        seen.append(given.checkpointer.largest_permitted_checkpoint_value)

    world.journal.on_process = note
    world.journal.on_shutdown = note
    world.worker(max_records=2)
    world.simulation.until(lambda: len(world.journal.shutdowns("a")) == 1, 10)

    assert seen == ["a@2", "SHARD_END", "SHARD_END"]


def test_an_empty_closed_shard_ends_without_a_batch() -> None:
    world = World("a")
    world.stream.close("a")
    world.worker()
    world.simulation.until(lambda: world.journal.shutdowns("a") == [ShutdownReason.TERMINATE], 10)

    assert world.journal.delivered("a") == []
    world.simulation.advance(1)
    assert world.checkpoint("a") == "SHARD_END"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (None, "the shard has ended; waits for the answer to a checkpoint"),
        (
            ValueError("cannot close"),
            (
                "processor failed at its end: shutdown: ValueError: cannot close; waits for the answer to a "
                "checkpoint; next start in at least 1.0 s, unless the end is stored before"
            ),
        ),
    ],
    ids=["returns", "raises"],
)
def test_a_late_end_checkpoint_of_another_thread_counts(error: Exception | None, says: str) -> None:
    """Whoever stores SHARD_END asynchronously is waited for before the shard is declared unfinished."""
    world = World("a")
    world.stream.append("a", *records(2))
    world.stream.close("a")
    world.journal.on_process = lambda processor, given: None
    own_thread = world.simulation._pool("user's own", 1)
    has_returned = threading.Event()

    def shut_down(processor: RecordingProcessor, given: ShutdownInput) -> None:
        sent = threading.Event()
        own_thread.submit(lambda: (sent.set(), given.checkpointer.checkpoint()))
        world.simulation.pool("w1-status").is_frozen = True
        world.simulation.wait(sent, 5)
        has_returned.set()
        if error is not None:
            raise error

    world.journal.on_shutdown = shut_down
    worker = world.worker()
    world.simulation.until(has_returned.is_set, 10)
    world.simulation.advance(2)
    status = worker.statuses()["a"]
    assert (status.state, status.reason) == (ShardState.SHUTTING_DOWN, says)
    world.simulation.pool("w1-status").is_frozen = False
    world.simulation.until(lambda: world.checkpoint("a") == "SHARD_END", 10)
    world.simulation.advance(3)

    assert world.journal.shutdowns("a") == [ShutdownReason.TERMINATE]


def test_an_end_stored_early_skips_the_rest_loudly(caplog: pytest.LogCaptureFixture) -> None:
    """A processor may declare its shard finished."""
    world = World("a")
    world.stream.append("a", *records(5))
    world.journal.on_process = lambda processor, given: given.checkpointer.checkpoint("SHARD_END")
    world.journal.on_shutdown = lambda processor, given: given.checkpointer.checkpoint()
    world.worker(max_records=2)
    with caplog.at_level(logging.WARNING):
        world.simulation.until(lambda: world.journal.shutdowns("a") != [], 10)
        world.simulation.advance(20)

    assert world.journal.delivered("a") == keys(2)
    assert world.journal.shutdowns("a") == [ShutdownReason.TERMINATE]
    assert "the unread rest is skipped" in caplog.text
    assert "raised" not in caplog.text


# --- failing processors -----------------------------------------------------------------------------------------------


class Poison:
    """Raises while the poisoned key is in a batch, so many times."""

    def __init__(self, journal: Journal, key: str, times: int) -> None:
        self.journal, self.key, self.left = journal, key, times
        self.at: list[float] = []
        self.permitted: list[str] = []

    def __call__(self, processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        if self.left and any(record.key["id"] == self.key for record in given.records):
            self.left -= 1
            raise ValueError(f"cannot digest {self.key}")
        self.journal.checkpoint_batch(processor, given)


def test_failing_processor_stops_only_its_own_shard() -> None:
    """One bad record; the other shards, and the worker, go on."""
    world = World("bad", "good")
    world.stream.append("bad", *records(6))
    world.journal.on_process = Poison(world.journal, "k3", 1_000_000)
    worker = world.worker(max_records=2)
    world.simulation.until(lambda: len(world.journal.shutdowns("bad")) == 3, 60)
    world.simulation.advance(0.5)
    world.stream.append("good", *records(4, 100))
    world.simulation.until(lambda: world.journal.accepted["good"] == keys(4, 100), 60)

    status = worker.statuses()["bad"]
    told, _, pause = status.reason.partition("; next start in ")
    assert told == "processor failed 3 times: process_records: ValueError: cannot digest k3"
    assert 2 <= float(pause.removesuffix(" s")) <= 3.5
    assert (status.failures, status.checkpoint) == (3, "bad@2")
    assert world.journal.shutdowns("bad") == [ShutdownReason.PROCESS_RESTART] * 3
    assert world.owner("bad") == "w1"
    assert worker.error is None


def test_a_failure_is_never_told_without_what_follows() -> None:
    """Whenever somebody looks: while the processor that failed is shut down, while it pauses, while it starts again."""
    world = World("a")
    world.stream.append("a", *records(2))
    nothing = threading.Event()

    def take_time(*_: object) -> None:
        world.simulation.wait(nothing, 2.0)

    world.journal.on_process = Poison(world.journal, "k1", 1_000_000)
    world.journal.on_shutdown = world.journal.on_initialize = take_time
    worker = world.worker(backoff=Backoff(restart_backoff_min_millis=3_000))
    told: list[str] = []
    for _ in range(400):
        world.simulation.advance(0.05)
        told += [status.reason for status in worker.statuses().values() if "failed" in status.reason]

    assert all(reason.startswith("processor failed ") for reason in told)
    following = {re.sub(r"\d+\.\d", "#", reason.rpartition("; ")[2]) for reason in told}
    assert following == {"next start in at least # s", "next start in # s", "the next start is under way"}


def test_failed_batch_is_delivered_again_and_never_skipped() -> None:
    """Whatever fails, every record is accepted exactly in order in the end."""
    world = World("a")
    world.stream.append("a", *records(15))
    world.journal.on_process = Poison(world.journal, "k7", 3)
    world.worker(max_records=5)
    world.simulation.until(lambda: world.journal.accepted["a"] == keys(15), 60)

    assert world.journal.delivered("a") == keys(5) + keys(5, 5) * 4 + keys(5, 10)
    world.simulation.advance(1)
    assert world.checkpoint("a") == "a@15"


def test_restarts_back_off_and_a_success_beyond_the_failure_resets_them() -> None:
    world = World("a")
    world.stream.append("a", *records(4))
    started: list[float] = []
    world.journal.on_initialize = lambda processor, given: started.append(world.simulation.now)
    world.journal.on_process = Poison(world.journal, "k3", 4)
    worker = world.worker(max_records=2, backoff=Backoff(restart_backoff_max_millis=4_000))
    world.simulation.until(lambda: world.journal.accepted["a"] == keys(4), 60)

    gaps = [round(later - earlier) for earlier, later in itertools.pairwise(started)]
    assert gaps == [1, 2, 4, 4]
    world.simulation.advance(1)
    assert worker.statuses()["a"].failures == 0


def test_repeating_what_was_before_the_failure_does_not_reset_the_back_off() -> None:
    """Without checkpoints each processor first succeeds with old batches; that says nothing about the bad one."""
    world = World("a")
    world.stream.append("a", *records(4))

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        if any(record.key["id"] == "k3" for record in given.records):
            raise ValueError("no")

    world.journal.on_process = process
    world.journal.on_shutdown = lambda processor, given: None
    worker = world.worker(max_records=2)
    world.simulation.until(lambda: len(world.journal.shutdowns("a")) == 4, 60)

    world.simulation.advance(0.1)
    assert worker.statuses()["a"].failures == 4


@pytest.mark.parametrize("what", ["create", "initialize", "type"])
def test_failing_start_is_tried_again_with_a_named_reason(what: str) -> None:
    world = World("a")
    make, failures = world.journal.make, [2]

    def fail(*_: object) -> Any:
        if failures[0]:
            failures[0] -= 1
            if what == "type":
                return object()
            raise RuntimeError("no connection")
        return make() if what != "initialize" else None

    if what == "initialize":
        world.journal.on_initialize = fail
    else:
        world.journal.make = fail  # type: ignore[method-assign]
    worker = world.worker()
    world.simulation.until(lambda: failures == [0], 30)
    world.simulation.advance(0.1)

    status = worker.statuses()["a"]
    named = "is not an IRecordProcessor" if what == "type" else "initialize: RuntimeError: no connection"
    assert named in status.reason
    assert status.state is ShardState.INITIALIZING
    expected = [ShutdownReason.PROCESS_RESTART] * 2 if what == "initialize" else []
    assert world.journal.shutdowns("a") == expected
    world.simulation.advance(10)
    assert worker.statuses()["a"].reason == ""


def test_a_checkpoint_in_the_restart_shutdown_never_covers_the_failed_batch() -> None:
    world = World("a")
    world.stream.append("a", *records(4))
    errors: list[BaseException] = []
    handed_out: list[str] = []

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        handed_out.append(given.checkpointer.largest_permitted_checkpoint_value)
        if len(handed_out) == 2:
            raise ValueError("second batch")

    def shutdown(processor: RecordingProcessor, given: ShutdownInput) -> None:
        for value in (handed_out[1], "SHARD_END"):
            try:
                given.checkpointer.checkpoint(value)
            except ConfigurationError as error:
                errors.append(error)
        given.checkpointer.checkpoint()

    world.journal.on_process = process
    world.journal.on_shutdown = shutdown
    world.worker(max_records=2)
    world.simulation.until(lambda: len(world.journal.shutdowns("a")) == 1, 30)
    world.simulation.advance(0.1)

    assert len(errors) == 2
    assert world.checkpoint("a") == "a@2"


def test_shutdown_is_called_once_even_if_it_raises() -> None:
    """A failing ``shutdown`` is logged, and never repeated for the same processor."""
    world = World("a")
    world.stream.append("a", *records(2))
    made: list[RecordingProcessor] = []
    calls: list[RecordingProcessor] = []

    def shutdown(processor: RecordingProcessor, given: ShutdownInput) -> None:
        calls.append(processor)
        raise ValueError("cannot close")

    world.journal.on_initialize = lambda processor, given: made.append(processor)
    world.journal.on_shutdown = shutdown
    worker = world.worker()
    world.simulation.advance(3)
    worker.stop()
    world.simulation.until(lambda: worker.is_over, 40)

    assert len(calls) == len(set(map(id, calls))) == len(made) == 1


class EagerStrategy(IRetryStrategy):
    """Retries everything three times, as fast as it may."""

    def __init__(self) -> None:
        self.asked: list[tuple[RetryableAction, type, int]] = []

    def should_retry(self, action: RetryableAction, error: Exception, retries: int) -> bool:
        self.asked.append((action, type(error), retries))
        return retries < 3

    def backoff_millis(self, action: RetryableAction, error: Exception, retries: int) -> int:
        return 10


def test_retried_batch_is_the_same_batch_on_the_same_processor() -> None:
    """A strategy that retries processing failures repeats the callback, never the fetch."""
    world = World("a")
    world.stream.append("a", *records(15))
    world.journal.on_process = Poison(world.journal, "k7", 3)
    strategy = EagerStrategy()
    world.worker(max_records=5, task_retry_strategy=strategy)
    world.simulation.until(lambda: world.journal.accepted["a"] == keys(15), 60)

    assert world.journal.delivered("a") == keys(5) + keys(5, 5) * 4 + keys(5, 10)
    assert world.journal.shutdowns("a") == []
    assert strategy.asked == [(RetryableAction.TASK_PROCESS, ApplicationException, retries) for retries in range(3)]


def test_a_strategy_that_gives_up_reading_restarts_the_processor() -> None:
    world = World("a")
    world.stream.append("a", *records(3))
    world.stream.fail_reads("a", *[TRANSIENT] * 4)
    world.worker(task_retry_strategy=EagerStrategy())
    world.simulation.until(lambda: world.journal.accepted["a"] == keys(3), 60)

    assert world.journal.shutdowns("a") == [ShutdownReason.PROCESS_RESTART]


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        TRANSIENT,
        DependencyException("busy", kind=ErrorKind.THROTTLED),
        DependencyException("denied", kind=ErrorKind.PERMANENT),
        OSError("network is unreachable"),
    ],
)
def test_a_read_error_of_any_kind_only_pauses_its_shard(error: Exception) -> None:
    """No error of the service or the network reaches the worker."""
    world = World("a", "other")
    world.stream.append("a", *records(3))
    world.stream.append("other", *records(3))
    world.stream.fail_reads("a", error)
    worker = world.worker()
    world.simulation.until(lambda: world.journal.accepted["other"] == keys(3), 5)
    world.simulation.until(lambda: world.journal.accepted["a"] == keys(3), 5)

    assert worker.error is None
    assert world.journal.shutdowns("a") == []


def test_reading_is_retried_without_end_and_the_status_names_the_error() -> None:
    """Minutes of trouble on one shard; it resumes where it stood, the worker never dies."""
    world = World("a", "other")
    world.stream.append("a", *records(3))
    world.stream.fail_reads("a", *[TRANSIENT] * 40)
    worker = world.worker()
    world.simulation.advance(120)

    reason = worker.statuses()["a"].reason
    assert reason.startswith("reading failed ")
    assert "DependencyException: connection reset; next attempt in" in reason
    assert worker.statuses()["other"].reason == ""
    world.simulation.until(lambda: world.journal.accepted["a"] == keys(3), 1_000)
    assert worker.statuses()["a"].reason == ""
    assert world.journal.by_shard["a"][0] == ("initialize", "TRIM_HORIZON")
    assert len([what for what, _ in world.journal.by_shard["a"] if what == "initialize"]) == 1


def test_an_idle_shard_is_read_ever_more_seldom_and_a_busy_one_at_once() -> None:
    """The pause grows with the silence up to five seconds, and starts anew with data."""
    world = World("a")
    world.worker()
    world.simulation.advance(60)
    assert world.stream.reads <= 85
    world.simulation.advance(15 * 60)
    before = world.stream.reads
    world.simulation.advance(60)
    assert 11 <= world.stream.reads - before <= 13

    world.stream.append("a", *records(50))
    world.simulation.until(lambda: world.journal.delivered("a") != [], 6)
    world.simulation.advance(0.05)
    start = world.simulation.now
    world.stream.append("a", *records(50, 50))
    world.simulation.until(lambda: len(world.journal.delivered("a")) == 100, 2)
    assert world.simulation.now - start <= 0.1


def test_empty_batches_are_delivered_only_on_request() -> None:
    silent, chatty = World("a"), World("a", deliver_empty_batches=True)
    for world in (silent, chatty):
        world.worker()
        world.simulation.advance(20)

    assert ("process", []) not in silent.journal.by_shard["a"]
    empty = [detail for what, detail in chatty.journal.by_shard["a"] if what == "process"]
    assert 10 <= len(empty) <= 60
    assert not any(empty)


def test_a_checkpoint_never_moves_reading() -> None:
    """A pipeline that trails by two batches reads each batch once."""
    world = World("a")
    world.stream.append("a", *records(10))
    behind: list[str] = []

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        behind.append(given.checkpointer.largest_permitted_checkpoint_value)
        if len(behind) > 2:
            given.checkpointer.checkpoint(behind[-3])

    world.journal.on_process = process
    world.worker(max_records=2)
    world.simulation.until(lambda: len(world.journal.delivered("a")) >= 10, 20)
    world.simulation.advance(2)

    assert world.journal.delivered("a") == keys(10)
    assert world.checkpoint("a") == "a@6"


def test_a_foreign_checkpoint_never_reaches_the_table() -> None:
    world = World("a", "b")
    world.stream.append("a", *records(1))
    errors: list[Exception] = []

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        for value in ("b@0", "{}", ""):
            try:
                given.checkpointer.checkpoint(value)
            except ConfigurationError as error:
                errors.append(error)

    world.journal.on_process = process
    world.worker()
    world.simulation.until(lambda: len(errors) == 3, 20)

    assert world.checkpoint("a") == "TRIM_HORIZON"


# --- trimmed data -----------------------------------------------------------------------------------------------------


def trimmed_world(policy: TrimmedDataPolicy) -> World:
    """The stored checkpoint lies behind the retention."""
    world = World("a", "other", trimmed_data_policy=policy)
    world.stream.append("a", *records(10))
    first = world.worker("first", max_records=2)
    world.simulation.until(lambda: len(world.journal.accepted["a"]) >= 2, 20)
    first.kill()
    world.journal.by_shard.clear()
    world.stream.trim("a", 10)
    world.stream.append("a", *records(2, 10))
    return world


def test_trimmed_position_is_reported_and_stops_only_its_shard(caplog: pytest.LogCaptureFixture) -> None:
    """No crash loop, no silent skip; the lease stays here so that no other worker meets it."""
    world = World("a", "other", prefetch=Prefetch(prefetch_bytes=0))
    world.stream.append("a", *records(10))
    world.stream.append("other", *records(2))
    calls = [0]

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        calls[0] += 1
        world.journal.checkpoint_batch(processor, given)
        if processor.shard_id == "a":
            world.stream.trim("a", 10)

    world.journal.on_process = process
    worker = world.worker(max_records=2)
    with caplog.at_level(logging.ERROR):
        world.simulation.advance(120)

    status = worker.statuses()["a"]
    assert "records after position a@2 are past the stream's retention and lost" in status.reason
    assert (status.state, status.checkpoint) == (ShardState.SHUTDOWN_COMPLETE, "a@2")
    assert world.journal.shutdowns("a") == [ShutdownReason.PROCESS_RESTART]
    assert world.owner("a") == "w1"
    assert world.journal.accepted["other"] == keys(2)
    assert [record for record in caplog.records if "a@2" in record.getMessage()]


def test_trimmed_position_restarts_at_the_oldest_record_if_configured(caplog: pytest.LogCaptureFixture) -> None:
    world = trimmed_world(TrimmedDataPolicy.RESTART_AT_OLDEST)
    with caplog.at_level(logging.ERROR):
        world.worker("second", max_records=2)
        world.simulation.until(lambda: world.journal.delivered("a") == keys(2, 10), 60)

    assert "are past the stream's retention and lost" in caplog.text
    world.simulation.advance(1)
    assert world.checkpoint("a") == "a@12"


def test_a_halted_shard_can_be_handed_over() -> None:
    world = trimmed_world(TrimmedDataPolicy.STOP_SHARD)
    worker = world.worker("second", max_records=2)
    world.simulation.until(lambda: "retention and lost" in worker.statuses().get("a", worker).__str__(), 60)
    worker.stop()
    world.simulation.until(lambda: worker.is_over, 5)

    assert world.journal.shutdowns("a") == [ShutdownReason.PROCESS_RESTART]


def test_trimming_at_the_oldest_position_is_only_retried() -> None:
    """TRIM_HORIZON means "whatever is left": a race with retention there loses nothing that was asked for."""
    world = World("a")
    world.stream.append("a", *records(2))
    world.stream.fail_reads("a", TrimmedDataException("gone"))
    world.worker()
    world.simulation.until(lambda: world.journal.accepted["a"] == keys(2), 20)

    assert world.journal.shutdowns("a") == []


# --- marks ------------------------------------------------------------------------------------------------------------


def test_process_done_hands_the_lease_to_another_worker() -> None:
    """The shard is read on by somebody; it does not stay here unread."""
    world = World("a", "b")
    markers: dict[str, Any] = {}
    world.journal.on_initialize = lambda processor, given: markers.update({processor.shard_id: given.shutdown_marker})
    first = world.worker("w1")
    second = world.worker("w2")
    world.simulation.until(lambda: {world.owner("a"), world.owner("b")} == {"w1", "w2"}, 120)
    world.simulation.until(lambda: bool(first.reads and second.reads), 60)
    world.simulation.advance(1)
    mine = next(key for key in "ab" if world.owner(key) == "w1")
    markers[mine].mark_for_process_done()
    world.simulation.until(lambda: world.owner(mine) == "w2", 60)
    world.stream.append(mine, *records(2))
    world.simulation.until(lambda: world.journal.delivered(mine) == keys(2), 60)

    assert ShutdownReason.PROCESS_DONE in world.journal.shutdowns(mine)


def test_process_restart_makes_a_new_processor_from_the_stored_checkpoint() -> None:
    world = World("a")
    world.stream.append("a", *records(4))
    calls: list[int] = []

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        calls.append(1)
        if len(calls) == 1:
            given.checkpointer.checkpoint()
        if len(calls) == 2:
            given.shutdown_marker.mark_for_process_restart()
            given.shutdown_marker.mark_for_process_done()

    world.journal.on_process = process
    world.journal.on_shutdown = lambda processor, given: None
    worker = world.worker(max_records=2)
    world.simulation.until(lambda: len(calls) == 3, 10)

    told = world.journal.by_shard["a"]
    assert told[:6] == [
        ("initialize", "TRIM_HORIZON"),
        ("process", keys(2)),
        ("process", keys(2, 2)),
        ("shutdown", ShutdownReason.PROCESS_RESTART),
        ("initialize", "a@2"),
        ("process", keys(2, 2)),
    ]
    assert worker.statuses()["a"].failures == 0


def test_a_pause_that_a_processor_asked_for_is_named() -> None:
    world = World("a")
    world.journal.on_initialize = lambda processor, given: given.shutdown_marker.mark_for_process_restart()
    worker = world.worker()
    world.simulation.until(lambda: len(world.journal.shutdowns("a")) == 3, 30)
    world.simulation.advance(0.1)

    assert worker.statuses()["a"].reason.startswith("its processor asked for a restart; next start in ")
    assert worker.statuses()["a"].reason_kind is ReasonKind.PROCESSOR


def test_a_shutdown_that_takes_its_time_says_why_it_runs() -> None:
    world = World("a")
    go_on = threading.Event()
    world.journal.on_shutdown = lambda processor, given: world.simulation.wait(go_on, 1_000) and None
    worker = world.worker()
    world.simulation.until(lambda: worker.reads == {"a"}, 10)
    worker.stop()
    world.simulation.advance(5)

    assert worker.statuses()["a"].reason.startswith("being handed over")
    assert worker.statuses()["a"].reason_kind is ReasonKind.LEASE


def test_a_processor_that_only_restarts_is_slowed_down() -> None:
    world = World("a")
    world.journal.on_initialize = lambda processor, given: given.shutdown_marker.mark_for_process_restart()
    world.worker()
    world.simulation.advance(30)

    assert len(world.journal.shutdowns("a")) <= 8


def test_a_straggler_of_a_replaced_processor_stores_nothing() -> None:
    world = World("a")
    world.stream.append("a", *records(4))
    kept: list[Any] = []

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        kept.append(given.checkpointer)
        if len(kept) == 1:
            raise ValueError("first")
        given.checkpointer.checkpoint()

    world.journal.on_process = process
    world.worker(max_records=2)
    world.simulation.until(lambda: len(kept) == 3, 20)
    world.simulation.advance(1)

    with pytest.raises(ShutdownException):
        kept[0].checkpoint("TRIM_HORIZON")
    assert world.checkpoint("a") == "a@4"


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (ShutdownReason.ZOMBIE, ShutdownReason.STOLEN, ShutdownReason.ZOMBIE),
        (ShutdownReason.STOLEN, ShutdownReason.ZOMBIE, ShutdownReason.ZOMBIE),
        (ShutdownReason.STOLEN, ShutdownReason.PROCESS_RESTART, ShutdownReason.STOLEN),
    ],
)
def test_the_processor_hears_the_strongest_reason(
    first: ShutdownReason, second: ShutdownReason, told: ShutdownReason
) -> None:
    """Whichever request comes last, during one batch."""
    world = World("a")
    world.stream.append("a", *records(1))
    go_on = threading.Event()
    world.journal.on_process = lambda processor, given: world.simulation.wait(go_on, 1_000) and None
    worker = world.worker()
    world.simulation.until(lambda: world.journal.delivered("a") != [], 10)
    (consumer,) = worker.coordinator._consumers.values()
    consumer.stop(first)
    consumer.stop(second)
    go_on.set()
    world.simulation.until(lambda: world.journal.shutdowns("a") != [], 10)

    assert world.journal.shutdowns("a") == [told]


def test_an_ended_shard_outranks_a_request_to_stop() -> None:
    """Stopped during its last batch, a shard still ends with TERMINATE and its children may start."""
    world = World("a")
    world.stream.append("a", *records(1))
    world.stream.close("a")
    go_on = threading.Event()
    world.journal.on_process = lambda processor, given: world.simulation.wait(go_on, 1_000) and None
    worker = world.worker()
    world.simulation.until(lambda: world.journal.delivered("a") != [], 10)
    worker.stop()
    world.simulation.advance(1)
    go_on.set()
    world.simulation.until(lambda: worker.is_over, 10)

    assert world.journal.shutdowns("a") == [ShutdownReason.TERMINATE]
    assert world.checkpoint("a") == "SHARD_END"


def test_a_hint_of_more_records_is_followed_but_not_for_ever() -> None:
    """The service's hint promises nothing: empty pages that always claim more must not become a tight loop."""
    world = World("a")
    read = world.stream.get_stream_record
    world.stream.get_stream_record = lambda shard_iterator, limit=None: evolve(  # type: ignore[method-assign]
        read(shard_iterator, limit), may_more_record=True
    )
    world.worker()
    world.simulation.advance(60)

    assert world.stream.reads <= 64 + 85


def test_user_code_that_exits_the_interpreter_only_fails() -> None:
    world = World("a")
    world.stream.append("a", *records(1))
    calls: list[int] = []

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise SystemExit(3)
        world.journal.checkpoint_batch(processor, given)

    world.journal.on_process = process
    worker = world.worker()
    world.simulation.until(lambda: world.journal.accepted["a"] == keys(1), 10)

    assert worker.error is None
    assert world.journal.shutdowns("a") == [ShutdownReason.PROCESS_RESTART]


def test_a_request_of_a_closed_checkpointer_is_refused_by_the_owner() -> None:
    """The request was sent just before its checkpointer closed: a successor may be reading already."""
    world = World("a")
    worker = world.worker()
    world.simulation.until(lambda: worker.reads == {"a"}, 10)
    coordinator = worker.coordinator
    (consumer,) = coordinator._consumers.values()
    ticket = CheckpointTicket("SHARD_END", lambda: False)
    assert coordinator.send_checkpoint(consumer.shard_info, ticket, 1)
    world.simulation.until(ticket.answered.is_set, 10)

    assert ticket.outcome is CheckpointOutcome.LEASE_LOST
    world.simulation.advance(1)
    assert world.checkpoint("a") == "TRIM_HORIZON"
