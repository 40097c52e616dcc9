"""A worker as a process of its own that stops at record 2: endpoint, keys, instance, tables, name, and what it does."""

from __future__ import annotations

import sys

from stuck_workers import QUICK, Steady
from tablestore import OTSClient

from streamclient import ClientConfig, FailurePolicy, OnFailure, StreamConfig, Worker
from streamclient.interfaces import ProcessRecordsInput

NEVER_STORES = "never-stores"
BAD = 2


class Stopping(Steady):
    """Refuses the bad record."""

    stores = True

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        if any(record["n"] == BAD for record in process_records_input.records):
            raise ValueError("bad record")
        if self.stores:
            super().process_records(process_records_input)


def main(arguments: list[str]) -> None:
    *connection, table, status_table, name = arguments[:7]
    Stopping.stores = NEVER_STORES not in arguments
    stream = StreamConfig(client=OTSClient(*connection), data_table_name=table, status_table_name=status_table)
    policy = FailurePolicy(retries=0, first_pause_millis=0, then=OnFailure.STOP_SHARD)
    Worker(name, ClientConfig(**{**QUICK, "failure_policy": policy}), stream, Stopping).run()


if __name__ == "__main__":
    main(sys.argv[1:])
