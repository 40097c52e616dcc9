"""Records per second in an ``async for`` loop and in a processor, over many shards, with few threads."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from functools import partial

from attrs import define
from tablestore import OTSClient

from benchmarks.report import Line, Round, aimed, aims_beside, at_least, at_most, compare, interleaved
from benchmarks.settings import Settings
from benchmarks.stage import Stage
from benchmarks.tables import FilledTable, put_rows
from benchmarks.workers import CheckpointingProcessor, Meter, running_worker
from streamclient import ClientConfig, InitializationInput, ProcessRecordsInput, aio

PAGE_SIZE = 100

BODY_SECONDS = 0.02
"""The seconds that each loop body waits, like for the answer of another service."""

MOST_THREADS = 19
"""The largest accepted number of threads of the process while a loop runs, for any number of shards."""

CALLBACK, LOOP = "callback", "async for"
SLOW_CALLBACK, SLOW_RUN = "callback, each batch sleeps 20 ms", "aio run, each batch awaits 20 ms"
LIMIT = "aio run, no batch awaits anything"

GAIN = 1.5
"""The ratio of the loop to the callback that is wanted where bodies wait. The callback needs a thread for each wait."""

NEAR_LIMIT = 0.95
"""The part of the rate of the loop without waits that the loop with waits must reach. Rounds differ by as much."""

_numbers = itertools.count()


@define
class Threads:
    """The largest number of threads of this process at the end of a batch."""

    most: int = 0

    def look(self) -> None:
        """Count the threads now, and remember the number if it is the largest one."""
        self.most = max(self.most, threading.active_count())


class FromTheFirstBatch(CheckpointingProcessor):
    """A processor that starts the meter at its first batch, as the loops do, and not before the first read."""

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Do nothing."""

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Start the meter, store a checkpoint, and count the records."""
        self._meter.start()
        super().process_records(process_records_input)


class SleepingProcessor(FromTheFirstBatch):
    """A processor that sleeps before each checkpoint, for as long as the loop's body waits."""

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Sleep, store a checkpoint, and count the records."""
        self._meter.start()
        time.sleep(BODY_SECONDS)
        super().process_records(process_records_input)


def measure(stage: Stage, settings: Settings) -> list[Line]:
    """Measure the processor and the loop over the same shards, without waiting and with 20 ms for each batch.

    A loop whose bodies wait cannot be faster than the same loop without waits. If the loop without waits is less than
    ``GAIN`` times as fast as the callback that sleeps, the aim is the part ``NEAR_LIMIT`` of its rate.
    """
    table = _table(stage, settings.loop_shards, settings.loop_records)
    client, seen = stage.client(), Threads()
    plain: dict[str, Round] = {
        CALLBACK: partial(_callback, client, table, FromTheFirstBatch),
        LOOP: partial(_loop, client, table, seen),
    }
    waiting: dict[str, Round] = {
        SLOW_CALLBACK: partial(_callback, client, table, SleepingProcessor),
        SLOW_RUN: partial(_run, client, table, seen, BODY_SECONDS),
        LIMIT: partial(_run, client, table, seen, 0.0),
    }
    lines: list[Line] = []
    for candidates in (plain, waiting):
        rates = interleaved(settings.rounds, candidates, is_warmed_up=settings.is_warmed_up)
        lines += compare("loops", "records/s", rates, lambda name, _: f"{table.shards} shards, pages of {PAGE_SIZE}")
    can_gain = next(line.ratio for line in lines if line.name == LIMIT) * NEAR_LIMIT >= GAIN
    base, least, called = (
        (SLOW_CALLBACK, GAIN, "the callback that sleeps") if can_gain else (LIMIT, NEAR_LIMIT, "the loop without waits")
    )
    (gain,) = aims_beside(rates, SLOW_RUN, base, least, called=called)  # the last ``rates`` belong to ``waiting``
    lines = aimed(lines, {LOOP: lambda line: at_least(line.ratio, 1.0, "x the callback"), SLOW_RUN: lambda _: gain})
    return aimed(lines, {name: lambda line: at_most(seen.most, MOST_THREADS, "threads") for name in (LOOP, SLOW_RUN)})


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


def _run(client: OTSClient, table: FilledTable, seen: Threads, body_seconds: float) -> float:
    meter, status_table = Meter(table.records), f"{table.name}_run_{next(_numbers)}"
    left = table.records

    async def consume() -> None:
        async with _changes(client, table, status_table) as changes:

            async def handle(batch: aio.AsyncBatch) -> None:
                nonlocal left
                meter.start()
                if body_seconds:
                    await asyncio.sleep(body_seconds)
                meter.add(len(batch))
                seen.look()
                left -= len(batch)
                if not left:
                    changes.worker.shutdown(wait=False)

            await changes.run(handle)

    asyncio.run(consume())
    client.delete_table(status_table)
    return meter.rate
