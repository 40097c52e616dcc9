"""A program with a worker, which says at which step it is: ``signalled_worker.py ENDPOINT FILE``; a signal ends it."""

from __future__ import annotations

import sys
from typing import Any


def step(name: str) -> None:
    """Say where it is."""
    print(name, flush=True)


def main() -> None:
    """Consume until a signal comes."""
    step("begun")
    from tablestore import OTSClient

    from streamclient import ClientConfig, IRecordProcessor, StreamConfig, Worker
    from streamclient.base.processes import unique_name
    from streamclient.server.auth import DEFAULT_ACCESS_KEY_ID, DEFAULT_ACCESS_KEY_SECRET, DEFAULT_INSTANCE

    step("imported")
    endpoint, path = sys.argv[1:]

    class Writes(IRecordProcessor):
        def initialize(self, initialization_input: Any) -> None:
            step("initialized")

        def process_records(self, process_records_input: Any) -> None:
            with open(path, "a", encoding="utf-8") as file:
                file.writelines(f"{record.key['id']}\n" for record in process_records_input.records)
            step("processed")
            process_records_input.checkpointer.checkpoint()
            step("stored")

        def shutdown(self, shutdown_input: Any) -> None:
            step("shut down")

    client = OTSClient(endpoint, DEFAULT_ACCESS_KEY_ID, DEFAULT_ACCESS_KEY_SECRET, DEFAULT_INSTANCE)
    config = StreamConfig(client=client, data_table_name="orders", status_table_name="status", max_records=20)
    quick = ClientConfig.for_lease(2, sync_shard_interval_millis=200)
    worker = Worker(unique_name(), quick, config, Writes)
    step("made")
    try:
        worker.run()
    finally:
        step("ended")


if __name__ == "__main__":
    main()
