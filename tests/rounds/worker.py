"""One worker process of a round: writes down what it is given, checkpoints, stops on SIGTERM."""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path

from tablestore import OTSClient

from streamclient import (
    ClientConfig,
    InitializationInput,
    IRecordProcessor,
    ProcessRecordsInput,
    ShutdownInput,
    ShutdownReason,
    StreamConfig,
    Worker,
)
from streamclient.testing.deliveries import DeliveryRecorder

LEASE_DURATION_MILLIS = 3_000
"""Short, so that a killed worker's shards move within a round; heartbeats keep a fifth of it, for a busy machine."""

HEARTBEAT_MILLIS = 600


WORK_SECONDS = 0.06
"""How long a batch takes, so that a kill often falls between a batch and its checkpoint."""


class Working(IRecordProcessor):
    """Takes its time, then checkpoints."""

    def __init__(self) -> None:
        self._pause = threading.Event()

    def initialize(self, initialization_input: InitializationInput) -> None:
        pass

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        self._pause.wait(WORK_SECONDS)
        process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        if shutdown_input.shutdown_reason is ShutdownReason.TERMINATE:
            shutdown_input.checkpointer.checkpoint()


def client_config() -> ClientConfig:
    return ClientConfig(
        lease_duration_millis=LEASE_DURATION_MILLIS,
        renewer_interval_millis=HEARTBEAT_MILLIS,
        taker_interval_millis=HEARTBEAT_MILLIS,
        sync_shard_interval_millis=1_000,
        max_idle_poll_interval_millis=200,
        shutdown_timeout_millis=10_000,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in (
        "endpoint",
        "access-key-id",
        "access-key-secret",
        "instance",
        "table",
        "status-table",
        "name",
        "lines",
    ):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--max-records", type=int, default=100)
    options = parser.parse_args()
    client = OTSClient(
        options.endpoint,
        options.access_key_id,
        options.access_key_secret,
        options.instance,
        logger_name="streamclient-rounds",
    )
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    stream_config = StreamConfig(
        client=client,
        data_table_name=options.table,
        status_table_name=options.status_table,
        max_records=options.max_records,
    )
    with Path(options.lines).open("a", encoding="utf-8") as lines:
        worker = Worker(
            options.name, client_config(), stream_config, lambda: DeliveryRecorder(options.name, lines, Working())
        )
        thread = threading.Thread(target=worker.run, name="worker")
        thread.start()
        while thread.is_alive() and not stop.wait(0.2):
            pass
        worker.shutdown()
        thread.join()
    if worker.exception is not None:
        raise SystemExit(f"worker failed: {worker.exception!r}")


if __name__ == "__main__":
    main()
