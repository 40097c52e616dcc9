"""A worker of the rounds, in a process of its own: takes shards, stores their records in a destination, checkpoints.

usage: python rounds_worker.py KIND PLACE STATUS SEED RECORDS FREEZES_AT SHARD...

It freezes between preparing and storing its batch of the number FREEZES_AT, if that is not 0. It prints a line at each
step, and goes on once its parent has answered with a byte: so it gets as far as its parent wants, however busy the
machine is. Leases are rows of an SQLite file. The kind ``spark`` is Delta Lake behind the Spark processor, with a
transform.

usage: python rounds_worker.py maintain PLACE

Compacts and cleans a Delta table again and again, once at the least and until its parent closes the pipe, and clears
as much as it can.
"""

from __future__ import annotations

import os
import random
import select
import signal
import sqlite3
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from attrs import frozen

from streamclient.destinations import Commit, DeltaDestination, FencedCommit, change_rows, records_digest
from streamclient.destinations.commit import Destination
from streamclient.destinations.delta.maintenance import clean, compact
from streamclient.errors import DependencyException, ShutdownException
from streamclient.interfaces import (
    InitializationInput,
    IPreparedCheckpoint,
    IRecordProcessorCheckpointer,
    IShutdownMarker,
    ProcessRecordsInput,
    ShutdownInput,
)
from streamclient.model import PendingCheckpoint, ShardInfo, ShutdownReason
from streamclient.records import StreamRecord
from streamclient.spark import BatchContext, SparkConfig, SparkRecordProcessorFactory, local_session
from streamclient.testing.contracts.destination_contract import change

BATCH_MAX = 25
MAINTENANCE_PAUSE_SECONDS = 0.1
"""Between two rounds of maintenance: many of them, and time for the others."""
CONNECTION_LOCK = threading.RLock()
"""Held for each statement of the status table, and while the process is frozen: its successor can use the file then."""
SHARDS = ("shard-0", "shard-1", "shard-2")
FREEZING = "freezing"
LAST_WORDS = frozenset({FREEZING, "fenced", "lost", "late", "finished"})
"""Steps for which no answer is waited."""
LATE = 200
"""From this record on there is one more column."""
SHARD_SPAN = 1_000_000
"""Keys of one shard; no rounds need as many."""


def records_of_shard(shard: str, start: int, end: int) -> list[StreamRecord]:
    base = SHARD_SPAN * SHARDS.index(shard)
    return [change(base + n, text=f"value {n}", **({"late": n} if n > LATE else {})) for n in range(start, end)]


def opened(kind: str, place: str) -> Destination:
    if kind in {"delta", "spark"}:
        return DeltaDestination(place, answer_seconds=60.0)
    if kind == "postgres":
        from streamclient.destinations.postgres.postgres_destination import PostgresDestination

        return PostgresDestination(place, "orders", answer_seconds=5.0)
    from pyiceberg.catalog.sql import SqlCatalog

    from streamclient.destinations.iceberg_destination import IcebergDestination

    catalog = SqlCatalog("rounds", uri=f"sqlite:///{place}/catalog.db?timeout=60", warehouse=f"file://{place}/data")

    class OfOwnCatalog(IcebergDestination):
        def close(self) -> None:
            super().close()
            catalog.close()

    return OfOwnCatalog(catalog, "lake.orders", answer_seconds=60.0)


class Status:
    """The status table: epoch, checkpoint and prepared commit of each shard, written if the epoch is still ours.

    Threads take turns: while one reads, SQLite gives another's write up at once, or counts its rows wrongly.
    """

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=300, check_same_thread=False)
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS leases "
            "(shard TEXT PRIMARY KEY, epoch INTEGER, checkpoint INTEGER, pending TEXT)"
        )

    def take(self, shard: str) -> int:
        self._rows("INSERT OR IGNORE INTO leases VALUES (?, 0, 0, '')", shard)
        return int(self._rows("UPDATE leases SET epoch = epoch + 1 WHERE shard = ? RETURNING epoch", shard)[0][0])

    def row(self, shard: str) -> tuple[int, int, str]:
        found = self._rows("SELECT epoch, checkpoint, pending FROM leases WHERE shard = ?", shard)
        epoch, checkpoint, pending = found[0]
        return int(epoch), int(checkpoint), str(pending)

    def write(self, shard: str, epoch: int, checkpoint: int, pending: str) -> None:
        query = "UPDATE leases SET checkpoint = ?, pending = ? WHERE shard = ? AND epoch = ? RETURNING shard"
        if not self._rows(query, checkpoint, pending, shard, epoch):
            raise LostError(shard)

    def checkpoints(self) -> dict[str, str]:
        return {shard: position(count) for shard, count in self._rows("SELECT shard, checkpoint FROM leases")}

    def close(self) -> None:
        self._connection.close()

    def _rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with CONNECTION_LOCK:
            return self._connection.execute(statement, values).fetchall()


class LostError(Exception):
    """The lease is lost, and the worker knows."""


def position(count: int) -> str:
    return f"iterator-{count}" if count else "TRIM_HORIZON"


def count_of(text: str) -> int:
    return int(text.removeprefix("iterator-")) if text != "TRIM_HORIZON" else 0


class Freezer:
    """Stops the whole process at the batch of a number, until somebody continues it."""

    def __init__(self, batch: int) -> None:
        self.left = batch

    def pass_by(self) -> None:
        self.left -= 1
        if self.left == 0:
            with CONNECTION_LOCK:
                say(FREEZING)
                os.kill(os.getpid(), signal.SIGSTOP)


@frozen
class Work:
    """What a worker of a round has to do."""

    dice: random.Random
    records: int
    """Of each shard."""
    freezer: Freezer


class RoundsWorker:
    def __init__(self, destination: Destination, status: Status, shards: Sequence[str], work: Work) -> None:
        self.destination, self.status = destination, status
        self.dice, self.records, self.freezer = work.dice, work.records, work.freezer
        self.epochs = {shard: status.take(shard) for shard in shards}

    def run(self) -> None:
        while commits := [one for shard in self.epochs if (one := self.prepared(shard)) is not None]:
            say("prepared")
            self.freezer.pass_by()
            columns = self.destination.columns()
            parts = [
                change_rows(
                    records_of_shard(one.shard, count_of(one.start), count_of(one.end)),
                    shard=one.shard,
                    number=one.number,
                    columns=columns,
                )
                for one in commits
            ]
            self.destination.commit(pa.concat_tables(parts, promote_options="default"), commits)
            say("committed")
            for one in commits:
                self.status.write(one.shard, self.epochs[one.shard], count_of(one.end), "")
            say("checkpointed")

    def prepared(self, shard: str) -> Commit | None:
        last = self.destination.last_commits([shard])[shard]
        epoch, checkpoint, text = self.status.row(shard)
        if epoch != self.epochs[shard]:
            raise LostError(shard)
        pending = Commit.from_json(text) if text else None
        if pending is not None and last is not None and last.digest == pending.digest:
            checkpoint, pending = count_of(pending.end), None
            self.status.write(shard, self.epochs[shard], checkpoint, "")
        if checkpoint == self.records:
            return None
        end = count_of(pending.end) if pending else min(self.records, checkpoint + self.dice.randint(1, BATCH_MAX))
        records = records_of_shard(shard, checkpoint, end)
        commit = Commit.after(
            last,
            application="default",
            shard=shard,
            epoch=self.epochs[shard],
            start=position(checkpoint),
            end=position(end),
            count=len(records),
            content=records_digest(records),
        )
        self.status.write(shard, self.epochs[shard], checkpoint, commit.to_json())
        return commit


class RoundsCheckpointer(IRecordProcessorCheckpointer):
    """Stores a shard's checkpoints in the status table; says each step."""

    def __init__(self, status: Status, shard: str, epoch: int) -> None:
        self.status, self.shard, self.epoch, self.permitted = status, shard, epoch, ""

    @property
    def largest_permitted_checkpoint_value(self) -> str:
        return self.permitted

    def checkpoint(self, checkpoint_value: str | None = None) -> None:
        self.write(count_of(checkpoint_value or self.permitted), "")
        say("checkpointed")

    def prepare_checkpoint(self, checkpoint_value: str | None, state: bytes) -> IPreparedCheckpoint:
        _, checkpoint, _ = self.status.row(self.shard)
        self.write(checkpoint, state.decode())
        say("prepared")
        return None  # type: ignore[return-value]  # the Spark processor completes by position

    def write(self, checkpoint: int, pending: str) -> None:
        try:
            self.status.write(self.shard, self.epoch, checkpoint, pending)
        except LostError as error:
            raise ShutdownException(f"{self.shard} has another owner") from error


class WatchedDestination(DeltaDestination):
    """Remembers what it answered: a shard that is noticed to be lost after a refusal may be told first."""

    def __init__(self, place: str) -> None:
        super().__init__(place, answer_seconds=60.0)
        self.answers: list[Exception | None] = []

    def commit(self, rows: pa.Table, commits: Sequence[Commit]) -> None:
        try:
            super().commit(rows, commits)
        except Exception as error:
            self.answers.append(error)
            raise
        self.answers.append(None)


class NoMarker(IShutdownMarker):
    def mark_for_process_done(self) -> None: ...

    def mark_for_process_restart(self) -> None: ...


class SparkShard:
    """One shard as a worker reads it into a Spark processor."""

    def __init__(self, factory: SparkRecordProcessorFactory, status: Status, shard: str, epoch: int) -> None:
        _, self.read_to, text = status.row(shard)
        pending = Commit.from_json(text) if text else None
        self.shard, self.checkpointer = shard, RoundsCheckpointer(status, shard, epoch)
        self.processor = factory.create_processor()
        info = ShardInfo(shard, "stream", frozenset(), f"{shard}-{epoch}", epoch)
        offered = None
        if pending is not None:
            offered = PendingCheckpoint(pending.end, text.encode(), pending.count, pending.epoch)
        start = position(self.read_to)
        self.processor.initialize(InitializationInput(info, start, self.checkpointer, NoMarker(), offered))
        _, self.read_to, text = status.row(shard)
        self.prepared_to = count_of(Commit.from_json(text).end) if text else 0

    def read(self, count: int, records: int) -> bool:
        """The next page, which ends at the latest where an earlier owner prepared a batch; whether there is more."""
        end = min(records, self.read_to + count)
        if self.read_to < self.prepared_to:
            end = min(end, self.prepared_to)
        page = records_of_shard(self.shard, self.read_to, end)
        self.read_to, self.checkpointer.permitted = end, position(end)
        self.processor.process_records(ProcessRecordsInput(tuple(page), self.checkpointer, NoMarker()))
        return end < records


def run_spark(place: str, status: Status, shards: Sequence[str], work: Work) -> None:
    """As ``RoundsWorker``, by the Spark processor; each shard's text goes through Spark.

    What was refused counts, whichever shard's failure the reading thread meets first.
    """
    destination = WatchedDestination(place)
    try:
        read_into_spark(destination, status, shards, work)
    except ShutdownException as error:
        if any(isinstance(one, FencedCommit) for one in (error, *destination.answers)):
            raise FencedCommit("refused before", shards) from error
        if work.freezer.left == 0:  # for whoever asks why one that froze over a batch was not refused
            print(f"{error!r}, and no refusal among {destination.answers}", file=sys.stderr)
        raise


def read_into_spark(destination: DeltaDestination, status: Status, shards: Sequence[str], work: Work) -> None:
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as f

    def transform(frame: DataFrame, context: BatchContext) -> DataFrame:
        say("transforming")
        work.freezer.pass_by()
        return frame.withColumn("text", f.upper("text"))

    epochs = {shard: status.take(shard) for shard in shards}
    say("taken")  # not before: one that is frozen first would take them from its successor when it wakes
    small = {
        "spark.driver.memory": "500m",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.codegen.wholeStage": "false",
    }
    session = local_session("rounds", cores=1, **small)
    # A batch is one page, as large as a batch of the other kinds: with larger ones the rounds would run out of records.
    config = SparkConfig(max_records=1, max_age_millis=100)
    with SparkRecordProcessorFactory(destination, transform, session=session, config=config) as factory:
        readers = [SparkShard(factory, status, shard, epoch) for shard, epoch in epochs.items()]
        waiting = [reader for reader in readers if reader.read_to < work.records]
        while waiting:
            waiting = [one for one in waiting if one.read(work.dice.randint(1, BATCH_MAX), work.records)]
        for reader in readers:
            reader.processor.shutdown(ShutdownInput(ShutdownReason.STOLEN, reader.checkpointer))


def maintain(place: str) -> None:
    """Says at the end how often it compacted and cleaned, and how many entries of the log it removed."""
    destination = DeltaDestination(place, answer_seconds=60.0)
    rounds = compacted = cleared = 0
    while not select.select([sys.stdin], [], [], MAINTENANCE_PAUSE_SECONDS)[0] or not rounds:
        if destination.columns() is None:
            continue
        if not rounds:
            # Nothing is old enough in a table that is minutes old. Whoever reads it meanwhile needs a moment.
            destination.handle().alter.set_table_properties({"delta.logRetentionDuration": "interval 2 seconds"})
        compacted += not compact(destination).is_refused
        cleared += clean(destination, keep_hours=1).log_entries
        rounds += 1
    print(f"{rounds} {compacted} {cleared}")


def say(step: str) -> None:
    os.write(sys.stdout.fileno(), f"{step}\n".encode())  # whole lines, whichever threads say them
    if step not in LAST_WORDS and not os.read(sys.stdin.fileno(), 1):
        os._exit(1)  # the parent is gone


def main(kind: str, place: str, path: str, *given: str) -> None:
    seed, records, freezes_at, *shards = given
    status, work = Status(Path(path)), Work(random.Random(seed), int(records), Freezer(int(freezes_at)))
    try:
        if kind == "spark":
            run_spark(place, status, shards, work)
        else:
            worker = RoundsWorker(opened(kind, place), status, shards, work)
            say("taken")
            worker.run()
    except FencedCommit:
        say("fenced")
    except (LostError, ShutdownException):
        say("lost")
    except DependencyException:
        say("late")  # it slept through the time that it gives a commit
    else:
        say("finished")


if __name__ == "__main__":
    maintain(sys.argv[2]) if sys.argv[1] == "maintain" else main(*sys.argv[1:])
