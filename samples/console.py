"""Print every change of a table: the smallest complete consumer.

Start ``streamclient server`` in another terminal, then run this program. It creates a table with a stream, writes three
changes, and reads them back through a worker.
"""

import sys
import threading

from streamclient import (
    ClientConfig,
    InitializationInput,
    IRecordProcessor,
    IRecordProcessorFactory,
    ProcessRecordsInput,
    ShutdownInput,
    StreamClientError,
    StreamConfig,
    Worker,
    readable_position,
)
from streamclient.tablestore import StreamSpecification, TablestoreStreamApi, connect
from tablestore import (
    CapacityUnit,
    Condition,
    OTSClient,
    ReservedThroughput,
    Row,
    RowExistenceExpectation,
    TableMeta,
    TableOptions,
)

WRITTEN = 3
all_seen = threading.Event()


class RecordProcessor(IRecordProcessor):
    """Prints the records of one shard."""

    def __init__(self, worker_identifier: str) -> None:
        self.worker_identifier = worker_identifier
        self.seen = 0

    def initialize(self, initialization_input: InitializationInput) -> None:
        start = readable_position(initialization_input.initial_checkpoint)
        print(f"{self.worker_identifier} reads from {start}")

    def process_records(
        self,
        process_records_input: ProcessRecordsInput,
    ) -> None:
        for record in process_records_input.records:
            print("record:", record)
        process_records_input.checkpointer.checkpoint()
        self.seen += len(process_records_input.records)
        if self.seen >= WRITTEN:
            all_seen.set()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        print("shutdown:", shutdown_input.shutdown_reason.value)


class RecordProcessorFactory(IRecordProcessorFactory):
    """Makes one processor for each shard whose lease the worker takes."""

    def __init__(self, worker_identifier: str) -> None:
        self.worker_identifier = worker_identifier

    def create_processor(self) -> IRecordProcessor:
        return RecordProcessor(self.worker_identifier)


def make_table_with_stream(client: OTSClient) -> None:
    streams = TablestoreStreamApi(client)
    if streams.list_stream("teststream"):
        return
    streams.create_table(
        TableMeta("teststream", [("id", "STRING")]),
        TableOptions(),
        ReservedThroughput(CapacityUnit(0, 0)),
        stream=StreamSpecification(enable_stream=True, expiration_time_hours=24),
    )


def write_three_changes(client: OTSClient) -> None:
    any_state = Condition(RowExistenceExpectation.IGNORE)
    client.put_row("teststream", Row([("id", "a")], [("city", "Hangzhou"), ("visits", 1)]), any_state)
    client.update_row("teststream", Row([("id", "a")], {"put": [("visits", 2)], "delete_all": ["city"]}), any_state)
    client.delete_row("teststream", Row([("id", "a")]), any_state)


def new_worker(worker_identifier: str, client: OTSClient) -> Worker:
    stream_config = StreamConfig(client=client, data_table_name="teststream", status_table_name="statusTable")
    return Worker(worker_identifier, ClientConfig(), stream_config, RecordProcessorFactory(worker_identifier))


def main() -> None:
    client = connect()  # connects to the instance in the TABLESTORE_... variables, or to a local server
    make_table_with_stream(client)
    write_three_changes(client)
    with new_worker("worker1", client) as worker:
        worker.wait(until=all_seen.is_set)


if __name__ == "__main__":
    try:
        main()
    except StreamClientError as error:  # the text says in one sentence what is wrong
        sys.exit(str(error))
