"""Batches through the processors: what is written when, what is checkpointed when, and what a failure does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from spark_helpers import Run, StoredShard, delete, put, rows, update

from streamclient.errors import (
    ApplicationException,
    ConfigurationError,
    ShutdownException,
    StreamClientException,
    UnfitValueError,
)
from streamclient.model import ColumnType, ShutdownReason
from streamclient.spark import (
    BatchContext,
    FileSink,
    SparkConfig,
    SparkRecordProcessorFactory,
    UnfitValue,
    current_rows,
    manifests,
    read_changes,
)
from tests.patience import FOREVER_MILLIS, PATIENCE_SECONDS, until

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def make(sink: Any, spark: Any, **settings: Any) -> SparkRecordProcessorFactory:
    return SparkRecordProcessorFactory(sink, session=spark, config=SparkConfig(**settings))


class Recorder:
    """A sink that keeps what it was told; can wait for a signal, or fail."""

    def __init__(self, react: Callable[[BatchContext], None] = lambda context: None) -> None:
        self.react = react
        self.contexts: list[BatchContext] = []
        self.called = threading.Semaphore(0)

    def __call__(self, frame: Any, context: BatchContext) -> None:
        self.contexts.append(context)
        self.called.release()
        self.react(context)

    @property
    def counts(self) -> list[int]:
        return [context.record_count for context in self.contexts]

    def await_call(self) -> None:
        assert self.called.acquire(timeout=PATIENCE_SECONDS)


def puts(count: int) -> list[Any]:
    return [put(number, number, v=number) for number in range(1, count + 1)]


def test_changes_reach_the_lake_and_are_checkpointed_after_they_are_there(spark: Any, tmp_path: Path) -> None:
    shard = StoredShard("s1", [put(1, 1, a=1, b="x"), update(2, 1, a=2), put(3, 2, a=7), delete(4, 2)])
    shard.before_checkpoint = lambda value: read_changes(spark, tmp_path).count()
    with make(FileSink(tmp_path), spark) as factory:
        run = Run(factory, shard)
        run.read(3)
        run.read(1)
        assert shard.checkpoints == []
        run.stop()
    assert shard.checkpoints == ["after 4"]
    assert rows(read_changes(spark, tmp_path), "_timestamp", "pk", "_operation", "a")[1][1:] == (1, "UPDATE", 2)
    assert rows(current_rows(spark, tmp_path), "pk", "a", "b") == [(1, 2, "x")]
    assert factory.buffered_bytes == 0


def test_batch_is_committed_by_count_without_waiting_for_age(spark: Any) -> None:
    sink, shard = Recorder(), StoredShard("s1", puts(5))
    with make(sink, spark, max_records=2, max_age_millis=3_600_000) as factory:
        run = Run(factory, shard)
        run.read(2)
        sink.await_call()
        run.read(3)
        sink.await_call()
        run.stop()
    assert sink.counts == [2, 3]
    assert shard.checkpoints == ["after 2", "after 5"]


def test_batch_is_committed_by_age_although_no_more_records_come(spark: Any) -> None:
    sink, shard = Recorder(), StoredShard("s1", puts(1))
    stored = threading.Event()
    shard.before_checkpoint = lambda value: stored.set()
    with make(sink, spark, max_age_millis=50) as factory:
        run = Run(factory, shard)
        run.read(1)
        assert stored.wait(PATIENCE_SECONDS)
        run.stop()
    assert shard.checkpoints == ["after 1"]


def test_shards_share_one_job_and_each_is_checkpointed(spark: Any, tmp_path: Path) -> None:
    shards = [StoredShard(f"s{number}", puts(2)) for number in range(5)]
    contexts: list[BatchContext] = []
    files = FileSink(tmp_path)

    def sink(frame: Any, context: BatchContext) -> None:
        contexts.append(context)
        files(frame, context)

    with make(sink, spark, max_age_millis=3_600_000, max_records=2) as factory:
        runs = [Run(factory, shard) for shard in shards]
        with factory._committer._changed:
            # While the lock is held the committing thread cannot run, so all five become due together.
            for run in runs:
                run.read(2)
        for run in runs:
            run.stop()
    assert [len(context.ranges) for context in contexts] == [5]
    assert [shard.checkpoint for shard in shards] == ["after 2"] * 5
    expected = [(shard.shard_id, key) for shard in shards for key in (1, 2)]
    assert rows(read_changes(spark, tmp_path), "_shard_id", "pk") == expected
    assert sorted(one.shard_id for one in manifests(spark, tmp_path)) == [shard.shard_id for shard in shards]


def test_failing_sink_fails_exactly_the_shards_of_its_batch(spark: Any) -> None:
    def fail_for_bad(context: BatchContext) -> None:
        if any(one.shard_id == "bad" for one in context.ranges):
            raise ValueError("disk full")

    sink = Recorder(fail_for_bad)
    bad, good = StoredShard("bad", puts(2)), StoredShard("good", puts(1))
    with make(sink, spark, max_records=1, max_age_millis=3_600_000) as factory:
        failing = Run(factory, bad)
        failing.read(1)
        sink.await_call()
        with pytest.raises(ApplicationException, match="ValueError: disk full") as caught:
            failing.stop()
        healthy = Run(factory, good)
        healthy.read(1)
        healthy.stop()
    assert isinstance(caught.value.__cause__, ValueError)
    assert (bad.checkpoints, good.checkpoints) == ([], ["after 1"])


def test_failure_is_raised_by_the_next_call_and_only_once(spark: Any) -> None:
    def fail(context: BatchContext) -> None:
        raise OSError("gone")

    sink, shard = Recorder(fail), StoredShard("s1", puts(3))
    with make(sink, spark, max_records=1, max_age_millis=3_600_000) as factory:
        run = Run(factory, shard)
        run.read(1)
        sink.await_call()
        factory._committer.flush(run.processor._started())
        with pytest.raises(ApplicationException, match="gone"):
            run.read(1)
        run.stop(ShutdownReason.PROCESS_RESTART)
    assert run.marker.is_marked.is_set()
    assert shard.checkpoints == []
    assert len(sink.contexts) == 1


def test_failure_of_a_shard_without_new_records_asks_for_a_restart_by_itself(spark: Any) -> None:
    """No call may ever come that could raise it."""

    def fail(context: BatchContext) -> None:
        raise OSError("gone")

    shard = StoredShard("s1", puts(1))
    with make(Recorder(fail), spark, max_records=1) as factory:
        run = Run(factory, shard)
        run.read(1)
        assert run.marker.is_marked.wait(PATIENCE_SECONDS)
        with pytest.raises(ApplicationException, match="gone"):
            run.stop(ShutdownReason.PROCESS_RESTART)


def test_whatever_a_call_raises_is_marked_before(spark: Any) -> None:
    """A policy would deliver it again to a processor that is over, and then blame its records."""
    shard = StoredShard("s1", puts(1))
    with make(Recorder(), spark, max_age_millis=3_600_000) as factory:
        run = Run(factory, shard)
    with pytest.raises(StreamClientException, match="was closed"):
        run.read(1)
    assert run.marker.is_marked.is_set()


def test_after_a_failure_each_call_commits_its_records_up_to_the_place_of_the_failure(spark: Any) -> None:
    """So a failure that stays is met by a call each time, and the worker waits ever longer between them."""
    poison = [OSError("once"), OSError("twice")]

    def fail_twice(context: BatchContext) -> None:
        if poison and any(one.record_count and "4" in one.end_position for one in context.ranges):
            raise poison.pop(0)

    sink, shard = Recorder(fail_twice), StoredShard("s1", puts(8))
    with make(sink, spark, max_age_millis=3_600_000) as factory:
        run = Run(factory, shard)
        run.read(4)
        with pytest.raises(ApplicationException, match="once"):
            run.stop()
        again = Run(factory, shard)
        again.read(2)
        assert shard.checkpoints == ["after 2"]
        with pytest.raises(ApplicationException, match="twice"):
            again.read(2)
        assert again.marker.is_marked.is_set()
        again.stop(ShutdownReason.PROCESS_RESTART)
        last = Run(factory, shard)
        last.read(2)
        last.read(3)
        assert shard.checkpoints == ["after 2", "after 4"], "behind it, records wait for company again"
        last.stop()
    assert sink.counts == [4, 2, 2, 2, 3]


def test_shard_that_failed_commits_alone_until_it_succeeds(spark: Any) -> None:
    failures = [OSError("once")]

    def fail_once(context: BatchContext) -> None:
        if failures:
            raise failures.pop()

    sink = Recorder(fail_once)
    first, second = StoredShard("s1", puts(1)), StoredShard("s2", puts(1))
    with make(sink, spark, max_age_millis=3_600_000) as factory:
        run = Run(factory, first)
        run.read(1)
        with pytest.raises(ApplicationException):
            run.stop()
        again, other = Run(factory, first), Run(factory, second)
        again.read(1)
        other.read(1)
        other.stop()
        again.stop()
    assert [[one.shard_id for one in context.ranges] for context in sink.contexts] == [["s1"], ["s1"], ["s2"]]


def test_shard_that_failed_does_not_overtake_what_is_due_for_longer(spark: Any) -> None:
    """Each of its reads is due at once; several such shards would hold up all others."""
    failures = [OSError("once")]

    def fail_once(context: BatchContext) -> None:
        if failures:
            raise failures.pop()

    sink, failed, other = Recorder(fail_once), StoredShard("failed", puts(1)), StoredShard("other", puts(1))
    with make(sink, spark, max_age_millis=3_600_000) as factory:
        run = Run(factory, failed)
        run.read(1)
        with pytest.raises(ApplicationException):
            run.stop()
        again, patient = Run(factory, failed), Run(factory, other)
        with factory._committer._changed:
            # The committing thread runs only when the second read waits for it.
            patient.read(1)
            patient.processor._started().is_flushing = True
            again.read(1)
        patient.stop()
        again.stop()
    assert [[one.shard_id for one in context.ranges] for context in sink.contexts] == [
        ["failed"],
        ["other"],
        ["failed"],
    ]


def test_zombie_writes_nothing_more_and_never_checkpoints(spark: Any) -> None:
    sink, shard = Recorder(), StoredShard("s1", puts(2))
    with make(sink, spark, max_age_millis=3_600_000) as factory:
        run = Run(factory, shard)
        run.read(2)
        run.stop(ShutdownReason.ZOMBIE)
        assert factory.buffered_bytes == 0
    assert (sink.contexts, shard.checkpoints) == ([], [])


def test_batch_on_its_way_is_not_published_once_the_lease_is_lost(spark: Any, tmp_path: Path) -> None:
    entered, lost = threading.Event(), threading.Event()
    files = FileSink(tmp_path)

    def slow(frame: Any, context: BatchContext) -> None:
        entered.set()
        assert lost.wait(PATIENCE_SECONDS)
        files(frame, context)

    shard = StoredShard("s1", puts(1))
    with make(slow, spark, max_records=1) as factory:
        run = Run(factory, shard)
        run.read(1)
        assert entered.wait(PATIENCE_SECONDS)
        run.stop(ShutdownReason.ZOMBIE)
        lost.set()
    assert shard.checkpoints == []
    with pytest.raises(StreamClientException, match="no committed batch"):
        read_changes(spark, tmp_path)


class Endless:
    """A sink whose Spark job takes hours."""

    def __init__(self, spark: Any) -> None:
        self.spark = spark
        self.failure: BaseException | None = None
        self.has_failed = threading.Event()

    def __call__(self, frame: Any, context: BatchContext) -> None:
        try:
            self.spark.range(10**13).selectExpr("sum(hash(id))").collect()
        except BaseException as error:
            self.failure = error
            self.has_failed.set()
            raise

    def await_job(self) -> None:
        until(lambda: bool(self.spark.sparkContext.statusTracker().getActiveJobsIds()), "the job")


def test_job_of_a_lost_lease_is_cancelled_at_once(spark: Any) -> None:
    sink, shard = Endless(spark), StoredShard("s1", puts(1))
    with make(sink, spark, max_records=1) as factory:
        run = Run(factory, shard)
        run.read(1)
        sink.await_job()
        run.stop(ShutdownReason.ZOMBIE)
        assert sink.has_failed.wait(PATIENCE_SECONDS)
        until(lambda: factory.buffered_bytes == 0)
    assert shard.checkpoints == []
    assert not run.marker.is_marked.is_set()


@pytest.mark.parametrize("reason", [ShutdownReason.STOLEN, ShutdownReason.TERMINATE])
def test_flush_ends_when_the_lease_is_lost_meanwhile(spark: Any, reason: ShutdownReason) -> None:
    """The worker can say so only when the call has returned; the checkpointer says so before."""
    sink, shard = Endless(spark), StoredShard("s1", puts(1))
    with make(sink, spark, max_wait_millis=FOREVER_MILLIS) as factory:
        run = Run(factory, shard)
        run.read(1)
        stopping = threading.Thread(target=run.stop, args=(reason,), daemon=True)
        stopping.start()
        sink.await_job()
        run.checkpointer.has_lost_the_lease = True
        stopping.join(PATIENCE_SECONDS)
        assert not stopping.is_alive()
        assert sink.has_failed.wait(PATIENCE_SECONDS)
    assert shard.checkpoints == []


def test_batch_is_cancelled_only_when_all_of_its_shards_are_lost(spark: Any) -> None:
    """Whoever still holds its lease gets its part written."""
    entered, go_on = threading.Event(), threading.Event()
    cancelled: list[int] = []

    def hold(context: BatchContext) -> None:
        entered.set()
        assert go_on.wait(PATIENCE_SECONDS)

    shards = [StoredShard(name, puts(1)) for name in ("s1", "s2")]
    with make(Recorder(hold), spark, max_age_millis=1_000) as factory:
        factory._committer._cancel = lambda: cancelled.append(1)
        runs = [Run(factory, shard) for shard in shards]
        for run in runs:
            run.read(1)
        assert entered.wait(PATIENCE_SECONDS)
        runs[0].stop(ShutdownReason.ZOMBIE)
        assert cancelled == []
        go_on.set()
        runs[1].stop()
    assert [shard.checkpoints for shard in shards] == [[], ["after 1"]]


def test_refused_checkpoint_ends_the_processor_with_its_own_error(spark: Any) -> None:
    def refuse(value: str) -> None:
        raise ShutdownException("lease lost")

    sink, shard = Recorder(), StoredShard("s1", puts(1))
    shard.before_checkpoint = refuse
    with make(sink, spark) as factory:
        run = Run(factory, shard)
        run.read(1)
        with pytest.raises(ShutdownException, match="lease lost"):
            run.stop()


def test_diverted_records_are_stored_before_the_checkpoint_and_not_in_the_lake(spark: Any, tmp_path: Path) -> None:
    shard = StoredShard("s1", [put(1, 1, v=1), put(2, 2, v="x"), put(3, 3, v=3)])
    events: list[object] = []
    shard.before_checkpoint = events.append
    factory = SparkRecordProcessorFactory(
        FileSink(tmp_path),
        session=spark,
        config=SparkConfig(unfit_value=UnfitValue.DIVERT),
        reject_sink=lambda rejected, context: events.append([one.record for one in rejected]),
        reporter=events.append,
    )
    with factory:
        run = Run(factory, shard)
        run.read(3)
        run.stop()
    report, rejected, checkpoint = events
    assert "column 'v' of shard s1 is INTEGER" in str(report)
    assert (rejected, checkpoint) == ([shard.records[1]], "after 3")
    assert rows(read_changes(spark, tmp_path), "pk", "v") == [(1, 1), (3, 3)]


def test_batch_of_diverted_records_only_still_replaces_what_stood_there(spark: Any, tmp_path: Path) -> None:
    """Two shards, one wholly diverted: its directory has a manifest and no rows."""
    bad, good = StoredShard("bad", [put(1, 1, v="x")]), StoredShard("good", [put(1, 1, v=1)])
    factory = SparkRecordProcessorFactory(
        FileSink(tmp_path),
        session=spark,
        schema={"pk": ColumnType.INTEGER, "v": ColumnType.INTEGER},
        config=SparkConfig(unfit_value=UnfitValue.DIVERT, max_age_millis=3_600_000),
        reject_sink=lambda rejected, context: None,
    )
    with factory:
        runs = [Run(factory, shard) for shard in (bad, good)]
        with factory._committer._changed:
            for run in runs:
                run.read(1)
                run.processor._started().is_flushing = True
        for run in runs:
            run.stop()
    assert {one.shard_id: one.record_count for one in manifests(spark, tmp_path)} == {"bad": 0, "good": 1}
    assert rows(read_changes(spark, tmp_path), "_shard_id", "v") == [("good", 1)]


def test_value_that_does_not_fit_stops_its_shard_and_no_other(spark: Any, tmp_path: Path) -> None:
    bad, good = StoredShard("bad", [put(1, 1, v="x")]), StoredShard("good", [put(1, 1, v=1)])
    factory = SparkRecordProcessorFactory(
        FileSink(tmp_path),
        session=spark,
        schema={"pk": ColumnType.INTEGER, "v": ColumnType.INTEGER},
        config=SparkConfig(unfit_value=UnfitValue.FAIL, max_age_millis=3_600_000),
    )
    with factory:
        runs = [Run(factory, shard) for shard in (bad, good)]
        with factory._committer._changed:
            for run in runs:
                run.read(1)
                run.processor._started().is_flushing = True
        with pytest.raises(UnfitValueError, match="column 'v' of shard bad is INTEGER"):
            runs[0].stop()
        runs[1].stop()
    assert (bad.checkpoints, good.checkpoints) == ([], ["after 1"])
    assert rows(read_changes(spark, tmp_path), "_shard_id", "v") == [("good", 1)]


def test_ended_shard_stores_its_end(spark: Any) -> None:
    sink, empty, full = Recorder(), StoredShard("empty"), StoredShard("full", puts(1))
    with make(sink, spark) as factory:
        Run(factory, empty).stop(ShutdownReason.TERMINATE)
        run = Run(factory, full)
        run.give(full.records, "SHARD_END")
        run.stop(ShutdownReason.TERMINATE)
    assert empty.checkpoints == ["SHARD_END"]
    assert full.checkpoints == ["SHARD_END"], "stored once: by the batch"


def test_read_without_records_moves_no_checkpoint(spark: Any) -> None:
    sink, shard = Recorder(), StoredShard("s1")
    with make(sink, spark) as factory:
        run = Run(factory, shard)
        run.give([], "after 0, elsewhere")
        run.stop()
    assert (sink.contexts, shard.checkpoints) == ([], [])


def test_full_buffers_block_process_records_until_a_batch_is_written(spark: Any) -> None:
    entered, release = threading.Event(), threading.Event()

    def hold(context: BatchContext) -> None:
        entered.set()
        assert release.wait(PATIENCE_SECONDS)

    sink, shard = Recorder(hold), StoredShard("s1", puts(3))
    with make(sink, spark, max_bytes=1_000, max_buffered_bytes=1_000, max_age_millis=3_600_000) as factory:
        run = Run(factory, shard)
        run.read(1)
        blocked = threading.Thread(target=lambda: run.read(2))
        blocked.start()
        assert entered.wait(PATIENCE_SECONDS), "what is buffered becomes due once someone waits for room"
        assert factory.buffered_bytes <= 1_000
        assert blocked.is_alive()
        release.set()
        blocked.join(PATIENCE_SECONDS)
        assert not blocked.is_alive()
        run.stop()
    assert shard.checkpoints == ["after 1", "after 3"]


def test_many_tiny_reads_of_a_shard_meet_a_bound_of_their_own(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker remembers a bounded number of positions that may be checkpointed."""
    monkeypatch.setattr("streamclient.spark.committer._PAGES_MAX", 3)
    sink, shard = Recorder(), StoredShard("s1", puts(10))
    with make(sink, spark, max_age_millis=3_600_000) as factory:
        run = Run(factory, shard)
        for _ in range(10):
            run.read(1)
        run.stop()
    assert sum(sink.counts) == 10
    assert max(sink.counts) <= 3


def test_waiting_for_a_hanging_sink_ends_with_its_name(spark: Any) -> None:
    release = threading.Event()
    sink, shard = Recorder(lambda context: assert_set(release)), StoredShard("s1", puts(1))
    with make(sink, spark, max_wait_millis=100) as factory:
        run = Run(factory, shard)
        run.read(1)
        with pytest.raises(StreamClientException, match=r"100 ms for its last batch .SparkConfig.max_wait_millis"):
            run.stop()
        release.set()
    assert shard.checkpoints == []


def assert_set(event: threading.Event) -> None:
    assert event.wait(PATIENCE_SECONDS)


def test_closed_factory_takes_no_more_records(spark: Any) -> None:
    factory = make(Recorder(), spark)
    run = Run(factory, StoredShard("s1", puts(1)))
    factory.close()
    with pytest.raises(StreamClientException, match="was closed"):
        run.read(1)


def test_closed_factory_makes_no_processors(spark: Any) -> None:
    """A session that it started for them would be stopped by nobody."""
    made: list[Any] = []
    factory = make(Recorder(), lambda: made.append(spark) or spark)
    factory.close()
    with pytest.raises(StreamClientException, match="was closed"):
        factory.create_processor()
    assert made == []


def test_close_leaves_a_given_session_running_and_ends_the_thread(spark: Any) -> None:
    factory = make(Recorder(), lambda: spark)
    run = Run(factory, StoredShard("s1", puts(1)))
    run.read(1)
    run.stop()
    factory.close()
    assert spark.range(3).count() == 3
    assert factory._committer._thread is None


def test_thread_ends_with_the_last_processor_and_starts_with_the_next(spark: Any) -> None:
    factory = make(Recorder(), spark)
    for _ in range(2):
        run = Run(factory, StoredShard("s1", puts(1)))
        thread = factory._committer._thread
        assert thread is not None
        run.read(1)
        run.stop()
        thread.join(PATIENCE_SECONDS)
        assert factory._committer._thread is None


def test_reject_sink_and_divert_need_each_other(spark: Any) -> None:
    with pytest.raises(ConfigurationError, match="needs a reject_sink"):
        make(Recorder(), spark, unfit_value=UnfitValue.DIVERT)
    with pytest.raises(ConfigurationError, match="only used with"):
        SparkRecordProcessorFactory(Recorder(), session=spark, reject_sink=lambda rejected, context: None)
