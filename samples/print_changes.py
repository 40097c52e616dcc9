"""Print every change of a table: the processor alone, for ``streamclient run``.

Start ``streamclient server`` in another terminal, then::

    streamclient tables create orders
    streamclient run print_changes:PrintChanges --data-table orders --group printer

and write rows with any client of Tablestore. A group has positions of its own: a worker prints what is new to its
group.
"""

from streamclient import (
    InitializationInput,
    IRecordProcessor,
    ProcessRecordsInput,
    ShutdownInput,
    ShutdownReason,
    readable_position,
)


class PrintChanges(IRecordProcessor):
    """Prints records; one instance per shard."""

    def initialize(self, initialization_input: InitializationInput) -> None:
        shard_id = initialization_input.shard_info.shard_id
        start = readable_position(initialization_input.initial_checkpoint)
        print(f"shard {shard_id[:8]}: reading from {start}", flush=True)

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        for record in process_records_input.records:
            print(record, flush=True)
        process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        if shutdown_input.shutdown_reason is ShutdownReason.TERMINATE:  # the shard has ended, and its children wait
            shutdown_input.checkpointer.checkpoint()
