"""One worker process of a round: writes down what it is given, stores it in the shared sink, checkpoints."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path
from typing import IO

from samples.fenced_sink import FencedSink
from streamclient import (
    Backoff,
    ClientConfig,
    FencedException,
    InitializationInput,
    IRecordProcessor,
    ProcessRecordsInput,
    ShutdownInput,
    ShutdownReason,
    StreamConfig,
    Worker,
)
from streamclient.testing.deliveries import DeliveryRecorder
from tests.drill_kit import client_of, told

LEASE_DURATION_MILLIS = 3_000
"""Short, so that a killed worker's shards move within a round; heartbeats keep a fifth of it, for a busy machine."""

HEARTBEAT_MILLIS = 600

LONGEST_RESTART_PAUSE_MILLIS = 2_000
"""Processors fail often here, on purpose; a pause of a minute would only make the rounds long."""

WORK_SECONDS = 0.06
"""How long a batch takes before it is stored, so that kills and freezes often fall between its delivery and its end."""


class Working(IRecordProcessor):
    """Takes its time, stores, checkpoints; writes down when the sink refuses it."""

    def __init__(self, sink: FencedSink, refusals: IO[str]) -> None:
        self._sink = sink
        self._refusals = refusals
        self._pause = threading.Event()

    def initialize(self, initialization_input: InitializationInput) -> None:
        self._shard = initialization_input.shard_info
        try:
            self._sink.take_over(self._shard.shard_id, self._shard.epoch)
        except FencedException as error:
            self._write_down(error)
            raise

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        self._pause.wait(WORK_SECONDS)
        try:
            self._sink.store(self._shard.shard_id, self._shard.epoch, process_records_input.records)
        except FencedException as error:
            self._write_down(error)
            raise
        process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        if shutdown_input.shutdown_reason is ShutdownReason.TERMINATE:
            shutdown_input.checkpointer.checkpoint()

    def _write_down(self, error: FencedException) -> None:
        shard, epoch = self._shard.shard_id, self._shard.epoch
        line = {"shard": shard, "epoch": epoch, "at": time.monotonic_ns(), "error": str(error)}
        self._refusals.write(json.dumps(line) + "\n")
        self._refusals.flush()


def client_config() -> ClientConfig:
    return ClientConfig(
        lease_duration_millis=LEASE_DURATION_MILLIS,
        renewer_interval_millis=HEARTBEAT_MILLIS,
        taker_interval_millis=HEARTBEAT_MILLIS,
        sync_shard_interval_millis=1_000,
        max_idle_poll_interval_millis=200,
        backoff=Backoff(restart_backoff_max_millis=LONGEST_RESTART_PAUSE_MILLIS),
        shutdown_timeout_millis=10_000,
    )


def main() -> None:
    given = told()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    stream_config = StreamConfig(
        client=client_of(given, sts_token=given["token"]),
        data_table_name=given["table"],
        status_table_name=given["status_table"],
        max_records=100,
    )
    sink = FencedSink(Path(given["sink"]))
    with (
        Path(given["lines"]).open("a", encoding="utf-8") as lines,
        Path(given["refusals"]).open("a", encoding="utf-8") as refusals,
    ):
        worker = Worker(
            given["name"],
            client_config(),
            stream_config,
            lambda: DeliveryRecorder(given["token"], lines, Working(sink, refusals)),
        )
        with worker:
            worker.wait(until=stop.is_set)
    sink.close()


if __name__ == "__main__":
    main()
