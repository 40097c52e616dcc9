"""A program of a user, as type checkers read it; it is never run."""

from __future__ import annotations

from collections.abc import Sequence

import streamclient
from streamclient import (
    AsyncBatch,
    Batch,
    ClientConfig,
    ConfigurationError,
    FailurePolicy,
    FileParkingStore,
    InitializationInput,
    InitialPosition,
    IRecordProcessor,
    OnFailure,
    Prefetch,
    ProcessRecordsInput,
    ShutdownInput,
    ShutdownReason,
    StreamConfig,
    StreamRecord,
    Worker,
    aio,
)
from streamclient.destinations import DeltaDestination, verify
from streamclient.server import LocalTablestore
from streamclient.tunnel import TunnelClient, TunnelType, TunnelWorker, TunnelWorkerConfig


class Printer(IRecordProcessor):
    def initialize(self, initialization_input: InitializationInput) -> None:
        print(initialization_input.shard_info.shard_id)

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        for record in process_records_input.records:
            print(record.record_type.value, record.get("amount"), record.sequence_info.timestamp_micros)
        process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        if shutdown_input.shutdown_reason is ShutdownReason.TERMINATE:
            shutdown_input.checkpointer.checkpoint()


def handle(batch: Batch) -> None:
    print(batch.table, len(batch))


def handle_records(records: Sequence[StreamRecord]) -> None:
    print(len(records))


async def handle_in_a_loop(batch: AsyncBatch) -> None:
    print(batch.table, len(batch))


def stream_config() -> StreamConfig:
    return StreamConfig(client=streamclient.connect(), data_table_name="orders", status_table_name="orders_status")


def worker() -> Worker:
    policy = FailurePolicy(retries=1, then=OnFailure.PARK, parking=FileParkingStore("parked"))
    config = ClientConfig(failure_policy=policy, prefetch=Prefetch(prefetch_bytes=0), balance_by="count")
    named = StreamConfig(
        client=streamclient.connect(),
        data_table_name="visits",
        status_table_name="orders_status",
        name="visits",
        initial_position=InitialPosition.latest(),
        record_processor_factory=handle,
    )
    return Worker("w1", config, [stream_config(), named], Printer)


async def in_a_loop() -> None:
    await aio.changes("orders", group="a", initial_position="latest").run(handle_in_a_loop)


def main() -> None:
    with LocalTablestore() as local, worker() as running:
        running.wait(1.0)
        tunnels = TunnelClient(local.client())
        tunnel_id = tunnels.create_tunnel("orders", "t", TunnelType.BASE_AND_STREAM)
        with TunnelWorker(tunnel_id, tunnels, handle_records, TunnelWorkerConfig()) as reading:
            reading.wait(1.0)
    try:
        print(verify(DeltaDestination("lake"), with_rows=True).is_whole)
    except ConfigurationError as error:
        print(error)


if __name__ == "__main__":
    main()
