"""Rows per second of a replication, which copies a table into another table of the same server.

It is compared with the program that one would write instead: a loop that reads and writes through the official SDK.
"""

from __future__ import annotations

import itertools
import threading
import time
from functools import partial

from tablestore import (
    INF_MAX,
    INF_MIN,
    BatchWriteRowRequest,
    Condition,
    Direction,
    PutRowItem,
    Row,
    RowExistenceExpectation,
    TableInBatchWriteRowItem,
)

from benchmarks.report import Line, Round, aimed, compare, interleaved, ratio_of_at_least, seconds_of
from benchmarks.settings import Settings
from benchmarks.stage import Stage
from benchmarks.tables import BATCH_ROWS, KEY, FilledTable
from streamclient.copying import Replication
from streamclient.copying.replication_settings import Endpoint, SourceKind
from streamclient.copying.replication_settings import Settings as ReplicationSettings
from streamclient.copying.target_table import prepare_destination

SHARDS = (1, 4)

POLL_SECONDS = 0.05
"""The seconds between two checks whether all rows are copied. They do not matter in a round of several seconds."""

CLOCK_STEP_SECONDS = 1.1
"""The seconds to wait before the rounds. An end time is a whole second, and a run would wait until it is past."""

LOOP = "a loop over the SDK"

PAGE_ROWS = 1_000
"""The number of rows that the loop reads in one request."""

LEAST = 1.5
"""The smallest accepted rate, as a multiple of the loop's rate. It is three times the rate of an earlier replication,
which used the SDK."""

_numbers = itertools.count()


def measure(stage: Stage, settings: Settings) -> list[Line]:
    """Measure the loop, and replications by a tunnel with one channel and by a tunnel with several channels."""
    rounds: dict[str, Round] = {LOOP: partial(_loop_rate, stage, stage.table(SHARDS[0], settings.stream_records))}
    targets = {}
    for shards in SHARDS:
        table = stage.table(shards, settings.stream_records)
        name = f"through a tunnel, {shards} channel{'s' * (shards > 1)}"
        rounds[name] = partial(_rate, stage, table)
        targets[name] = ratio_of_at_least(LEAST)
    threading.Event().wait(CLOCK_STEP_SECONDS)
    rates = interleaved(settings.slow_rounds, rounds, is_warmed_up=settings.is_warmed_up)
    return aimed(compare("replication", "rows/s", rates), targets)


def _loop_rate(stage: Stage, table: FilledTable) -> float:
    """Copy the rows by the loop: read page by page, and write each page in batches. Return the rows per second."""
    client, name = stage.client(), f"{table.name}_loop_{next(_numbers)}"
    prepare_destination(client, table.name, client, name)
    condition = Condition(RowExistenceExpectation.IGNORE)
    copied = 0

    def copy() -> None:
        nonlocal copied
        start = [(column, INF_MIN) for column, _ in KEY]
        end = [(column, INF_MAX) for column, _ in KEY]
        while start:
            _, start, rows, _ = client.get_range(
                table.name, Direction.FORWARD, start, end, limit=PAGE_ROWS, max_version=1
            )
            for first in range(0, len(rows), BATCH_ROWS):
                items = [
                    PutRowItem(Row(row.primary_key, row.attribute_columns), condition)
                    for row in rows[first : first + BATCH_ROWS]
                ]
                request = BatchWriteRowRequest()
                request.add(TableInBatchWriteRowItem(name, items))
                if not client.batch_write_row(request).is_all_succeed():
                    raise RuntimeError(f"the local server refused rows of {name}")
            copied += len(rows)

    seconds = seconds_of(copy)
    if copied != table.records:
        raise RuntimeError(f"the loop copied {copied} of {table.records} rows")
    return table.records / seconds


def _rate(stage: Stage, table: FilledTable) -> float:
    """Return rows per second of a replication, from creating the destination to the end of the run."""
    number = next(_numbers)
    run = Replication(
        ReplicationSettings(
            reader=_side(stage, table.name),
            writer=_side(stage, f"{table.name}_copy_{number}"),
            source=SourceKind.TUNNEL,
            tunnel_name=f"copy_{number}",
            end_time_micros=int(time.time() - 1) * 1_000_000,
        ),
        say=lambda _: None,
        show=lambda _: None,
        poll_seconds=POLL_SECONDS,
    )
    ended = []
    seconds = seconds_of(lambda: ended.append(run.run()))
    if not ended[0].is_complete or ended[0].rows < table.records:
        raise RuntimeError(f"the replication of {table.records} rows ended with {ended[0]}")
    return table.records / seconds


def _side(stage: Stage, table: str) -> Endpoint:
    return Endpoint(endpoint=stage.endpoint, table_name=table)
