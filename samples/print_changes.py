"""Print every change of a table: the processor alone, for ``streamclient run``.

Start ``streamclient server`` in another terminal, then::

    streamclient tables create orders
    streamclient run print_changes:PrintChanges --data-table orders --group printer

and write rows with any Tablestore client. Each group stores its own positions, so a worker prints the changes that are
new to its group.
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
    """Prints the records of one shard."""

    def initialize(self, initialization_input: InitializationInput) -> None:
        shard_id = initialization_input.shard_info.shard_id
        start = readable_position(initialization_input.initial_checkpoint)
        print(f"shard {shard_id[:8]}: reading from {start}", flush=True)

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        for record in process_records_input.records:
            print(record, flush=True)
        process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        if shutdown_input.shutdown_reason is ShutdownReason.TERMINATE:  # the children wait for this last checkpoint
            shutdown_input.checkpointer.checkpoint()
