"""One shard in one worker, on virtual time: failures, ends, positions, pauses."""

from __future__ import annotations

import itertools
import logging
import re
import threading
from typing import Any

import pytest
from attrs import evolve

from streamclient import Backoff, ClientConfig
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
from streamclient.model import ShardState, ShutdownReason
from streamclient.worker.checkpointer import CheckpointTicket
from tests.simulation.scene import Journal, RecordingProcessor
from tests.worker.stage import Stage, keys

TRANSIENT = DependencyException("connection reset", kind=ErrorKind.TRANSIENT)


# --- end of shard -----------------------------------------------------------------------------------------------------


def test_end_of_shard_without_checkpoint_restarts_only_the_shard() -> None:
    """The processor checkpoints "sometimes"; the worker lives, the shard repeats, nothing is lost."""
    world = Stage("a", "other")
    world.write("a", 7)
    world.stream.close("a")
    world.journal.on_process = lambda processor, given: None
    world.journal.on_shutdown = lambda processor, given: None
    worker = world.worker(max_records=5)
    world.until(lambda: len(world.journal.shutdowns("a")) == 2, 30)
    assert world.journal.delivered("a") == keys(7) * 2
    assert world.journal.shutdowns("a") == [ShutdownReason.TERMINATE] * 2
    world.advance(0.1)
    status = worker.statuses()["a"]
    assert status.reason.startswith("shard ended but the processor did not checkpoint SHARD_END; next start in")
    assert (status.state, status.failures, status.checkpoint) == (ShardState.INITIALIZING, 2, "TRIM_HORIZON")
    assert worker.statuses()["other"].reason == ""

    world.journal.on_shutdown = Journal.checkpoint_end
    world.until(lambda: world.checkpoint("a") == "SHARD_END", 30)


@pytest.mark.parametrize("silent", ["on_shutdown", "on_process"])
def test_the_end_may_be_stored_with_the_last_batch_or_in_shutdown(world: Stage, silent: str) -> None:
    world.write("a", 3)
    world.stream.close("a")
    setattr(world.journal, silent, lambda processor, given: None)
    world.worker()
    world.until(lambda: world.leases.list_leases() != [], 10)
    world.until(lambda: world.checkpoint("a") == "SHARD_END", 10)
    world.advance(5)

    assert world.journal.shutdowns("a") == [ShutdownReason.TERMINATE]
    assert world.journal.delivered("a") == keys(3)


def test_permitted_position_is_the_next_one_and_the_end_with_the_last_batch(world: Stage) -> None:
    world.write("a", 3)
    world.stream.close("a")
    seen: list[str] = []

    def note(processor: RecordingProcessor, given: ProcessRecordsInput | ShutdownInput) -> None:
        seen.append(given.checkpointer.largest_permitted_checkpoint_value)

    world.journal.on_process = note
    world.journal.on_shutdown = note
    world.worker(max_records=2)
    world.until(lambda: len(world.journal.shutdowns("a")) == 1, 10)

    assert seen == ["a@2", "SHARD_END", "SHARD_END"]


def test_an_empty_closed_shard_ends_without_a_batch(world: Stage) -> None:
    world.stream.close("a")
    world.worker()
    world.until(lambda: world.journal.shutdowns("a") == [ShutdownReason.TERMINATE], 10)

    assert world.journal.delivered("a") == []
    world.advance(1)
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
def test_a_late_end_checkpoint_of_another_thread_counts(world: Stage, error: Exception | None, says: str) -> None:
    """Whoever stores SHARD_END asynchronously is waited for before the shard is declared unfinished."""
    world.write("a", 2)
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
    world.until(has_returned.is_set, 10)
    world.advance(2)
    status = worker.statuses()["a"]
    assert (status.state, status.reason) == (ShardState.SHUTTING_DOWN, says)
    world.simulation.pool("w1-status").is_frozen = False
    world.until(lambda: world.checkpoint("a") == "SHARD_END", 10)
    world.advance(3)

    assert world.journal.shutdowns("a") == [ShutdownReason.TERMINATE]


def test_an_end_stored_early_skips_the_rest_loudly(world: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """A processor may declare its shard finished."""
    world.write("a", 5)
    world.journal.on_process = lambda processor, given: given.checkpointer.checkpoint("SHARD_END")
    world.journal.on_shutdown = lambda processor, given: given.checkpointer.checkpoint()
    world.worker(max_records=2)
    with caplog.at_level(logging.WARNING):
        world.until(lambda: world.journal.shutdowns("a") != [], 10)
        world.advance(20)

    assert world.journal.delivered("a") == keys(2)
    assert world.journal.shutdowns("a") == [ShutdownReason.TERMINATE]
    assert "the unread rest is skipped" in caplog.text
    assert "raised" not in caplog.text


# --- failing processors -----------------------------------------------------------------------------------------------


class Poison:
    """Raises while the poisoned key is in a batch, ``times`` times."""

    def __init__(self, journal: Journal, key: str, times: int = 1_000_000) -> None:
        self.journal, self.key, self.left = journal, key, times

    def __call__(self, processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        self.refuse(given)
        self.journal.checkpoint_batch(processor, given)

    def refuse(self, given: ProcessRecordsInput) -> None:
        if self.left and any(record.key["id"] == self.key for record in given.records):
            self.left -= 1
            raise ValueError(f"cannot digest {self.key}")


def test_a_failure_is_never_told_without_what_follows(world: Stage) -> None:
    """Whenever somebody looks: while the processor that failed is shut down, while it pauses, while it starts again."""
    world.write("a", 2)
    take_time = lambda *_: world.simulation.wait(threading.Event(), 2.0) and None  # noqa: E731
    world.journal.on_process = Poison(world.journal, "k1")
    world.journal.on_shutdown = world.journal.on_initialize = take_time
    worker = world.worker(backoff=Backoff(restart_backoff_min_millis=3_000))
    told: list[str] = []
    for _ in range(400):
        world.advance(0.05)
        told += [status.reason for status in worker.statuses().values() if "failed" in status.reason]

    assert all(reason.startswith("processor failed ") for reason in told)
    following = {re.sub(r"\d+\.\d", "#", reason.rpartition("; ")[2]) for reason in told}
    assert following == {"next start in at least # s", "next start in # s", "the next start is under way"}


def test_restarts_back_off_and_a_success_beyond_the_failure_resets_them(world: Stage) -> None:
    world.write("a", 4)
    started: list[float] = []
    world.journal.on_initialize = lambda processor, given: started.append(world.simulation.now)
    world.journal.on_process = Poison(world.journal, "k3", 4)
    worker = world.worker(max_records=2, backoff=Backoff(restart_backoff_max_millis=4_000))
    world.until(lambda: world.journal.accepted["a"] == keys(4), 60)

    gaps = [round(later - earlier) for earlier, later in itertools.pairwise(started)]
    assert gaps == [1, 2, 4, 4]
    world.advance(1)
    assert worker.statuses()["a"].failures == 0


def test_repeating_what_was_before_the_failure_does_not_reset_the_back_off(world: Stage) -> None:
    """Without checkpoints each processor first succeeds with old batches; that says nothing about the bad one."""
    world.write("a", 4)
    poison = Poison(world.journal, "k3")
    world.journal.on_process = lambda processor, given: poison.refuse(given)
    world.journal.on_shutdown = lambda processor, given: None
    worker = world.worker(max_records=2)
    world.until(lambda: len(world.journal.shutdowns("a")) == 4, 60)
    world.advance(0.1)

    assert worker.statuses()["a"].failures == 4


@pytest.mark.parametrize("what", ["create", "initialize", "type"])
def test_failing_start_is_tried_again_with_a_named_reason(world: Stage, what: str) -> None:
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
    world.until(lambda: failures == [0], 30)
    world.advance(0.1)

    status = worker.statuses()["a"]
    named = "is not an IRecordProcessor" if what == "type" else "initialize: RuntimeError: no connection"
    assert named in status.reason
    assert status.state is ShardState.INITIALIZING
    expected = [ShutdownReason.PROCESS_RESTART] * 2 if what == "initialize" else []
    assert world.journal.shutdowns("a") == expected
    world.advance(10)
    assert worker.statuses()["a"].reason == ""


def test_a_checkpoint_in_the_restart_shutdown_never_covers_the_failed_batch(world: Stage) -> None:
    world.write("a", 4)
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
    world.until(lambda: len(world.journal.shutdowns("a")) == 1, 30)
    world.advance(0.1)

    assert len(errors) == 2
    assert world.checkpoint("a") == "a@2"


def test_shutdown_is_called_once_even_if_it_raises(world: Stage) -> None:
    """A failing ``shutdown`` is logged, and never repeated for the same processor."""
    world.write("a", 2)
    made: list[RecordingProcessor] = []
    calls: list[RecordingProcessor] = []

    def shutdown(processor: RecordingProcessor, given: ShutdownInput) -> None:
        calls.append(processor)
        raise ValueError("cannot close")

    world.journal.on_initialize = lambda processor, given: made.append(processor)
    world.journal.on_shutdown = shutdown
    worker = world.worker()
    world.advance(3)
    world.stop(worker)

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


def test_retried_batch_is_the_same_batch_on_the_same_processor(world: Stage) -> None:
    """A strategy that retries processing failures repeats the callback, never the fetch."""
    world.write("a", 15)
    world.journal.on_process = Poison(world.journal, "k7", 3)
    strategy = EagerStrategy()
    world.worker(max_records=5, task_retry_strategy=strategy)
    world.until(lambda: world.journal.accepted["a"] == keys(15), 60)

    assert world.journal.delivered("a") == keys(5) + keys(5, 5) * 4 + keys(5, 10)
    assert world.journal.shutdowns("a") == []
    assert strategy.asked == [(RetryableAction.TASK_PROCESS, ApplicationException, retries) for retries in range(3)]


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
    world = Stage("a", "other")
    world.write("a", 3)
    world.write("other", 3)
    world.stream.fail_reads("a", error)
    worker = world.worker()
    world.until(lambda: world.journal.accepted["other"] == keys(3), 5)
    world.until(lambda: world.journal.accepted["a"] == keys(3), 5)

    assert worker.error is None
    assert world.journal.shutdowns("a") == []


def test_reading_is_retried_without_end_and_the_status_names_the_error() -> None:
    """Minutes of trouble on one shard; it resumes where it stood, the worker never dies."""
    world = Stage("a", "other")
    world.write("a", 3)
    world.stream.fail_reads("a", *[TRANSIENT] * 40)
    worker = world.worker()
    world.advance(120)

    reason = worker.statuses()["a"].reason
    assert reason.startswith("reading failed ")
    assert "DependencyException: connection reset; next attempt in" in reason
    assert worker.statuses()["other"].reason == ""
    world.until(lambda: world.journal.accepted["a"] == keys(3), 1_000)
    assert worker.statuses()["a"].reason == ""
    assert world.journal.by_shard["a"][0] == ("initialize", "TRIM_HORIZON")
    assert len([what for what, _ in world.journal.by_shard["a"] if what == "initialize"]) == 1


def test_an_idle_shard_is_read_ever_more_seldom_and_a_busy_one_at_once(world: Stage) -> None:
    """The pause grows with the silence up to nine tenths of a second, and starts anew with data."""
    world.worker(worker_idle_time_millis=ClientConfig().worker_idle_time_millis)
    world.advance(60)
    assert 1_500 <= world.stream.reads <= 2_200
    world.advance(10 * 60)
    before = world.stream.reads
    world.advance(60)
    assert 66 <= world.stream.reads - before <= 75

    world.write("a", 50)
    world.until(lambda: world.journal.delivered("a") != [], 6)
    world.advance(0.05)
    start = world.simulation.now
    world.write("a", 50, 50)
    world.until(lambda: len(world.journal.delivered("a")) == 100, 2)
    assert world.simulation.now - start <= 0.1


def test_trimming_at_the_oldest_position_is_only_retried(world: Stage) -> None:
    """TRIM_HORIZON means "whatever is left": a race with retention there loses nothing that was asked for."""
    world.write("a", 2)
    world.stream.fail_reads("a", TrimmedDataException("gone"))
    world.worker()
    world.until(lambda: world.journal.accepted["a"] == keys(2), 20)

    assert world.journal.shutdowns("a") == []


# --- marks ------------------------------------------------------------------------------------------------------------


def test_process_done_hands_the_lease_to_another_worker() -> None:
    """The shard is read on by somebody; it does not stay here unread."""
    world = Stage("a", "b")
    markers: dict[str, Any] = {}
    world.journal.on_initialize = lambda processor, given: markers.update({processor.shard_id: given.shutdown_marker})
    first = world.worker("w1")
    second = world.worker("w2")
    world.until(lambda: {world.owner("a"), world.owner("b")} == {"w1", "w2"}, 120)
    world.until(lambda: bool(first.reads and second.reads), 60)
    world.advance(1)
    mine = next(key for key in "ab" if world.owner(key) == "w1")
    markers[mine].mark_for_process_done()
    world.until(lambda: world.owner(mine) == "w2", 60)
    world.write(mine, 2)
    world.until(lambda: world.journal.delivered(mine) == keys(2), 60)

    assert ShutdownReason.PROCESS_DONE in world.journal.shutdowns(mine)


def test_process_restart_makes_a_new_processor_from_the_stored_checkpoint(world: Stage) -> None:
    world.write("a", 4)
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
    world.until(lambda: len(calls) == 3, 10)

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


def test_a_pause_that_a_processor_asked_for_is_named(world: Stage) -> None:
    world.journal.on_initialize = lambda processor, given: given.shutdown_marker.mark_for_process_restart()
    worker = world.worker()
    world.until(lambda: len(world.journal.shutdowns("a")) == 3, 30)
    world.advance(0.1)

    assert worker.statuses()["a"].reason.startswith("its processor asked for a restart; next start in ")
    assert worker.statuses()["a"].reason_kind is ReasonKind.PROCESSOR


def test_a_shutdown_that_takes_its_time_says_why_it_runs(world: Stage) -> None:
    go_on = threading.Event()
    world.journal.on_shutdown = lambda processor, given: world.simulation.wait(go_on, 1_000) and None
    worker = world.reader()
    worker.stop()
    world.advance(5)

    assert worker.statuses()["a"].reason.startswith("being handed over")
    assert worker.statuses()["a"].reason_kind is ReasonKind.LEASE


def test_a_processor_that_only_restarts_is_slowed_down(world: Stage) -> None:
    world.journal.on_initialize = lambda processor, given: given.shutdown_marker.mark_for_process_restart()
    world.worker()
    world.advance(30)

    assert len(world.journal.shutdowns("a")) <= 8


def test_a_straggler_of_a_replaced_processor_stores_nothing(world: Stage) -> None:
    world.write("a", 4)
    kept: list[Any] = []

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        kept.append(given.checkpointer)
        if len(kept) == 1:
            raise ValueError("first")
        given.checkpointer.checkpoint()

    world.journal.on_process = process
    world.worker(max_records=2)
    world.until(lambda: len(kept) == 3, 20)
    world.advance(1)

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
    world: Stage, first: ShutdownReason, second: ShutdownReason, told: ShutdownReason
) -> None:
    """Whichever request comes last, during one batch."""
    world.write("a", 1)
    go_on = world.hang()
    worker = world.worker()
    world.until(lambda: world.journal.delivered("a") != [], 10)
    (consumer,) = worker.coordinator._consumers.values()
    consumer.stop(first)
    consumer.stop(second)
    go_on.set()
    world.until(lambda: world.journal.shutdowns("a") != [], 10)

    assert world.journal.shutdowns("a") == [told]


def test_an_ended_shard_outranks_a_request_to_stop(world: Stage) -> None:
    """Stopped during its last batch, a shard still ends with TERMINATE and its children may start."""
    world.write("a", 1)
    world.stream.close("a")
    go_on = world.hang()
    worker = world.worker()
    world.until(lambda: world.journal.delivered("a") != [], 10)
    worker.stop()
    world.advance(1)
    go_on.set()
    world.until(lambda: worker.is_over, 10)

    assert world.journal.shutdowns("a") == [ShutdownReason.TERMINATE]
    assert world.checkpoint("a") == "SHARD_END"


def test_a_hint_of_more_records_is_followed_but_not_for_ever(world: Stage) -> None:
    """The service's hint promises nothing: empty pages that always claim more must not become a tight loop."""
    read = world.stream.get_stream_record
    world.stream.get_stream_record = lambda shard_iterator, limit=None: evolve(  # type: ignore[method-assign]
        read(shard_iterator, limit), may_more_record=True
    )
    world.worker(worker_idle_time_millis=500)
    world.advance(60)

    assert world.stream.reads <= 64 + 130


def test_full_pages_are_read_without_pauses_however_few_records_a_read_may_return(world: Stage) -> None:
    """Reads right after single records found nothing, so further small pages would be followed by pauses."""
    world.reader(max_records=5, worker_idle_time_millis=2_000)
    for number in range(8):
        world.write("a", 1, start=number)
        world.until(lambda written=number + 1: len(world.journal.accepted["a"]) == written, 60)
        world.advance(10)
    world.write("a", 100, start=8)
    world.until(lambda: len(world.journal.accepted["a"]) > 8, 60)
    came = world.simulation.now
    world.until(lambda: world.journal.accepted["a"] == keys(108), 600)

    assert world.simulation.now - came < 2


def test_user_code_that_exits_the_interpreter_only_fails(world: Stage) -> None:
    world.write("a", 1)
    world.refuse(SystemExit(3), times=1)
    worker = world.worker()
    world.until(lambda: world.journal.accepted["a"] == keys(1), 10)

    assert worker.error is None
    assert world.journal.shutdowns("a") == [ShutdownReason.PROCESS_RESTART]


def test_a_request_of_a_closed_checkpointer_is_refused_by_the_owner(world: Stage) -> None:
    """The request was sent just before its checkpointer closed: a successor may be reading already."""
    worker = world.reader()
    coordinator = worker.coordinator
    (consumer,) = coordinator._consumers.values()
    ticket = CheckpointTicket("SHARD_END", lambda: False)
    assert coordinator.send_checkpoint(consumer.shard_info, ticket, 1)
    world.until(ticket.answered.is_set, 10)

    assert ticket.outcome is CheckpointOutcome.LEASE_LOST
    world.advance(1)
    assert world.checkpoint("a") == "TRIM_HORIZON"
