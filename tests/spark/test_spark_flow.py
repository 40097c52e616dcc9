"""Batches through the processors: what is written when, what is checkpointed when, and what a failure does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from spark_helpers import Run, StoredShard, delete, put, update

from streamclient.destinations import Day, DeltaDestination
from streamclient.destinations.memory_destination import MemoryDestination
from streamclient.errors import (
    ApplicationException,
    ConfigurationError,
    FencedException,
    ShutdownException,
    StreamClientException,
    UnfitValueError,
)
from streamclient.model import ShutdownReason, TableDefinition
from streamclient.records import ColumnType
from streamclient.spark import BatchContext, SparkConfig, SparkRecordProcessorFactory
from streamclient.spark.processor.jobs import CancellableJobs
from tests.patience import FOREVER_MILLIS, PATIENCE_SECONDS, until

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def make(sink: Any, spark: Any, **settings: Any) -> SparkRecordProcessorFactory:
    return SparkRecordProcessorFactory(sink, session=spark, config=SparkConfig(**settings))


NEVER = {"max_age_millis": 3_600_000}


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


def test_sink_gets_the_changes_of_all_shards_that_are_due_as_one_frame(spark: Any) -> None:
    """With the commits that a destination would store beside them; checkpoints come afterwards."""
    frames: list[list[Any]] = []
    shards = [
        StoredShard("s1", [put(1, 1, a=1, b="x"), update(2, 1, a=2)]),
        StoredShard("s2", [put(3, 2, a="7"), delete(4, 2)]),
    ]

    def sink(frame: Any, context: BatchContext) -> None:
        assert [shard.checkpoints for shard in shards] == [[], []]
        frames.append(frame.orderBy("_timestamp").collect())

    recorder = Recorder()
    with make(lambda frame, context: (sink(frame, context), recorder(frame, context)), spark, **NEVER) as factory:
        runs = [Run(factory, shard, epoch=7) for shard in shards]
        with factory._committer._changed:
            # While the lock is held the committing thread cannot run, so both become due together.
            for run in runs:
                run.read(2)
                run.processor._started().is_flushing = True
        for run in runs:
            run.stop()

    (rows_,), (context,) = frames, recorder.contexts
    assert [(row["pk"], row["_operation"], row["a"], row["b"], row["_shard_id"]) for row in rows_] == [
        (1, "PUT", 1, "x", "s1"),
        (1, "UPDATE", 2, None, "s1"),
        (2, "PUT", None, None, "s2"),
        (2, "DELETE", None, None, "s2"),
    ]
    assert rows_[2]["_unfit"]["a"].asDict() == {"type": "STRING", "value": "7"}
    assert [(one.shard, one.epoch, one.number, one.start, one.end, one.count) for one in context.commits] == [
        ("s1", 7, 1, "TRIM_HORIZON", "after 2", 2),
        ("s2", 7, 1, "TRIM_HORIZON", "after 2", 2),
    ]
    assert [column.name for column in context.columns] == ["pk", "a", "b"]
    assert context.primary_key == ("pk",)
    assert [shard.checkpoints for shard in shards] == [["after 2"], ["after 2"]]
    assert factory.buffered_bytes == 0


def test_column_keeps_its_type_from_frame_to_frame_and_the_commits_follow_each_other(spark: Any) -> None:
    types: list[dict[str, str]] = []
    sink, shard = Recorder(), StoredShard("s1", [put(1, 1, v=1), put(2, 2, v="x"), put(3, 3, w=True)])
    with make(lambda frame, context: (types.append(dict(frame.dtypes)), sink(frame, context)), spark) as factory:
        for _ in shard.records:
            run = Run(factory, shard)
            run.read(1)
            run.stop()
    assert [(one.get("v"), one.get("w")) for one in types] == [
        ("bigint", None),
        ("bigint", None),
        ("bigint", "boolean"),
    ]
    commits = [context.commits[0] for context in sink.contexts]
    assert [one.number for one in commits] == [1, 2, 3]
    assert [one.previous_digest for one in commits] == ["", commits[0].digest, commits[1].digest]


def test_last_commits_of_a_bounded_number_of_shards_are_remembered(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes is that of the shard which had its last one before all others."""
    monkeypatch.setattr("streamclient.spark.processor.outputs.MOST_SHARDS", 2)
    sink, shards = Recorder(), [StoredShard(name, puts(3)) for name in ("a", "b", "c")]
    a, b, c = shards
    with make(sink, spark) as factory:
        for shard in (a, b, a, c, b, a):
            run = Run(factory, shard)
            run.read(1)
            run.stop()
    assert [context.commits[0].number for context in sink.contexts] == [1, 1, 2, 1, 1, 1]


def test_transform_makes_the_rows_and_its_result_is_stored_with_the_commits(spark: Any) -> None:
    destination, shard = MemoryDestination(), StoredShard("s1", [put(1, 1, a=2), put(2, 2, a=3), delete(3, 2)])

    def double(frame: Any, context: BatchContext) -> Any:
        assert context.commits[0].epoch == 3
        return frame.where("_operation = 'PUT'").selectExpr("pk", "a * 2 as doubled", "_timestamp as at", "_shard_id")

    with SparkRecordProcessorFactory(destination, double, session=spark) as factory:
        run = Run(factory, shard, epoch=3)
        run.read(3)
        run.stop(ShutdownReason.TERMINATE)

    (stored,) = destination.rows()
    assert [(row["pk"], row["doubled"], row["at"].microsecond) for row in stored.to_pylist()] == [(1, 4, 1), (2, 6, 2)]
    assert [(one.count, one.end) for entry in destination.log() for one in entry.commits] == [
        (3, "after 3"),
        (0, "SHARD_END"),
    ]


def test_transform_runs_again_without_the_shard_that_was_overtaken_meanwhile(spark: Any) -> None:
    """What is stored must hold no row of a shard whose commit is refused."""
    destination, batches = MemoryDestination(), []
    lost, held, late = StoredShard("lost", puts(2)), StoredShard("held", puts(2)), StoredShard("lost", puts(2))

    def transform(frame: Any, context: BatchContext) -> Any:
        batches.append([one.shard for one in context.commits])
        if len(batches) == 1:
            with SparkRecordProcessorFactory(MemoryDestination(destination.place)) as other:
                successor = Run(other, late, epoch=5)
                successor.read(1)
                successor.stop()
        return frame.selectExpr("*", "pk * 10 as ten")

    config = SparkConfig(**NEVER)
    with SparkRecordProcessorFactory(destination, transform, session=spark, config=config) as factory:
        runs = [Run(factory, shard, epoch=4) for shard in (lost, held)]
        with factory._committer._changed:
            for run in runs:
                run.read(2)
                run.processor._started().is_flushing = True
        with pytest.raises(FencedException, match="committed by epoch 5, this writer has epoch 4"):
            runs[0].stop()
        runs[1].stop()

    assert batches == [["held", "lost"], ["held"]]
    stored = [(row["_shard_id"], row["pk"], row["ten"]) for table in destination.rows() for row in table.to_pylist()]
    assert sorted(stored, key=str) == [("held", 1, 10), ("held", 2, 20), ("lost", 1, None)]
    assert (lost.checkpoints, held.checkpoints) == ([], ["after 2"])


@pytest.mark.parametrize(
    ("transform", "error", "text"),
    [
        (lambda frame, context: None, ConfigurationError, "transform must return the DataFrame to store, not None"),
        (lambda frame, context: frame.select(), ConfigurationError, "must return a DataFrame with columns"),
        (lambda frame, context: frame.selectExpr("1 / (pk - pk)"), ApplicationException, "DIVIDE_BY_ZERO"),
        (lambda frame, context: frame.selectExpr("cast(pk as string) as pk"), UnfitValueError, "'pk' is string, and"),
    ],
    ids=["nothing", "no columns", "failing", "other types"],
)
def test_transform_that_fails_stores_nothing_and_says_why(spark: Any, transform: Any, error: Any, text: str) -> None:
    destination, shard = MemoryDestination(), StoredShard("s1", puts(2))
    with SparkRecordProcessorFactory(destination, session=spark) as factory:
        run = Run(factory, shard)
        run.read(1)
        run.stop()
    with SparkRecordProcessorFactory(destination, transform, session=spark) as factory:
        run = Run(factory, shard)
        run.read(1)
        with pytest.raises(error, match=text):
            run.stop()
    assert shard.checkpoints == ["after 1"]
    assert len(list(destination.log())) == 1


def test_end_of_a_shard_without_changes_is_stored_before_a_transform_knows_any_column(spark: Any) -> None:
    """As of a table whose shards split before it is written to: the children wait for this end."""
    destination, empty, child = MemoryDestination(), StoredShard("empty"), StoredShard("child", puts(2))

    def transform(frame: Any, context: BatchContext) -> Any:
        return frame.selectExpr("pk", "v * 2 as doubled", "cast(_timestamp as string) as at")

    with SparkRecordProcessorFactory(destination, transform, session=spark) as factory:
        Run(factory, empty).stop(ShutdownReason.TERMINATE)
        run = Run(factory, child)
        run.read(2)
        run.stop(ShutdownReason.TERMINATE)

    assert (empty.checkpoints, child.checkpoints) == (["SHARD_END"], ["after 2", "SHARD_END"])
    (stored,) = destination.rows()
    assert [(row["pk"], row["doubled"]) for row in stored.to_pylist()] == [(1, 2), (2, 4)]


@pytest.mark.parametrize("partition", [None, Day()], ids=["whole", "by day"])
@pytest.mark.parametrize("knows_key", [True, False], ids=["table given", "no table given"])
def test_end_of_a_shard_without_changes_makes_a_table_that_fits_the_rows_of_the_transform(
    spark: Any, knows_key: bool, partition: Day | None, tmp_path: Path
) -> None:
    """Whatever types it gives to the columns that a frame has beside those of the source."""
    destination = DeltaDestination(str(tmp_path / "t"), partition_by=partition)
    empty, child = StoredShard("empty"), StoredShard("child", puts(2))
    given = {"table": TableDefinition("t", (("pk", ColumnType.INTEGER),))} if knows_key else {}

    def transform(frame: Any, context: BatchContext) -> Any:
        day = "_timestamp" if partition else "to_date(_timestamp) as _timestamp"
        return frame.selectExpr("pk", "cast(v as int) as v", day, "cast(_commit as string) as _commit")

    with SparkRecordProcessorFactory(
        destination, transform, session=spark, schema={"v": ColumnType.INTEGER}, **given
    ) as factory:
        Run(factory, empty).stop(ShutdownReason.TERMINATE)
        columns = destination.another().columns()
        run = Run(factory, child)
        run.read(2)
        run.stop(ShutdownReason.TERMINATE)

    assert columns is not None
    assert columns.names == (["pk", "v", "_timestamp", "_commit"] if knows_key else ["_shard_id"])
    assert (empty.checkpoints, child.checkpoints) == (["SHARD_END"], ["after 2", "SHARD_END"])
    rows = [row for table in destination.rows() for row in table.to_pylist()]
    assert sorted((row["pk"], row["v"]) for row in rows) == [(1, 1), (2, 2)]


def test_rows_that_a_transform_makes_of_no_changes_are_not_stored(spark: Any) -> None:
    destination, empty = MemoryDestination(), StoredShard("empty")
    transform = lambda frame, context: frame.selectExpr("count(*) as changes")  # noqa: E731
    with SparkRecordProcessorFactory(destination, transform, session=spark) as factory:
        Run(factory, empty).stop(ShutdownReason.TERMINATE)

    assert empty.checkpoints == ["SHARD_END"]
    assert [table.num_rows for table in destination.rows()] in ([], [0])
    assert destination.columns().names == ["changes"]


def test_transform_that_needs_a_column_which_no_change_had_is_told_to_declare_it(spark: Any) -> None:
    shard, destination = StoredShard("s1", [put(1, 1, amount=2), delete(2, 1)]), MemoryDestination()

    def transform(frame: Any, context: BatchContext) -> Any:
        return frame.selectExpr("pk", "amount * 2 as twice")

    def work(**declared: Any) -> None:
        with SparkRecordProcessorFactory(destination, transform, session=spark, **declared) as factory:
            run = Run(factory, shard)
            run.read(1)
            run.stop()

    work()
    with pytest.raises(ApplicationException, match=r"declare the columns that the transform.*UNRESOLVED_COLUMN"):
        work()
    work(schema={"amount": ColumnType.INTEGER})
    assert shard.checkpoints == ["after 1", "after 2"]


def test_column_that_another_worker_saw_first_with_another_type_is_taken_over_for_a_transform(spark: Any) -> None:
    """But not one that the transform makes of a column of the same name: its values would become unfit."""
    destination = MemoryDestination()

    def transform(frame: Any, context: BatchContext) -> Any:
        return frame.withColumn("made", frame["made"].cast("string"))

    for number, value in enumerate([7, "text", 8], 1):
        shard = StoredShard(f"s{number}", [put(number, number, v=value, made=number)])
        with SparkRecordProcessorFactory(destination, transform, session=spark) as factory:
            run = Run(factory, shard)
            run.read(1)
            run.stop()

    rows = sorted((row for table in destination.rows() for row in table.to_pylist()), key=lambda row: row["pk"])
    assert [(row["v"], row["made"]) for row in rows] == [(7, "1"), (None, "2"), (8, "3")]
    assert [dict(row["_unfit"]) for row in rows] == [{}, {"v": {"type": "STRING", "value": "text"}}, {}]


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


def test_job_that_starts_after_the_lease_was_lost_is_cancelled_too(spark: Any) -> None:
    """Spark ends only jobs that it knows of."""
    endless, entered, lost = Endless(spark), threading.Event(), threading.Event()

    def late(frame: Any, context: BatchContext) -> None:
        entered.set()
        assert lost.wait(PATIENCE_SECONDS)
        endless(frame, context)

    shard = StoredShard("s1", puts(1))
    with make(late, spark, max_records=1) as factory:
        run = Run(factory, shard)
        run.read(1)
        assert entered.wait(PATIENCE_SECONDS)
        run.stop(ShutdownReason.ZOMBIE)
        lost.set()
        assert endless.has_failed.wait(PATIENCE_SECONDS)
    assert shard.checkpoints == []


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


def test_job_of_a_lost_lease_is_cancelled_while_all_that_could_say_so_wait_for_room(spark: Any) -> None:
    endless, sink = Endless(spark), Recorder()
    lost, held = StoredShard("lost", puts(1)), StoredShard("held", puts(2))

    def write(frame: Any, context: BatchContext) -> None:
        (endless if context.ranges[0].shard_id == "lost" else sink)(frame, context)

    limits = {"max_records": 1, "max_bytes": 300, "max_buffered_bytes": 300, "max_wait_millis": FOREVER_MILLIS}
    with make(write, spark, **limits) as factory:
        first, second = Run(factory, lost), Run(factory, held)
        first.read(1)
        endless.await_job()
        waiting = threading.Thread(target=second.read, args=(2,), daemon=True)
        waiting.start()
        first.checkpointer.has_lost_the_lease = True
        is_cancelled = endless.has_failed.wait(PATIENCE_SECONDS)
        spark.sparkContext.cancelAllJobs()
        waiting.join(PATIENCE_SECONDS)
        second.stop()
        first.stop(ShutdownReason.ZOMBIE)
    assert is_cancelled
    assert not first.marker.is_marked.is_set(), "what failed was only in vain"
    assert (lost.checkpoints, held.checkpoints) == ([], ["after 2"])


def test_batch_is_cancelled_only_when_all_of_its_shards_are_lost(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever still holds its lease gets its part written."""
    entered, go_on = threading.Event(), threading.Event()
    cancelled: list[int] = []

    def hold(context: BatchContext) -> None:
        entered.set()
        assert go_on.wait(PATIENCE_SECONDS)

    shards = [StoredShard(name, puts(1)) for name in ("s1", "s2")]
    with make(Recorder(hold), spark, **NEVER) as factory:
        cancel = CancellableJobs.cancel
        monkeypatch.setattr(CancellableJobs, "cancel", lambda jobs: (cancelled.append(1), cancel(jobs)))
        runs = [Run(factory, shard) for shard in shards]
        with factory._committer._changed:  # so both become due together
            for run in runs:
                run.read(1)
                run.processor._started().is_flushing = True
        assert entered.wait(PATIENCE_SECONDS)
        runs[0].stop(ShutdownReason.ZOMBIE)
        assert cancelled == []
        go_on.set()
        runs[1].stop()
    assert [shard.checkpoints for shard in shards] == [[], ["after 1"]]


def test_whoever_cancels_a_batch_too_late_ends_no_other_one(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch in vain is over, and what fails is that of somebody who holds its lease."""
    lost, held = StoredShard("lost", puts(1)), StoredShard("held", puts(1))
    entered = {"lost": threading.Event(), "held": threading.Event()}
    go_on = {"lost": threading.Event(), "held": threading.Event()}

    def sink(context: BatchContext) -> None:
        (shard,) = [one.shard_id for one in context.ranges]
        entered[shard].set()
        assert_set(go_on[shard])
        raise OSError("disk full")

    cancel = CancellableJobs.cancel

    def cancel_late(jobs: CancellableJobs) -> None:
        go_on["lost"].set()
        assert_set(entered["held"])
        cancel(jobs)
        go_on["held"].set()

    monkeypatch.setattr(CancellableJobs, "cancel", cancel_late)
    with make(Recorder(sink), spark, max_records=1) as factory:
        runs = [Run(factory, shard) for shard in (lost, held)]
        runs[0].read(1)
        assert_set(entered["lost"])
        runs[1].read(1)
        runs[0].stop(ShutdownReason.ZOMBIE)
        with pytest.raises(ApplicationException, match="disk full"):
            runs[1].stop()
    assert (lost.checkpoints, held.checkpoints) == ([], [])


def test_job_of_a_lost_lease_is_cancelled_in_a_thread_of_the_sink_too(spark: Any) -> None:
    """Through the session of the frame; what somebody else runs goes on."""
    failed, over = threading.Event(), threading.Event()

    def sink(frame: Any, context: BatchContext) -> None:
        def run() -> None:
            try:
                frame.sparkSession.range(10**13).selectExpr("sum(hash(id))").collect()
            except Exception:
                failed.set()

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        over.set()

    shard = StoredShard("s1", puts(1))
    with make(sink, spark, max_records=1) as factory:
        run = Run(factory, shard)
        run.read(1)
        until(lambda: bool(spark.sparkContext.statusTracker().getActiveJobsIds()), "the job")
        run.stop(ShutdownReason.ZOMBIE)
        is_cancelled = failed.wait(PATIENCE_SECONDS)
        spark.sparkContext.cancelAllJobs()
        assert_set(over)
    assert is_cancelled
    assert shard.checkpoints == []


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
    with make(sink, spark, max_bytes=300, max_buffered_bytes=300, max_age_millis=3_600_000) as factory:
        run = Run(factory, shard)
        run.read(1)
        blocked = threading.Thread(target=lambda: run.read(2))
        blocked.start()
        assert entered.wait(PATIENCE_SECONDS), "what is buffered becomes due once someone waits for room"
        assert factory.buffered_bytes <= 300
        assert blocked.is_alive()
        release.set()
        blocked.join(PATIENCE_SECONDS)
        assert not blocked.is_alive()
        run.stop()
    assert shard.checkpoints == ["after 1", "after 3"]


def test_what_waits_for_the_rest_of_a_prepared_batch_takes_no_room_from_others() -> None:
    """It becomes free after further calls only, and all threads of an executor may wait for room."""
    destination, prepared = MemoryDestination(), StoredShard("prepared", puts(4))
    destination.commit = fail_to_commit  # type: ignore[method-assign]
    with SparkRecordProcessorFactory(destination) as factory:
        run = Run(factory, prepared, epoch=1)
        run.read(4)
        with pytest.raises(ApplicationException, match="power cut"):
            run.stop()
    del destination.commit

    other, limits = StoredShard("other", puts(1)), SparkConfig(max_bytes=1, max_buffered_bytes=1, max_wait_millis=1_000)
    with SparkRecordProcessorFactory(destination, config=limits) as factory:
        half, whole = Run(factory, prepared, epoch=2), Run(factory, other, epoch=2)
        half.read(2)
        whole.read(1)
        whole.stop()
        half.read(2)
        half.stop()
    assert (prepared.checkpoints, other.checkpoints) == (["after 4"], ["after 1"])


def fail_to_commit(rows: Any, commits: Any) -> None:
    raise OSError("power cut")


def test_many_tiny_reads_of_a_shard_meet_a_bound_of_their_own(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker remembers a bounded number of positions that may be checkpointed."""
    monkeypatch.setattr("streamclient.spark.processor.committer._PAGES_MAX", 3)
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
