"""The processors of the drill's workers, as ``streamclient run`` and ``streamclient console --processor`` name them."""

from __future__ import annotations

import os
from pathlib import Path

from streamclient import (
    InitializationInput,
    IRecordProcessor,
    ProcessRecordsInput,
    ShutdownInput,
    ShutdownReason,
)
from streamclient.records import StreamRecord

LAKE, REPLAYED = "DRILL_LAKE", "DRILL_REPLAYED"
"""The variables that name the directory of the lake, and the file that a replay writes."""


class Checking(IRecordProcessor):
    """Reads the amount of each order, and refuses one that is not a number."""

    def initialize(self, initialization_input: InitializationInput) -> None:
        pass

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        for record in process_records_input.records:
            amount_of(record)
        process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        if shutdown_input.shutdown_reason is ShutdownReason.TERMINATE:
            shutdown_input.checkpointer.checkpoint()


class Keeping(Checking):
    """Stores each batch in a Delta table, exactly once: the commit is prepared in the lease before it is made."""

    def initialize(self, initialization_input: InitializationInput) -> None:
        from streamclient.destinations import DeltaDestination

        self._lake = DeltaDestination(os.environ[LAKE])
        self._shard = initialization_input.shard_info
        self._at = initialization_input.initial_checkpoint

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        from streamclient.destinations import Commit, change_rows, records_digest

        records, checkpointer = process_records_input.records, process_records_input.checkpointer
        for record in records:
            amount_of(record)
        shard, end = self._shard, checkpointer.largest_permitted_checkpoint_value
        commit = Commit.after(
            self._lake.last_commits([shard.shard_id])[shard.shard_id],
            application="default",
            shard=shard.shard_id,
            epoch=shard.epoch,
            start=self._at,
            end=end,
            count=len(records),
            content=records_digest(records),
        )
        prepared = checkpointer.prepare_checkpoint(end, commit.to_json().encode())
        rows = change_rows(records, shard=shard.shard_id, number=commit.number, columns=self._lake.columns())
        self._lake.commit(rows, [commit])
        prepared.checkpoint()
        self._at = end


class Mended(Checking):
    """Takes every amount, and writes the keys of what it was given into a file."""

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        with Path(os.environ[REPLAYED]).open("a", encoding="utf-8") as lines:
            lines.writelines(f"{record['id']}\n" for record in process_records_input.records)
        process_records_input.checkpointer.checkpoint()


def amount_of(record: StreamRecord) -> int:
    """Return the amount of an order; a text is refused, as a strict program does."""
    amount = record["amount"]
    if not isinstance(amount, int):
        raise ValueError(f"amount must be a number, not {amount!r}")
    return amount
