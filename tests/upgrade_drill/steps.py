"""What one version of the package does in the drill: ``python -I steps.py WHAT JSON``, where that version is installed.

It imports nothing but the installed package, and of that only names that versions of years have.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import IO, Any

from tablestore import OTSClient

from streamclient import (
    ClientConfig,
    FailurePolicy,
    FileParkingStore,
    InitializationInput,
    IRecordProcessor,
    OnFailure,
    ProcessRecordsInput,
    ShutdownInput,
    ShutdownReason,
    StreamConfig,
    TableParkingStore,
    Worker,
    replay_parked,
)

FENCED = 3
"""Exit code of a writer that was refused because a later one has committed."""

LEASE_MILLIS = 6_000
BEAT_MILLIS = 1_000
WORK_SECONDS = 0.02
"""How long a batch takes, so that kills fall between its delivery and its checkpoint."""

COMMIT_RECORDS = 7


def client_of(given: dict[str, Any]) -> OTSClient:
    return OTSClient(*given["client"], logger_name="streamclient-upgrade-drill")


def store_of(given: dict[str, Any]) -> Any:
    kind, place = given["parking"]
    return TableParkingStore(client_of(given), place) if kind == "table" else FileParkingStore(place)


class Writing(IRecordProcessor):
    """Writes down each batch that it accepts, then checkpoints. It refuses records whose column ``bad`` is 1."""

    def __init__(self, name: str, lines: IO[str]) -> None:
        self._name, self._lines, self._pause = name, lines, threading.Event()

    def initialize(self, initialization_input: InitializationInput) -> None:
        self._shard = initialization_input.shard_info
        self._is_replay = initialization_input.is_replay
        self._life = f"{self._name}/{uuid.uuid4().hex[:8]}"

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        records = process_records_input.records
        if not self._is_replay:
            self._pause.wait(WORK_SECONDS)
            if any(record.values.get("bad") == 1 for record in records):
                raise ValueError("a bad record")
        entries = [
            [json.dumps([list(pair) for pair in record.primary_key]), *self._place(record)] for record in records
        ]
        line = {
            "worker": self._name,
            "shard": self._shard.shard_id,
            "life": self._life,
            "epoch": self._shard.epoch,
            "at": time.monotonic_ns(),
            "records": entries,
        }
        self._lines.write(json.dumps(line) + "\n")
        self._lines.flush()
        process_records_input.checkpointer.checkpoint()

    def _place(self, record: Any) -> tuple[int, int, int]:
        sequence = record.sequence_info
        return sequence.epoch, sequence.timestamp_micros, sequence.row_index

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        if shutdown_input.shutdown_reason is ShutdownReason.TERMINATE:
            shutdown_input.checkpointer.checkpoint()


def policy_of(given: dict[str, Any]) -> FailurePolicy:
    if "parking" not in given:
        return FailurePolicy()
    return FailurePolicy(
        retries=0,
        first_pause_millis=0,
        then=OnFailure.PARK,
        parking=store_of(given),
        most_parked_share=1.0,
        share_window_records=10_000,
    )


def work(given: dict[str, Any]) -> None:
    """Work as one worker until a SIGTERM comes."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    config = ClientConfig(
        lease_duration_millis=LEASE_MILLIS,
        renewer_interval_millis=BEAT_MILLIS,
        taker_interval_millis=BEAT_MILLIS,
        sync_shard_interval_millis=1_000,
        max_idle_poll_interval_millis=200,
        shutdown_timeout_millis=20_000,
        failure_policy=policy_of(given),
    )
    stream = StreamConfig(
        client=client_of(given),
        data_table_name=given["table"],
        status_table_name=given["status_table"],
        max_records=50,
    )
    with Path(given["lines"]).open("a", encoding="utf-8") as lines:
        name = given["name"]
        with Worker(name, config, stream, lambda: Writing(name, lines)) as worker:
            worker.wait(until=stop.is_set)


def replay(given: dict[str, Any]) -> None:
    """Replay everything that is parked."""
    with Path(given["lines"]).open("a", encoding="utf-8") as lines:
        report = replay_parked(store_of(given), lambda: Writing(given["name"], lines))
    assert not report.left, [str(left) for left in report.left]


def destination_of(kind: str, place: str) -> Any:
    from streamclient.destinations import DeltaDestination, IcebergDestination, PostgresDestination

    if kind == "delta":
        return DeltaDestination(f"{place}/rows", answer_seconds=60.0)
    if kind == "postgres":
        return PostgresDestination(place, "orders", answer_seconds=60.0)
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("drill", uri=f"sqlite:///{place}/catalog.db?timeout=60", warehouse=f"file://{place}/data")
    catalog.create_namespace_if_not_exists("lake")
    return IcebergDestination(catalog, "lake.orders", answer_seconds=60.0)


def commit(given: dict[str, Any]) -> None:
    """Commit the records of a shard, a few at a time, from where the destination's last commit ends."""
    from streamclient.destinations import Commit, FencedCommit, change_rows, records_digest
    from streamclient.testing.contracts.destination_contract import change

    destination, shard = destination_of(given["kind"], given["place"]), given["shard"]
    while True:
        last = destination.last_commits([shard])[shard]
        start = 0 if last is None else int(last.end)
        end = min(given["records"], start + COMMIT_RECORDS)
        if start == end:
            return
        records = [change(number, value=f"{shard} {number}") for number in range(start, end)]
        made = Commit.after(
            last,
            application="default",
            shard=shard,
            epoch=given["epoch"],
            start=str(start),
            end=str(end),
            count=len(records),
            content=records_digest(records),
        )
        rows = change_rows(records, shard=shard, number=made.number, columns=destination.columns())
        try:
            destination.commit(rows, [made])
        except FencedCommit:
            sys.exit(FENCED)


if __name__ == "__main__":
    {"work": work, "replay": replay, "commit": commit}[sys.argv[1]](json.loads(sys.argv[2]))
