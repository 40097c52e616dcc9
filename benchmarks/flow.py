"""Two ways to process one shard faster: reading pages ahead, and processing several keys at the same time."""

from __future__ import annotations

import statistics
import threading
from contextlib import AbstractContextManager
from functools import partial

from tablestore import OTSClient

from benchmarks.report import Line, Round, compare, interleaved, progress, seconds_of
from benchmarks.settings import Settings
from benchmarks.stage import Stage
from benchmarks.tables import FilledTable
from benchmarks.workers import CheckpointingProcessor, Meter, running_worker
from streamclient import (
    ClientConfig,
    KeyedProcessorFactory,
    Prefetch,
    ProcessRecordsInput,
    StreamRecord,
    TablestoreStreamApi,
    Worker,
)

DISTANCE_SECONDS = 0.05
"""The seconds that a distant service adds to each read. During them no processor is busy."""

MEASURED_READS = 9
"""The number of pages that are read one by one. The time of a read is the median of their times."""

RECORD_SECONDS = 0.005
"""The seconds to process one record, like a call to another service."""

KEYED_THREADS = (1, 16)
KEYED_PAGE = 100


class WaitingProcessor(CheckpointingProcessor):
    """Waits once for each batch, like a call to another service, and stores a checkpoint after it."""

    def __init__(self, meter: Meter, seconds: float) -> None:
        super().__init__(meter)
        self._seconds = seconds

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Wait; then store a checkpoint, and count the records."""
        threading.Event().wait(self._seconds)
        super().process_records(process_records_input)


class WaitingRecords(CheckpointingProcessor):
    """Waits for each record, one after the other, and stores a checkpoint after each batch."""

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Wait once for each record; then store a checkpoint, and count the records."""
        for _ in process_records_input.records:
            threading.Event().wait(RECORD_SECONDS)
        super().process_records(process_records_input)


def measure(stage: Stage, settings: Settings) -> list[Line]:
    """Measure without and with reading ahead; then with records one by one, and with keys at the same time."""
    return [*_ahead(stage, settings), *_keyed(stage, settings)]


def _ahead(stage: Stage, settings: Settings) -> list[Line]:
    lines: list[Line] = []
    for size, distance in ((1_000, 0.0), (1_000, DISTANCE_SECONDS), (100, DISTANCE_SECONDS)):
        with stage.late_answers("GetStreamRecord", distance):
            lines += _ahead_of(stage, settings, size, distance)
    return lines


def _ahead_of(stage: Stage, settings: Settings, size: int, distance: float) -> list[Line]:
    table = stage.table(1, settings.stream_records)
    seconds = _read_seconds(stage.client(), table, size)
    what = f"1 shard, pages of {size}, answers {distance * 1_000:.0f} ms late"
    rounds: dict[str, Round] = {
        f"{what}, {name}": partial(_rate_ahead, stage.client(), table, size, seconds, config)
        for name, config in (
            ("nothing read ahead", ClientConfig(prefetch=Prefetch(prefetch_bytes=0))),
            ("read ahead as by default", ClientConfig()),
        )
    }
    rates = interleaved(settings.slow_rounds, rounds, is_warmed_up=settings.is_warmed_up)
    detail = f"each batch takes {seconds * 1_000:.0f} ms, as long as its read"
    return compare("flow", "records/s", rates, lambda name, figure: detail)


def _read_seconds(client: OTSClient, table: FilledTable, size: int) -> float:
    progress(f"measuring reads of {size} records")
    streams = TablestoreStreamApi(client)
    shard = streams.describe_stream(table.stream_id).shards[0].shard_id
    iterator = streams.get_shard_iterator(table.stream_id, shard)
    return statistics.median(
        seconds_of(lambda: streams.get_stream_record(iterator, size)) for _ in range(MEASURED_READS)
    )


def _rate_ahead(client: OTSClient, table: FilledTable, size: int, seconds: float, config: ClientConfig) -> float:
    meter = Meter(table.records)
    return _rate(running_worker(client, table, size, lambda: WaitingProcessor(meter, seconds), config), meter)


def _keyed(stage: Stage, settings: Settings) -> list[Line]:
    table = stage.table(1, settings.keyed_records)
    client = stage.client()
    rounds: dict[str, Round] = {
        "1 shard, records one by one": partial(_rate_one_by_one, client, table),
        **{
            f"1 shard, key by key, {threads} thread{'s' * (threads > 1)}": partial(_rate_keyed, client, table, threads)
            for threads in KEYED_THREADS
        },
    }
    rates = interleaved(settings.slow_rounds, rounds, is_warmed_up=settings.is_warmed_up)
    detail = f"{table.records} records of as many keys, {RECORD_SECONDS * 1_000:.0f} ms each"
    return compare("flow", "records/s", rates, lambda name, figure: detail)


def _rate_one_by_one(client: OTSClient, table: FilledTable) -> float:
    meter = Meter(table.records)
    return _rate(running_worker(client, table, KEYED_PAGE, lambda: WaitingRecords(meter), ClientConfig()), meter)


def _rate_keyed(client: OTSClient, table: FilledTable, threads: int) -> float:
    meter = Meter(table.records)

    def process(record: StreamRecord) -> None:
        meter.start()
        threading.Event().wait(RECORD_SECONDS)
        meter.add(1)

    factory = KeyedProcessorFactory(process, threads=threads)
    return _rate(running_worker(client, table, KEYED_PAGE, factory, ClientConfig()), meter)


def _rate(running: AbstractContextManager[Worker], meter: Meter) -> float:
    with running as worker:
        meter.wait(worker)
    return meter.rate
