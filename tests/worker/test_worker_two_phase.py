"""Checkpoints in two phases: after a crash, a sink knows exactly one batch that it may have committed."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from streamclient import Backoff
from streamclient.base.position import Position
from streamclient.core.consumer.page import PendingCut
from streamclient.interfaces import InitializationInput, ProcessRecordsInput
from streamclient.model import PendingCheckpoint, ShutdownReason, TrimmedDataPolicy
from streamclient.records import SequenceInfo
from streamclient.tablestore import RecordPage
from streamclient.testing.simulation.workers import SimulatedWorker
from tests.rings import every
from tests.simulation.scene import RecordingProcessor
from tests.worker.stage import Stage, keys, records


class Crash(BaseException):
    """Stands for the end of the process in the middle of a call."""


class Sink:
    """A transactional destination that knows nothing of streams: it commits a batch under a name, or not at all."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.transactions: list[str] = []

    def commit(self, name: str, rows: list[str]) -> None:
        self.transactions.append(name)
        self.rows += rows


class TwoPhase:
    """Writes each batch in one transaction, between the two phases; ``stop_at`` names a moment to die."""

    def __init__(self, world: Stage, sink: Sink) -> None:
        self.world, self.sink = world, sink
        self.seen: list[PendingCheckpoint | None] = []
        self.batches: list[list[str]] = []
        self.stop_at = ""
        self.known = ""
        world.journal.on_initialize = self.initialize
        world.journal.on_process = self.process
        world.journal.on_shutdown = lambda processor, given: None

    def initialize(self, processor: RecordingProcessor, given: InitializationInput) -> None:
        self.seen.append(given.pending_checkpoint)
        pending = given.pending_checkpoint
        if pending is not None and pending.state.decode() in self.sink.transactions:
            given.checkpointer.checkpoint(pending.value)

    def process(self, processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        rows = [str(record.key["id"]) for record in given.records]
        self.batches.append(rows)
        name = f"{rows[0]}-{rows[-1]}"
        self.die("before")
        prepared = given.checkpointer.prepare_checkpoint(None, name.encode())
        self.die("prepared")
        self.sink.commit(name, rows)
        self.die("committed")
        prepared.checkpoint()
        self.world.journal.accepted[processor.shard_id] += rows

    def die(self, moment: str) -> None:
        if moment == self.stop_at:
            self.stop_at = ""
            raise Crash(moment)


def scene(max_records: int = 4, **config: Any) -> tuple[Stage, Sink, TwoPhase, SimulatedWorker]:
    world, sink = Stage("a", **config), Sink()
    processor = TwoPhase(world, sink)
    world.write("a", 10)
    return world, sink, processor, world.worker("first", max_records=max_records)


def died(moment: str, max_records: int, *, is_closed: bool = False, **config: Any) -> tuple[Stage, Sink, TwoPhase]:
    """Have the first worker die at a moment of its first batch."""
    world, sink, processor, first = scene(max_records, **config)
    if is_closed:
        world.stream.close("a")
    processor.stop_at = moment
    world.until(lambda: processor.stop_at == "", 30)
    first.kill()
    return world, sink, processor


def reached(world: Stage, sink: Sink, count: int) -> None:
    world.until(lambda: len(sink.rows) >= count, 200)
    world.advance(2)


# --- restarts within one worker ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["before", "prepared", "committed"])
def test_a_processor_that_fails_between_its_phases_is_followed_by_one_that_knows(moment: str) -> None:
    """Committed: it completes, and reading starts behind. Not committed: the same batch comes again."""
    world, sink, processor, _ = scene()
    processor.stop_at = moment
    reached(world, sink, 10)

    assert sink.rows == keys(10)
    assert [pending and pending.state for pending in processor.seen] == [None, None if moment == "before" else b"k0-k3"]
    assert world.checkpoint("a") == "a@10"
    assert processor.batches.count(keys(4)) == (1 if moment == "committed" else 2)


def test_a_start_that_fails_forgets_nothing_of_what_was_prepared() -> None:
    """Its processor raised before it asked the sink, and stores its position in ``shutdown``, as many do."""
    world, sink, processor, _ = scene()
    processor.stop_at = "committed"
    failures = iter([False, True, True])

    def initialize(found: RecordingProcessor, given: InitializationInput) -> None:
        if next(failures, False):
            processor.seen.append(given.pending_checkpoint)
            raise ValueError("the sink is away")
        processor.initialize(found, given)

    world.journal.on_initialize = initialize
    world.journal.on_shutdown = lambda found, given: given.checkpointer.checkpoint()
    reached(world, sink, 10)

    assert sink.rows == keys(10)
    assert [pending and pending.state for pending in processor.seen] == [None, b"k0-k3", b"k0-k3", b"k0-k3"]


def test_a_repeated_batch_ends_at_the_very_record_though_pages_are_cut_otherwise() -> None:
    """The next worker reads more records at once; the stream has more by now."""
    world, sink, processor, first = scene(max_records=4)
    world.until(lambda: processor.batches != [], 30)
    world.until(lambda: len(sink.rows) == 4, 30)
    processor.stop_at = "prepared"
    world.until(lambda: processor.stop_at == "", 30)
    first.kill()
    world.write("a", 20, 10)
    world.worker("second", max_records=1_000)
    reached(world, sink, 30)

    assert sink.rows == keys(30)
    pending = processor.seen[-1]
    assert pending is not None
    assert (pending.value, pending.records) == ("a@8", 4)
    assert keys(4, 4) in processor.batches[-2:]
    assert processor.batches[-1] == keys(22, 8)


def test_small_pages_add_up_to_the_prepared_record() -> None:
    world, sink, processor = died("prepared", max_records=8)
    processor.batches.clear()
    world.worker("second", max_records=3)
    reached(world, sink, 10)

    assert processor.batches == [keys(3), keys(3, 3), keys(2, 6), keys(2, 8)]


def test_a_committed_batch_is_completed_by_another_worker() -> None:
    world, sink, processor = died("committed", max_records=8)
    world.worker("second", max_records=3)
    reached(world, sink, 10)

    assert sink.rows == keys(10)
    assert processor.batches[-1] == keys(2, 8)
    lease = world.lease()
    assert (lease.checkpoint, lease.pending) == ("a@10", None)


@pytest.mark.parametrize(("moment", "max_records"), [("committed", 1_000), ("prepared", 3)])
def test_the_last_batch_of_a_shard_is_completed_or_repeated_and_ends_it(moment: str, max_records: int) -> None:
    world, sink, _ = died(moment, 100, is_closed=True)
    world.worker("second", max_records=max_records)
    world.until(lambda: world.checkpoint("a") == "SHARD_END", 100)
    world.advance(2)

    assert sink.rows == keys(10)
    assert world.journal.shutdowns("a")[-1] is ShutdownReason.TERMINATE


def test_what_was_offered_may_not_be_stored_once_initialize_is_over() -> None:
    """From then on the batches lead there."""
    world, sink, processor = died("prepared", max_records=8)
    errors: list[Exception] = []

    def process(found: RecordingProcessor, given: ProcessRecordsInput) -> None:
        if not errors:
            try:
                given.checkpointer.checkpoint("a@8")
            except Exception as error:
                errors.append(error)
        processor.process(found, given)

    world.journal.on_process = process
    world.worker("second", max_records=3)
    reached(world, sink, 10)

    assert "'a@8' was not handed out" in str(errors[0])
    assert sink.rows == keys(10)


def test_any_stored_checkpoint_removes_what_was_prepared() -> None:
    world, _, processor, first = scene(max_records=4)

    def process(found: RecordingProcessor, given: ProcessRecordsInput) -> None:
        given.checkpointer.prepare_checkpoint(None, b"given up")
        given.checkpointer.checkpoint()

    world.journal.on_process = process
    world.until(lambda: world.leases.get_lease("a") is not None and world.checkpoint("a") == "a@10", 60)
    first.kill()
    world.worker("second")
    world.until(lambda: len(processor.seen) == 2, 60)

    assert processor.seen == [None, None]


def test_a_new_processor_knows_nothing_of_a_cut_that_was_given_up() -> None:
    """Storing progress on the way gives up what was prepared; after a failure, reading goes on from there uncut."""
    world, sink, _ = died("prepared", max_records=8)
    calls: list[list[str]] = []

    def process(found: RecordingProcessor, given: ProcessRecordsInput) -> None:
        rows = [str(record.key["id"]) for record in given.records]
        calls.append(rows)
        if len(calls) == 2:
            raise ValueError("once")
        sink.rows += rows
        given.checkpointer.checkpoint()

    world.journal.on_process = process
    world.worker("second", max_records=3)
    reached(world, sink, 10)

    assert calls == [keys(3), keys(3, 3), keys(3, 3), keys(3, 6), keys(1, 9)]


def test_preparing_again_replaces_and_counts_from_the_stored_checkpoint() -> None:
    """A sink that commits several batches at once prepares again with each."""
    world, sink, processor, first = scene(max_records=4)
    prepared: list[PendingCheckpoint] = []

    def process(found: RecordingProcessor, given: ProcessRecordsInput) -> None:
        prepared.append(given.checkpointer.prepare_checkpoint(None, b"both").pending)

    world.journal.on_process = process
    world.until(lambda: len(prepared) == 3, 60)
    assert [(pending.value, pending.records) for pending in prepared] == [("a@4", 4), ("a@8", 8), ("a@10", 10)]
    assert prepared[0].epoch == prepared[2].epoch > 0
    first.kill()
    processor.batches.clear()
    world.journal.on_process = processor.process
    world.write("a", 5, 10)
    world.worker("second", max_records=100)
    reached(world, sink, 15)

    assert processor.batches == [keys(10), keys(5, 10)]


def test_progress_is_stored_with_each_checkpoint_and_goes_on_in_the_next_worker() -> None:
    world, sink, _, first = scene(max_records=4)
    reached(world, sink, 10)
    lease = world.lease()
    assert (lease.progress.records, lease.progress.record_micros) == (10, 9)
    first.kill()
    world.write("a", 5, 10)
    world.worker("second")
    reached(world, sink, 15)

    lease = world.lease()
    assert (lease.progress.records, lease.progress.record_micros) == (15, 14)


# --- anything may happen ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_every_record_is_committed_exactly_once(seed: int) -> None:
    """Processors that fail and workers that die, at any moment; pages of any size; leases in other hands."""
    dice = random.Random(seed)
    world, sink = Stage("a", seed=seed), Sink()
    processor = TwoPhase(world, sink)
    worker = world.worker("w0", max_records=dice.randint(1, 9))
    for number in range(12):
        world.stream.append("a", *records(dice.randint(0, 15), len(world.stream._shards["a"].records)))
        processor.stop_at = dice.choice(["", "before", "prepared", "committed"])
        world.advance(dice.uniform(0.01, 4))
        what = dice.random()
        if what < 0.3:
            worker.kill()
            worker = world.worker(f"w{number + 1}", max_records=dice.randint(1, 9))
        elif what < 0.4:
            worker.stop()
            worker = world.worker(f"w{number + 1}", max_records=dice.randint(1, 9))
    processor.stop_at = ""
    total = len(world.stream._shards["a"].records)
    reached(world, sink, total)
    world.advance(30)

    assert sink.rows == keys(total)


class Gathering(TwoPhase):
    """Commits several batches at once, or not yet; what it gathered is gone with it."""

    def __init__(self, world: Stage, sink: Sink, dice: random.Random) -> None:
        super().__init__(world, sink)
        self.dice = dice
        self.gathered: list[str] = []

    def initialize(self, processor: RecordingProcessor, given: InitializationInput) -> None:
        self.gathered = []
        super().initialize(processor, given)

    def process(self, processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        self.gathered += [str(record.key["id"]) for record in given.records]
        self.world.simulation.wait(threading.Event(), 0.03)
        self.die("before")
        if self.dice.random() < 0.75:
            return
        name = f"{self.gathered[0]}-{self.gathered[-1]}"
        prepared = given.checkpointer.prepare_checkpoint(None, name.encode())
        self.die("prepared")
        self.sink.commit(name, self.gathered)
        self.gathered = []
        self.die("committed")
        prepared.checkpoint()


@pytest.mark.slow
@pytest.mark.parametrize("seed", every(2, range(16)))
def test_a_sink_that_commits_several_batches_at_once_has_every_record_once(seed: int) -> None:
    """What was prepared may be larger than what is committed the next time, or smaller."""
    dice = random.Random(seed)
    world, sink = (
        Stage("a", seed=seed, backoff=Backoff(restart_backoff_min_millis=20, restart_backoff_max_millis=20)),
        Sink(),
    )
    processor = Gathering(world, sink, dice)
    worker = world.worker("w0", max_records=dice.randint(1, 3))
    for number in range(12):
        world.stream.append("a", *records(dice.randint(0, 40), len(world.stream._shards["a"].records)))
        for _ in range(20):
            processor.stop_at = dice.choice(["", "before", "prepared", "committed"])
            world.advance(dice.uniform(0.01, 0.2))
        if dice.random() < 0.4:
            worker.kill()
            worker = world.worker(f"w{number + 1}", max_records=dice.randint(1, 3))
    processor.stop_at = ""
    dice.random = lambda: 1.0  # type: ignore[method-assign]
    total = len(world.stream._shards["a"].records)
    world.advance(60)
    world.write("a", 1, total)
    reached(world, sink, total + 1)
    world.advance(30)

    assert sink.rows == keys(total + 1)


# --- records that left the stream while a batch was prepared ----------------------------------------------------------


def prepared_and_trimmed(gone: int, policy: TrimmedDataPolicy) -> tuple[Stage, Sink, TwoPhase, SimulatedWorker]:
    """Six records are prepared from the oldest one on, by a worker that dies; then the oldest ``gone`` are trimmed."""
    world, sink, processor = died("prepared", 6, trimmed_data_policy=policy)
    world.advance(1)
    processor.batches.clear()
    world.stream.trim("a", gone)
    return world, sink, processor, world.worker("second", max_records=1_000)


@pytest.mark.parametrize(("gone", "batches"), [(2, [keys(4, 2), keys(4, 6)]), (6, [keys(4, 6)]), (8, [keys(2, 8)])])
def test_a_prepared_batch_ends_at_its_last_record_though_the_oldest_are_gone(
    gone: int, batches: list[list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    """Reading at the oldest record meets no error: what follows would fill the batch up, and come once more."""
    world, sink, processor, _ = prepared_and_trimmed(gone, TrimmedDataPolicy.RESTART_AT_OLDEST)
    reached(world, sink, 10 - gone)

    assert processor.batches == batches
    assert sink.rows == keys(10 - gone, gone)
    assert "in a batch that was prepared up to a@6, records after position TRIM_HORIZON are past" in caplog.text


def test_a_prepared_batch_that_has_lost_records_waits_for_somebody_to_accept_it() -> None:
    world, sink, processor, worker = prepared_and_trimmed(2, TrimmedDataPolicy.STOP_SHARD)
    world.until(lambda: bool(worker.statuses().get("a") and worker.statuses()["a"].lost), 60)
    lost = worker.statuses()["a"].lost
    assert lost is not None
    assert (lost.position, lost.first_left) == ("TRIM_HORIZON", SequenceInfo(1, 2, 0))
    assert processor.batches == []
    world.simulation._pool("operator", 1).submit(lambda: worker.worker.accept_loss("a"))
    reached(world, sink, 8)

    assert processor.batches == [keys(4, 2), keys(4, 6)]
    assert sink.rows == keys(8, 2)


def test_a_prepared_batch_that_is_gone_with_the_whole_shard_is_told_at_its_end() -> None:
    world, _, processor, worker = prepared_and_trimmed(10, TrimmedDataPolicy.STOP_SHARD)
    world.stream.close("a")
    world.until(lambda: bool(worker.statuses().get("a") and worker.statuses()["a"].lost), 60)
    world.journal.on_shutdown = world.journal.checkpoint_end
    world.simulation._pool("operator", 1).submit(lambda: worker.worker.accept_loss("a"))
    world.until(lambda: world.checkpoint("a") == "SHARD_END", 60)

    assert processor.batches == []


@pytest.mark.parametrize("sizes", [[10], [3, 3, 3, 1], [6, 4], [5, 5]])
@pytest.mark.parametrize("knows_last", [True, False])
def test_where_a_prepared_batch_ends_is_found_by_its_last_record_or_else_by_counting(
    sizes: list[int], knows_last: bool
) -> None:
    """Workers that do not know the column of the last record prepare without it."""
    written, seen = records(10), []
    last = written[5].sequence_info if knows_last else None
    cut: PendingCut | None = PendingCut.of(PendingCheckpoint("a@6", b"", 6, 1, last), "TRIM_HORIZON")
    for size in sizes:
        if cut is None:
            break
        start = sum(map(len, seen))
        whole = RecordPage(written[start : start + size], Position(f"a@{start + size}"))
        assert not cut.lacks_records(whole)
        page, cut = cut.apply(whole)
        seen.append(page.records)

    assert cut is None
    assert [record for part in seen for record in part] == written[:6]
    assert page.next_position == Position("a@6")
