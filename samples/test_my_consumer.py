"""Test a record processor without a server; run it with ``pytest samples/test_my_consumer.py``."""

from __future__ import annotations

from streamclient import (
    InitializationInput,
    IRecordProcessor,
    ProcessRecordsInput,
    ShutdownInput,
)
from streamclient.testing import put, run


class Sum(IRecordProcessor):
    """Adds up the amounts of all orders."""

    total = 0

    def initialize(self, initialization_input: InitializationInput) -> None:
        pass

    def process_records(
        self,
        process_records_input: ProcessRecordsInput,
    ) -> None:
        for record in process_records_input.records:
            self.total += int(record.columns[0].value or 0)
        process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        pass


def test_sum() -> None:
    sums = Sum()
    done = run(lambda: sums, [put("a", amount=12), put("b", amount=30)])
    assert sums.total == 42
    assert done.checkpoints == (2,)
