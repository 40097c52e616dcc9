"""Write every record to a file exactly once by two-phase checkpoints, even if the process is killed in between.

The program starts a local Tablestore for itself. A worker process writes each batch to a new file. At random it kills
itself: before it prepares a batch, between preparing and committing the batch, or between committing the batch and
storing the checkpoint. The lease tells the next process which batch was prepared. That process then checks whether the
file of the batch exists.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from pathlib import Path

from streamclient import (
    ClientConfig,
    InitializationInput,
    IRecordProcessor,
    ProcessRecordsInput,
    ShutdownInput,
    StreamConfig,
    Worker,
)
from streamclient.server import LocalTablestore
from streamclient.tablestore import Connection, StreamSpecification, TablestoreStreamApi
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

RECORDS = 300
BATCH = 25
MOMENTS = ("before", "prepared", "committed")
QUICK = ClientConfig(
    lease_duration_millis=3_000,
    renewer_interval_millis=500,
    taker_interval_millis=500,
    sync_shard_interval_millis=500,
)


class FileSink(IRecordProcessor):
    """Writes one file per batch. A file gets its final name when its content is complete."""

    def __init__(self, directory: Path, chance_of_death: float) -> None:
        self.directory = directory
        self.chance_of_death = chance_of_death

    def initialize(self, initialization_input: InitializationInput) -> None:
        self.replayed_shard = initialization_input.shard_info.shard_id if initialization_input.is_replay else None
        pending = initialization_input.pending_checkpoint
        if pending is not None and self.path(pending.state.decode()).exists():
            # The batch was committed. Only its checkpoint is missing.
            initialization_input.checkpointer.checkpoint(pending.value)

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        self.perhaps_die("before")
        name = str(uuid.uuid4())
        if self.replayed_shard is not None:
            # In a replay, the record's position is the name of the file. So a second replay overwrites the file.
            place = process_records_input.records[0].sequence_info
            name = f"{self.replayed_shard}-{place.epoch}-{place.timestamp_micros}-{place.row_index}"
        prepared = process_records_input.checkpointer.prepare_checkpoint(None, name.encode())
        self.perhaps_die("prepared")
        self.commit(name, [int(record["id"]) for record in process_records_input.records])
        self.perhaps_die("committed")
        prepared.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        pass

    def commit(self, name: str, ids: list[int]) -> None:
        draft = self.directory / f"{name}.draft"
        with draft.open("w") as file:
            json.dump(ids, file)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(self.path(name))

    def path(self, name: str) -> Path:
        return self.directory / f"{name}.json"

    def perhaps_die(self, moment: str) -> None:
        if random.random() < self.chance_of_death:
            with (self.directory / "deaths").open("a") as file:
                file.write(f"{moment}\n")
            os.kill(os.getpid(), signal.SIGKILL)


def written(directory: Path) -> list[int]:
    return [number for path in directory.glob("*.json") for number in json.loads(path.read_text())]


def work(endpoint: str, directory: Path, seed: int) -> None:
    """Run a worker until every record is in a file, or until the worker kills its own process."""
    random.seed(seed)
    client = Connection(endpoint=endpoint).client()
    config = StreamConfig(client=client, data_table_name="visits", status_table_name="status", max_records=BATCH)
    with Worker("worker-1", QUICK, config, lambda: FileSink(directory, chance_of_death=0.12)) as worker:
        worker.wait(until=lambda: len(written(directory)) == RECORDS)


def fill(client: OTSClient) -> None:
    TablestoreStreamApi(client).create_table(
        TableMeta("visits", [("id", "INTEGER")]),
        TableOptions(),
        ReservedThroughput(CapacityUnit(0, 0)),
        stream=StreamSpecification(enable_stream=True, expiration_time_hours=24),
    )
    for number in range(RECORDS):
        client.put_row("visits", Row([("id", number)], []), Condition(RowExistenceExpectation.IGNORE))


def main(seed: int = 0) -> None:
    with LocalTablestore() as local, tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        fill(local.client())
        ended = -signal.SIGKILL
        while ended == -signal.SIGKILL:
            seed += 1
            program = [sys.executable, __file__, local.endpoint, name, str(seed)]
            ended = subprocess.run(program, timeout=600, check=False).returncode
        if ended != 0:
            raise SystemExit(f"the worker process failed with {ended}")
        times = Counter(written(directory))
        deaths = Counter((directory / "deaths").read_text().split())
        print("killed", ", ".join(f"{moment}: {deaths[moment]}" for moment in MOMENTS))
        print(f"{len(times)} records of {RECORDS}, each {sorted(set(times.values()))} times")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        work(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main(*map(int, sys.argv[1:]))
