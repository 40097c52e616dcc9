"""Crashes between the steps of a commit: the lake ends up with each change once, wherever the next batch is cut."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from spark_helpers import Run, StoredShard, put, rows

from streamclient.errors import ApplicationException, DependencyException, ErrorKind, StreamClientException
from streamclient.model import ShutdownReason
from streamclient.spark import BatchContext, FileSink, SparkConfig, SparkRecordProcessorFactory, manifests, read_changes
from tests.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def puts(count: int) -> list[Any]:
    return [put(number, number, v=number) for number in range(1, count + 1)]


def run_batches(
    spark: Any, sink: Any, shard: StoredShard, *cuts: int, last: ShutdownReason = ShutdownReason.STOLEN
) -> None:
    """Read the shard from its checkpoint in batches of given sizes; stops quietly at the first failure."""
    with SparkRecordProcessorFactory(sink, session=spark, config=SparkConfig(max_age_millis=3_600_000)) as factory:
        run = Run(factory, shard)
        try:
            for cut in cuts:
                run.read(cut)
                factory._committer.flush(run.processor._started())
                run.processor._started().raise_error()
                run.processor._started().is_flushing = False
            run.stop(last)
        except (DependencyException, ApplicationException) as error:
            if "crash" not in str(error):
                raise
            run.stop(ShutdownReason.PROCESS_RESTART)


def crash(value: str) -> None:
    raise DependencyException(f"crash instead of {value}", kind=ErrorKind.AMBIGUOUS)


def lake_keys(spark: Any, path: Path) -> list[int]:
    return [key for (key,) in rows(read_changes(spark, path), "pk")]


@pytest.mark.parametrize(("stored", "again"), [(0, (1, 9)), (0, (10,)), (3, (4, 6)), (3, (7, 3))], ids=str)
def test_batch_that_was_written_but_not_checkpointed_is_overwritten_however_it_is_cut_again(
    spark: Any, tmp_path: Path, stored: int, again: tuple[int, ...]
) -> None:
    shard = StoredShard("s1", puts(10 + stored))
    if stored:
        run_batches(spark, FileSink(tmp_path), shard, stored)
    shard.before_checkpoint = crash
    run_batches(spark, FileSink(tmp_path), shard, 4)
    assert lake_keys(spark, tmp_path) == list(range(1, stored + 5)), "the crash came after the write"
    shard.before_checkpoint = lambda value: None
    run_batches(spark, FileSink(tmp_path), shard, *again)
    assert lake_keys(spark, tmp_path) == list(range(1, stored + 11))
    assert shard.checkpoint == f"after {10 + stored}"


def test_combined_batch_repeats_per_shard(spark: Any, tmp_path: Path) -> None:
    """One of two shards in a job is checkpointed, the other is not; both go on alone."""
    shards = [StoredShard("s1", puts(3)), StoredShard("s2", puts(3))]
    shards[1].before_checkpoint = crash
    with SparkRecordProcessorFactory(FileSink(tmp_path), session=spark) as factory:
        runs = [Run(factory, shard) for shard in shards]
        with factory._committer._changed:
            for run in runs:
                run.read(2)
                run.processor._started().is_flushing = True
        runs[0].stop()
        with pytest.raises(DependencyException):
            runs[1].stop()
    assert [one.batch_id for one in manifests(spark, tmp_path)] == [manifests(spark, tmp_path)[0].batch_id] * 2
    shards[1].before_checkpoint = lambda value: None
    run_batches(spark, FileSink(tmp_path), shards[0], 1)
    run_batches(spark, FileSink(tmp_path), shards[1], 1, 2)
    assert rows(read_changes(spark, tmp_path), "_shard_id", "pk") == [
        (shard.shard_id, key) for shard in shards for key in (1, 2, 3)
    ]


def test_checkpoint_that_was_stored_without_an_answer_continues_behind_it(spark: Any, tmp_path: Path) -> None:
    shard = StoredShard("s1", puts(5))

    def store_and_crash(value: str) -> None:
        shard.checkpoint = value
        crash(value)

    shard.before_checkpoint = store_and_crash
    run_batches(spark, FileSink(tmp_path), shard, 2)
    shard.before_checkpoint = lambda value: None
    run_batches(spark, FileSink(tmp_path), shard, 3)
    assert lake_keys(spark, tmp_path) == [1, 2, 3, 4, 5]


def test_output_of_a_job_that_died_before_it_was_published_is_not_read(spark: Any, tmp_path: Path) -> None:
    class DyingSink(FileSink):
        def _publish(self, *arguments: Any) -> None:
            raise OSError("crash before the rename")

    shard = StoredShard("s1", puts(4))
    run_batches(spark, FileSink(tmp_path), shard, 1)
    run_batches(spark, DyingSink(tmp_path), shard, 2)
    assert lake_keys(spark, tmp_path) == [1]
    assert spark.read.parquet(str(tmp_path)).count() == 1
    run_batches(spark, FileSink(tmp_path), shard, 3)
    assert lake_keys(spark, tmp_path) == [1, 2, 3, 4]


def test_reader_that_was_set_back_is_refused_and_changes_nothing(spark: Any, tmp_path: Path) -> None:
    shard = StoredShard("s1", puts(6))
    run_batches(spark, FileSink(tmp_path), shard, 2, 2)
    shard.checkpoint = "TRIM_HORIZON"
    with SparkRecordProcessorFactory(FileSink(tmp_path), session=spark) as factory:
        run = Run(factory, shard)
        run.read(3)
        with pytest.raises(StreamClientException, match="was continued and is final"):
            run.stop()
    assert lake_keys(spark, tmp_path) == [1, 2, 3, 4]
    assert shard.checkpoint == "TRIM_HORIZON"


def test_same_batch_again_is_no_error_even_if_it_was_continued(spark: Any, tmp_path: Path) -> None:
    shard = StoredShard("s1", puts(4))
    run_batches(spark, FileSink(tmp_path), shard, 2, 2)
    shard.checkpoint = "TRIM_HORIZON"
    run_batches(spark, FileSink(tmp_path), shard, 2, 2)
    assert lake_keys(spark, tmp_path) == [1, 2, 3, 4]


def test_unchecked_records_that_left_the_stream_meanwhile_are_kept(spark: Any, tmp_path: Path) -> None:
    """First batch at TRIM_HORIZON, crash, and the oldest records are gone before the restart: three times."""
    everything = puts(8)
    for gone, end in ((0, 4), (2, 5), (3, 6)):
        shard = StoredShard("s1", everything[gone:end])
        shard.before_checkpoint = crash
        run_batches(spark, FileSink(tmp_path), shard, end - gone)
    shard = StoredShard("s1", everything[3:])
    run_batches(spark, FileSink(tmp_path), shard, 5)
    assert lake_keys(spark, tmp_path) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_staging_of_dead_jobs_is_removed_after_a_day_and_not_before(spark: Any, tmp_path: Path) -> None:
    old, young = tmp_path / "_staging" / "old", tmp_path / "_staging" / "young"
    for directory in (old, young):
        directory.mkdir(parents=True)
    os.utime(old, (0, 0))
    run_batches(spark, FileSink(tmp_path), StoredShard("s1", puts(1)), 1)
    assert (old.exists(), young.exists()) == (False, True)


def test_killed_process_leaves_a_lake_that_the_next_one_completes(spark: Any, tmp_path: Path) -> None:
    """A real process dies between the write and the checkpoint, without any chance to tidy up."""
    program = textwrap.dedent(
        """
        import os, signal, sys
        from spark_helpers import Run, StoredShard, put
        from streamclient.spark import FileSink, SparkRecordProcessorFactory
        shard = StoredShard("s1", [put(n, n, v=n) for n in range(1, 6)])
        shard.before_checkpoint = lambda value: os.kill(os.getpid(), signal.SIGKILL)
        run = Run(SparkRecordProcessorFactory(FileSink(sys.argv[1])), shard)
        run.read(3)
        run.stop()
        """
    )
    here = os.fspath(Path(__file__).parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([here, os.getcwd()])}
    died = subprocess.run(
        [sys.executable, "-c", program, tmp_path], env=environment, timeout=PATIENCE_SECONDS, check=False
    )
    assert died.returncode == -9
    assert lake_keys(spark, tmp_path) == [1, 2, 3]
    run_batches(spark, FileSink(tmp_path), StoredShard("s1", puts(5)), 2, 3)
    assert lake_keys(spark, tmp_path) == [1, 2, 3, 4, 5]


def test_lost_shard_of_a_combined_batch_is_left_out_of_the_lake(spark: Any, tmp_path: Path) -> None:
    files = FileSink(tmp_path)
    shards = [StoredShard("s1", puts(1)), StoredShard("s2", puts(1))]
    runs: list[Run] = []

    def sink(frame: Any, context: BatchContext) -> None:
        factory._committer.abandon(runs[0].processor._started())
        files(frame, context)

    with SparkRecordProcessorFactory(sink, session=spark) as factory:
        runs += [Run(factory, shard) for shard in shards]
        with factory._committer._changed:
            for run in runs:
                run.read(1)
                run.processor._started().is_flushing = True
        runs[1].stop()
        runs[0].stop(ShutdownReason.ZOMBIE)
    assert rows(read_changes(spark, tmp_path), "_shard_id", "pk") == [("s2", 1)]
    assert [shard.checkpoints for shard in shards] == [[], ["after 1"]]
