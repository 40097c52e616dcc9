"""Records per second to a loop, beside a callback: many shards over HTTP, in one event loop and few threads."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from functools import partial

from attrs import define
from tablestore import OTSClient

from benchmarks.report import Line, Round, aimed, at_least, at_most, compare, interleaved
from benchmarks.settings import Settings
from benchmarks.stage import Stage
from benchmarks.tables import FilledTable, put_rows
from benchmarks.workers import CheckpointingProcessor, Meter, running_worker
from streamclient import ClientConfig, InitializationInput, ProcessRecordsInput, aio

PAGE_SIZE = 100

BODY_SECONDS = 0.02
"""The time that each body waits, as for an answer of another service."""

MOST_THREADS = 19
"""The most threads of the process while a loop runs, whatever the number of shards: fewer than 20."""

CALLBACK, LOOP = "callback", "async for"
SLOW_CALLBACK, SLOW_RUN = "callback, each batch sleeps 20 ms", "aio run, each batch awaits 20 ms"

_numbers = itertools.count()


@define
class Threads:
    """The most threads of this process that were seen at the end of a batch."""

    most: int = 0

    def look(self) -> None:
        """Count the threads now."""
        self.most = max(self.most, threading.active_count())


class FromTheFirstBatch(CheckpointingProcessor):
    """Starts the clock at the first batch, as the loops do."""

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Do nothing."""

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Checkpoint and count."""
        self._meter.start()
        super().process_records(process_records_input)


class SleepingProcessor(FromTheFirstBatch):
    """Sleeps before each checkpoint."""

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Sleep, checkpoint and count."""
        self._meter.start()
        time.sleep(BODY_SECONDS)
        super().process_records(process_records_input)


def measure(stage: Stage, settings: Settings) -> list[Line]:
    """Measure the callback and the loop over the same shards, with bodies of no time and of 20 ms."""
    table = _table(stage, settings.loop_shards, settings.loop_records)
    client, seen = stage.client(), Threads()
    lines: list[Line] = []
    pairs: tuple[dict[str, Round], ...] = (
        {
            CALLBACK: partial(_callback, client, table, FromTheFirstBatch),
            LOOP: partial(_loop, client, table, seen),
        },
        {
            SLOW_CALLBACK: partial(_callback, client, table, SleepingProcessor),
            SLOW_RUN: partial(_run, client, table, seen),
        },
    )
    for pair in pairs:
        rates = interleaved(settings.slow_rounds, pair, is_warmed_up=settings.is_warmed_up)
        lines += compare("loops", "records/s", rates, lambda name, _: f"{table.shards} shards, pages of {PAGE_SIZE}")
    return aimed(
        aimed(
            lines,
            {
                LOOP: lambda line: at_least(line.ratio, 1.0, "x the callback"),
                SLOW_RUN: lambda line: at_least(line.ratio, 1.5, "x the callback that sleeps"),
            },
        ),
        {name: lambda line: at_most(seen.most, MOST_THREADS, "threads") for name in (LOOP, SLOW_RUN)},
    )


def _table(stage: Stage, shards: int, records: int) -> FilledTable:
    name = f"loops_{shards}_{records}"
    stream_id = stage.make_table(name, shards)
    put_rows(stage.client(), name, records)
    return FilledTable(name, stream_id, shards, records)


def _callback(client: OTSClient, table: FilledTable, make: Callable[[Meter], CheckpointingProcessor]) -> float:
    meter = Meter(table.records)
    with running_worker(client, table, PAGE_SIZE, lambda: make(meter), ClientConfig()) as worker:
        meter.wait(worker)
    return meter.rate


def _changes(client: OTSClient, table: FilledTable, status_table: str) -> aio.AsyncChanges:
    return aio.changes(table.name, group="bench", client=client, status_table=status_table, max_records=PAGE_SIZE)


def _loop(client: OTSClient, table: FilledTable, seen: Threads) -> float:
    meter, status_table = Meter(table.records), f"{table.name}_loop_{next(_numbers)}"

    async def consume() -> None:
        left = table.records
        async with _changes(client, table, status_table) as changes:
            async for batch in changes:
                meter.start()
                meter.add(len(batch))
                seen.look()
                left -= len(batch)
                if not left:
                    return

    asyncio.run(consume())
    client.delete_table(status_table)
    return meter.rate


def _run(client: OTSClient, table: FilledTable, seen: Threads) -> float:
    meter, status_table = Meter(table.records), f"{table.name}_run_{next(_numbers)}"
    left = table.records

    async def consume() -> None:
        async with _changes(client, table, status_table) as changes:

            async def handle(batch: aio.AsyncBatch) -> None:
                nonlocal left
                meter.start()
                await asyncio.sleep(BODY_SECONDS)
                meter.add(len(batch))
                seen.look()
                left -= len(batch)
                if not left:
                    changes.worker.shutdown(wait=False)

            await changes.run(handle)

    asyncio.run(consume())
    client.delete_table(status_table)
    return meter.rate
