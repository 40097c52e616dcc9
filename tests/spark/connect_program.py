"""Batches over Spark Connect, with a server that runs in the same process: one is stored, one is cancelled."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from pyspark.sql import SparkSession
from spark_helpers import Run, StoredShard, put

from streamclient.destinations import DeltaDestination
from streamclient.model import ShutdownReason
from streamclient.spark import SparkConfig, SparkRecordProcessorFactory, find_java, fold_changes
from tests.patience import PATIENCE_SECONDS, until


def main(path: str) -> None:
    os.environ["JAVA_HOME"] = str(find_java().home)
    os.environ["PYSPARK_PYTHON"] = sys.executable  # of the server, whose Python processes fold
    session = SparkSession.builder.remote("local[1]").getOrCreate()
    try:
        print("stored", stored(session, path))
        print("folded", folded(session))
        print("cancelled", cancelled(session, path))
    finally:
        session.stop()


def stored(session: Any, path: str) -> list[tuple[int, int]]:
    """What a transform made of two changes."""
    shard = StoredShard("s1", [put(1, 1, v=1), put(2, 2, v=2)])

    def double(frame: Any, context: Any) -> Any:
        return frame.selectExpr("pk", "v * 2 as v", "_shard_id")

    with SparkRecordProcessorFactory(DeltaDestination(path), double, session=session) as factory:
        run = Run(factory, shard)
        run.read(2)
        run.stop()
    rows = [row for table in DeltaDestination(path).rows() for row in table.to_pylist()]
    return sorted((row["pk"], row["v"]) for row in rows)


def folded(session: Any) -> list[tuple[int, int]]:
    """The rows that three changes leave."""
    shard, found = StoredShard("s0", [put(1, 1, v=1), put(2, 2, v=2), put(3, 1, v=3)]), []

    def fold(frame: Any, context: Any) -> None:
        found.extend(fold_changes(frame, context.primary_key).select("pk", "v").collect())

    with SparkRecordProcessorFactory(fold, session=session) as factory:
        run = Run(factory, shard)
        run.read(3)
        run.stop()
    return sorted((row["pk"], row["v"]) for row in found)


def cancelled(session: Any, path: str) -> str:
    """How a batch ends whose lease is lost in the middle of a job that takes for ever."""
    started, outcomes = threading.Event(), []

    def endless(frame: Any, context: Any) -> Any:
        started.set()
        try:
            return session.range(10**13).selectExpr("sum(hash(id))").toArrow()
        except Exception as error:
            outcomes.append(error)
            raise

    shard = StoredShard("s2", [put(1, 1, v=1)])
    config = SparkConfig(max_records=1)
    with SparkRecordProcessorFactory(DeltaDestination(path), endless, session=session, config=config) as factory:
        run = Run(factory, shard)
        settled: list[Any] = []
        commit = factory._committer._commit
        factory._committer._commit = lambda pieces, jobs: settled.append(commit(pieces, jobs)) or settled[-1]
        run.read(1)
        assert started.wait(PATIENCE_SECONDS)
        run.stop(ShutdownReason.ZOMBIE)
        until(lambda: bool(settled), "the end of the batch")
    (error,) = settled[0].values()
    assert outcomes, "the job itself was ended"
    return type(error).__name__


if __name__ == "__main__":
    main(sys.argv[1])
