"""Fencing with real Spark: frozen writers, refused shards, sinks of users, and lakes from before there were epochs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lake_in_memory import MemoryFiles
from spark_helpers import Run, StoredShard, put, rows

from streamclient.errors import ConfigurationError, FencedException, StreamClientException
from streamclient.spark import (
    BatchContext,
    FileSink,
    SparkConfig,
    SparkRecordProcessorFactory,
    current_rows,
    manifests,
    read_changes,
)
from streamclient.spark.files import LakeFiles

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def puts(count: int) -> list[Any]:
    return [put(number, number, v=number) for number in range(1, count + 1)]


def make(spark: Any, sink: Any) -> SparkRecordProcessorFactory:
    return SparkRecordProcessorFactory(sink, session=spark, config=SparkConfig(max_age_millis=3_600_000))


def work(spark: Any, sink: Any, shard: StoredShard, epoch: int, *batches: int) -> None:
    """One owner of the shard reads and commits batches of these sizes, each in a tenancy that ends in order."""
    for batch in batches:
        with make(spark, sink) as factory:
            run = Run(factory, shard, epoch)
            run.read(batch)
            run.stop()


def lake_keys(spark: Any, path: Path) -> list[int]:
    return [key for (key,) in rows(read_changes(spark, path), "pk")]


class FreezingFiles(LakeFiles):
    """Does something else right before, or right after, an edition is renamed into its place."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)
    is_before = True

    def rename(self, source: str, target: str) -> None:
        frozen, FreezingFiles.meanwhile = FreezingFiles.meanwhile, staticmethod(lambda: None)
        if self.is_before:
            frozen()
            super().rename(source, target)
        else:
            super().rename(source, target)
            frozen()


@pytest.mark.parametrize("is_before", [True, False], ids=["before its rename", "after its rename"])
def test_writer_frozen_at_its_rename_changes_nothing(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_before: bool
) -> None:
    """Its successor replaces what it is about to publish, and goes on from there, while it stands still."""
    shard = StoredShard("s1", puts(9))
    late = StoredShard("s1", shard.records)
    seen: list[list[int]] = []

    def refuse(value: str) -> None:
        seen.append(lake_keys(spark, tmp_path))
        raise FencedException("the row has another owner")

    late.before_checkpoint = refuse
    monkeypatch.setattr("streamclient.spark.sink.LakeFiles", FreezingFiles)
    monkeypatch.setattr(FreezingFiles, "is_before", is_before)
    successor = staticmethod(lambda: work(spark, FileSink(tmp_path), shard, 2, 6, 3))
    monkeypatch.setattr(FreezingFiles, "meanwhile", successor)
    with pytest.raises(FencedException):
        work(spark, FileSink(tmp_path), late, 1, 4)

    assert seen == [list(range(1, 10))], "what a reader finds when the zombie has done what it could"
    assert spark.read.parquet(str(tmp_path)).count() == 9
    assert [one.epoch for one in manifests(spark, tmp_path)] == [2, 2]


def test_writer_that_comes_after_its_successor_publishes_nothing(spark: Any, tmp_path: Path) -> None:
    shard = StoredShard("s1", puts(9))
    late = StoredShard("s1", shard.records)
    work(spark, FileSink(tmp_path), shard, 7, 6, 3)
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(FencedException, match="taken over by an owner with epoch 7; this writer has epoch 6"):
        work(spark, FileSink(tmp_path), late, 6, 4)

    assert sorted(tmp_path.rglob("*")) == before
    assert late.checkpoints == []


def test_refused_shard_leaves_its_neighbours_in_the_batch_alone(spark: Any, tmp_path: Path) -> None:
    lost, held = StoredShard("lost", puts(2)), StoredShard("held", puts(2))
    work(spark, FileSink(tmp_path), StoredShard("lost", puts(1)), 5, 1)
    with make(spark, FileSink(tmp_path)) as factory:
        runs = [Run(factory, lost, 4), Run(factory, held, 4)]
        with factory._committer._changed:
            for run in runs:
                run.read(2)
                run.processor._started().is_flushing = True
        with pytest.raises(FencedException):
            runs[0].stop()
        runs[1].stop()

    assert (lost.checkpoints, held.checkpoints) == ([], ["after 2"])
    assert rows(read_changes(spark, tmp_path), "_shard_id", "pk") == [("held", 1), ("held", 2), ("lost", 1)]


def test_sink_of_a_user_can_fence_by_epoch(spark: Any) -> None:
    """As the documentation shows it: the greatest epoch is kept beside the output."""
    greatest: dict[str, int] = {}
    stored: list[tuple[str, int, int]] = []

    def sink(frame: Any, context: BatchContext) -> None:
        for one in context.ranges:
            if one.epoch < greatest.get(one.shard_id, 0):
                context.refuse(one.shard_id, FencedException(f"epoch {one.epoch} is over"))
            else:
                greatest[one.shard_id] = one.epoch
                stored.append((one.shard_id, one.epoch, one.record_count))

    work(spark, sink, StoredShard("s1", puts(3)), 9, 3)
    with pytest.raises(FencedException, match="epoch 8 is over"):
        work(spark, sink, StoredShard("s1", puts(3)), 8, 2)

    assert stored == [("s1", 9, 3)]


def test_lake_of_another_application_is_refused(spark: Any, tmp_path: Path) -> None:
    work(spark, FileSink(tmp_path, application="billing"), StoredShard("s1", puts(2)), 1, 2)

    with pytest.raises(StreamClientException, match="belongs to application 'billing'"):
        work(spark, FileSink(tmp_path, application="search"), StoredShard("s1", puts(2)), 4, 1)
    assert lake_keys(spark, tmp_path) == [1, 2]


def test_application_needs_a_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="application must be a non-empty string, not ''"):
        FileSink(tmp_path, application="")


def as_first_layout(lake: Path) -> None:
    """Turn a lake into what was written before there were editions: a directory for each start, without epochs."""
    shutil.rmtree(lake / "_fence")
    for edition in sorted(lake.glob("_shard=*/_start=*/_edition=*")):
        for path in edition.iterdir():
            path.rename(edition.parent / path.name)
        edition.rmdir()
        manifest = edition.parent / "_commit.json"
        content = {**json.loads(manifest.read_text()), "version": 1}
        del content["application"], content["epoch"]
        manifest.write_text(json.dumps(content))
        manifest.with_name("._commit.json.crc").unlink()


def test_lake_of_the_first_layout_is_read_and_not_written(spark: Any, tmp_path: Path) -> None:
    shard = StoredShard("s1", puts(6))
    work(spark, FileSink(tmp_path), shard, 1, 2, 2)
    as_first_layout(tmp_path)

    assert lake_keys(spark, tmp_path) == [1, 2, 3, 4]
    assert rows(current_rows(spark, tmp_path), "pk", "v")[-1] == (4, 4)
    assert [one.epoch for one in manifests(spark, tmp_path)] == [0, 0]
    with pytest.raises(StreamClientException, match="was written without epochs, by an earlier version"):
        work(spark, FileSink(tmp_path), shard, 2, 2)
    assert shard.checkpoint == "after 4"


def test_manifest_of_a_newer_version_is_refused(spark: Any, tmp_path: Path) -> None:
    work(spark, FileSink(tmp_path), StoredShard("s1", puts(2)), 1, 2)
    manifest = next(tmp_path.glob("_shard=*/*/*/_commit.json"))
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": 3}))
    manifest.with_name("._commit.json.crc").unlink()

    with pytest.raises(StreamClientException, match="written by a newer version of this package"):
        read_changes(spark, tmp_path)


def test_files_behave_as_those_of_the_tests_without_spark(spark: Any, tmp_path: Path) -> None:
    """A path with the characters of patterns, too."""
    root = f"{tmp_path}/a [b]{{c}}, d"
    for files in (LakeFiles.of(spark, root), MemoryFiles()):
        assert (files.names(root), files.find(root, "*/*"), files.read_text(f"{root}/x")) == ([], [], None)
        files.write_text(f"{root}/_staging/1/rows", "漢\n")
        files.write_text(f"{root}/_staging/1/more", "")
        files.rename(f"{root}/_staging/1", f"{root}/s=1%2F/t=1/e=1")
        files.write_text(f"{root}/s=1%2F/t=2/e=1/rows", "2")
        files.delete(f"{root}/nothing")
        assert files.names(f"{root}/s=1%2F") == ["t=1", "t=2"]
        assert files.find(root, "s=*/t=*/e=*/rows") == ["s=1%2F/t=1/e=1/rows", "s=1%2F/t=2/e=1/rows"]
        assert files.read_text(f"{root}/s=1%2F/t=1/e=1/rows") == "漢\n"
        with pytest.raises((OSError, AssertionError)):
            files.rename(f"{root}/s=1%2F/t=2/e=1", f"{root}/s=1%2F/t=1/e=1")
        with pytest.raises((OSError, AssertionError)):
            files.rename(f"{root}/nothing", f"{root}/elsewhere")
        files.delete(f"{root}/s=1%2F/t=1")
        assert files.find(root, "s=*/t=*/e=*") == ["s=1%2F/t=2/e=1"]
