"""The cost of a mirror: folding changes with few and with many columns, also in Spark, and merging into a table."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.parquet import spark_session
from benchmarks.report import Line, Round, aimed, at_most, compare, interleaved, ratio_of_at_least, seconds_of
from benchmarks.settings import Settings
from benchmarks.stage import Stage
from streamclient import (
    CheckpointPosition,
    ColumnOperation,
    ColumnType,
    RecordColumn,
    RecordType,
    SequenceInfo,
    StreamRecord,
)
from streamclient.destinations import Commit, DeltaDestination, change_rows, records_digest
from streamclient.destinations.folding.fold import copied, empty_rows, fold
from streamclient.destinations.folding.folded_batches import ChangeBatch, ShardChanges
from streamclient.destinations.folding.row_changes import TableRule
from streamclient.spark import fold_changes
from streamclient.spark.processor.arrow import to_frame
from streamclient.spark.spark_session import private_copy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHANGES = 10_000
COLUMNS = (10, 1_000)
COPIED_AT_ONCE = 100_000

_RULE = TableRule(("id",), declared={"id": ColumnType.INTEGER})
_FIRST_MILLIS = 1_700_000_000_000


def measure(stage: Stage, settings: Settings) -> list[Line]:
    """Measure the cells that are folded per second of processor time, and the changes that are merged per second.

    Half of the cells are folded into existing rows.
    """
    folds: dict[str, Round] = {
        f"folding {settings.folded_changes:,} changes of {count:,} columns": _fold_round(settings.folded_changes, count)
        for count in COLUMNS
    }
    rates = interleaved(settings.rounds, folds, is_warmed_up=settings.is_warmed_up)
    most = f"folding {settings.folded_changes:,} changes of {COLUMNS[-1]:,} columns"
    lines = aimed(compare("mirror", "cells/s of CPU", rates), {most: ratio_of_at_least(0.1)})
    lines += _folds_in_spark(settings)
    with tempfile.TemporaryDirectory() as directory:
        merge = _Merge(Path(directory) / "mirror", settings.mirror_rows)
        name = f"merging {CHANGES:,} changes into {settings.mirror_rows:,} rows"
        rounds: dict[str, Round] = {name: merge.round}
        rates = interleaved(settings.slow_rounds, rounds, is_warmed_up=settings.is_warmed_up)

    def detail(name: str, figure: float) -> str:
        return f"{CHANGES / figure:.2f} s per merge, {merge.processor_seconds:.2f} s of processor time"

    merged = compare("mirror", "changes/s", rates, detail)
    return lines + aimed(merged, {name: lambda line: at_most(CHANGES / line.figure, 1.0, "s per merge")})


def _record(number: int, sequence: int, columns: int, kind: RecordType = RecordType.PUT) -> StreamRecord:
    cells = tuple(
        RecordColumn(f"column {each}", ColumnOperation.PUT, number + each, _FIRST_MILLIS + sequence)
        for each in range(columns)
    )
    return StreamRecord(kind, (("id", number),), cells, SequenceInfo(0, (_FIRST_MILLIS + sequence) * 1_000, number))


def _fold_round(count: int, columns: int) -> Callable[[], float]:
    half = count // 2
    present = copied([_record(number, 0, columns) for number in range(half)], 0, empty_rows(_RULE).schema, _RULE)
    kinds = (RecordType.PUT, RecordType.UPDATE)
    changes = [_record(number, 1, columns, kinds[number % 2]) for number in range(count)]
    part = ShardChanges.of("shard", changes)

    def work() -> float:
        seconds = seconds_of(lambda: fold(present, ChangeBatch.of([part]), _RULE), time.process_time)
        return count * columns / seconds

    return work


def _folds_in_spark(settings: Settings) -> list[Line]:
    """Measure the cells that Spark folds per second of wall time, from a frame to a sink that stores nothing."""
    with spark_session() as session:
        rounds: dict[str, Round] = {
            f"fold_changes of {settings.folded_changes:,} changes of {count:,} columns, in Spark": _spark_round(
                session, settings.folded_changes, count
            )
            for count in COLUMNS
        }
        rates = interleaved(settings.slow_rounds, rounds, is_warmed_up=settings.is_warmed_up)
    return aimed(compare("mirror", "cells/s", rates), {[*rounds][-1]: ratio_of_at_least(0.1)})


def _spark_round(session: SparkSession, count: int, columns: int) -> Callable[[], float]:
    half, kinds = count // 2, (RecordType.PUT, RecordType.UPDATE)
    changes = [_record(number % half, number // half, columns, kinds[number % 2]) for number in range(count)]
    rows = change_rows(changes, shard="shard", number=1)
    frame = to_frame(private_copy(session), rows)

    def work() -> float:
        folded = fold_changes(frame, ["id"])
        return count * columns / seconds_of(lambda: folded.write.format("noop").mode("overwrite").save())

    return work


class _Merge:
    """A table of ``rows`` rows with an integer key and three columns, and merges of changes at random keys."""

    def __init__(self, directory: Path, rows: int) -> None:
        self._destination = DeltaDestination(str(directory), answer_seconds=300.0)
        self._destination.key_by(["id"])
        self._dice = random.Random(1)
        self._rows = rows
        self._sequence = 0
        self._spent: list[float] = []
        self._last: Commit | None = None
        for first in range(0, rows, COPIED_AT_ONCE):
            numbers = range(first, min(first + COPIED_AT_ONCE, rows))
            records = [_record(number, 0, 3) for number in numbers]
            table = copied(records, 0, empty_rows(_RULE).schema, _RULE)
            self._destination.commit(table, [self._commit(records)])

    def _commit(self, records: list[StreamRecord]) -> Commit:
        start = CheckpointPosition.TRIM_HORIZON if self._last is None else self._last.end
        self._last = Commit.after(
            self._last,
            application="default",
            shard="shard",
            epoch=1,
            start=start,
            end=f"{start}+" if self._last is None else f"{self._last.number + 1}",
            count=len(records),
            content=records_digest(records[:1]),
        )
        return self._last

    def round(self) -> float:
        """Merge changes into the table; return the changes per second, from their columns to the end of the commit."""
        self._sequence += 1
        numbers = self._dice.sample(range(self._rows), min(CHANGES, self._rows))
        changes = [_record(number, self._sequence, 3, RecordType.UPDATE) for number in numbers]
        batch = ChangeBatch.of([ShardChanges.of("shard", changes)])
        commit = self._commit(changes)
        merge = partial(self._destination.merge, batch.keys({"id": "id"}), lambda rows: fold(rows, batch, _RULE).rows)
        before = time.process_time()
        seconds = seconds_of(lambda: merge([commit]))
        self._spent.append(time.process_time() - before)
        return len(numbers) / seconds

    @property
    def processor_seconds(self) -> float:
        """The median processor time of all threads for one merge, in seconds. Unmeasured merges count as well."""
        return median(self._spent)
