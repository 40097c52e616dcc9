"""Test a record processor with ``stream_simulation``; run it with ``pytest samples/test_my_processor.py``.

The processor collects changes, and writes them to a warehouse ten at a time. ``HastyProcessor`` has a mistake that no
ordinary test finds: it stores a checkpoint before its buffer is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from streamclient import (
    InitializationInput,
    IRecordProcessor,
    ProcessRecordsInput,
    ShutdownInput,
    ShutdownReason,
)
from streamclient.testing import Faults, Run, SimulationFailed

if TYPE_CHECKING:
    from streamclient.testing import StreamSimulation

BUFFER_SIZE = 10


class Warehouse:
    """Keeps the newest number of each row, like a table updated by key."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}

    def write(self, changes: list[tuple[str, int]]) -> None:
        self.rows.update(changes)

    def check(self, run: Run) -> None:
        """Check that the warehouse has the newest number of every row."""
        items = run.newest.items()
        stale = {key: new for key, new in items if self.rows.get(key) != new}
        some = sorted(stale)[:3]
        assert not stale, f"{len(stale)} rows are not up to date: {some}"


class PatientProcessor(IRecordProcessor):
    """Stores a checkpoint once all changes before it are in the warehouse."""

    def __init__(self, warehouse: Warehouse) -> None:
        self.warehouse = warehouse
        self.buffer: list[tuple[str, int]] = []

    def initialize(self, initialization_input: InitializationInput) -> None:
        pass

    def process_records(
        self,
        process_records_input: ProcessRecordsInput,
    ) -> None:
        for record in process_records_input.records:
            self.buffer.append((record["id"], record["number"]))
        if len(self.buffer) >= BUFFER_SIZE:
            self.flush()
            process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        if shutdown_input.shutdown_reason is not ShutdownReason.ZOMBIE:
            self.flush()
            shutdown_input.checkpointer.checkpoint()

    def flush(self) -> None:
        self.warehouse.write(self.buffer)
        self.buffer = []


class HastyProcessor(PatientProcessor):
    """Stores a checkpoint after each batch, before its buffer is written."""

    def process_records(
        self,
        process_records_input: ProcessRecordsInput,
    ) -> None:
        super().process_records(process_records_input)
        process_records_input.checkpointer.checkpoint()


FAULTS = [
    Faults.crash(),
    Faults.stop(),
    Faults.split(),
    Faults.lost_answers(0.05),
]


def test_every_row_is_up_to_date_in_the_end(
    stream_simulation: StreamSimulation,
) -> None:
    warehouse = Warehouse()
    result = stream_simulation.run(
        lambda: PatientProcessor(warehouse),
        faults=FAULTS,
        seeds=5,
        before=warehouse.rows.clear,
        check=warehouse.check,
    )
    print(result)


def test_a_hasty_processor_is_found_out(
    stream_simulation: StreamSimulation,
) -> None:
    warehouse = Warehouse()
    refusal = "rows are not up to date"
    with pytest.raises(SimulationFailed, match=refusal) as failure:
        stream_simulation.run(
            lambda: HastyProcessor(warehouse),
            faults=FAULTS,
            before=warehouse.rows.clear,
            check=warehouse.check,
        )
    print(failure.value)
