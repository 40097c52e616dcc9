"""Processes killed and frozen at random steps, over each real destination: each record is stored once.

More rounds: ``python tests/destinations/test_destination_rounds.py delta 30``.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from attrs import define, field
from postgres_server import PostgresServer
from rounds_worker import RECORDS, SHARDS, Status, opened, records_of_shard

from streamclient.destinations import records_digest, records_of
from streamclient.destinations.verify import verify

ROUNDS = 5
STEPS_MAX = 12


@contextmanager
def place_for(kind: str, directory: Path) -> Iterator[str]:
    if kind == "postgres":
        with PostgresServer() as server:
            yield server.conninfo
    elif kind == "iceberg":
        from pyiceberg.catalog.sql import SqlCatalog

        catalog = SqlCatalog("rounds", uri=f"sqlite:///{directory}/catalog.db", warehouse=f"file://{directory}/data")
        catalog.create_namespace("lake")
        catalog.engine.dispose()
        yield str(directory)
    else:
        yield str(directory / "table")


@define
class Rounds:
    kind: str
    place: str
    status: Path
    dice: random.Random
    said: Counter[str] = field(factory=Counter)
    running: list[subprocess.Popen[str]] = field(factory=list)

    def start(self) -> subprocess.Popen[str]:
        program = Path(__file__).with_name("rounds_worker.py")
        shards = self.dice.sample(SHARDS, len(SHARDS))
        seed = str(self.dice.random())
        command = [sys.executable, str(program), self.kind, self.place, str(self.status), seed, *shards]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.running.append(process)
        return process

    def steps(self, process: subprocess.Popen[str], count: int) -> bool:
        """Let it do so many steps; whether it is still running."""
        assert process.stdout is not None
        for _ in range(count):
            line = process.stdout.readline().strip()
            if not line:
                return False
            self.said[line] += 1
        return True

    def finish(self, process: subprocess.Popen[str]) -> None:
        while self.steps(process, 1):
            pass
        assert process.wait(120) in {0, -signal.SIGKILL}
        assert process.stdout is not None
        process.stdout.close()
        self.running.remove(process)

    def kill(self) -> None:
        """One dies at a random step; it may be in the middle of the next one by then."""
        process = self.start()
        self.steps(process, self.dice.randint(1, STEPS_MAX))
        process.kill()
        self.said["killed"] += 1
        self.finish(process)

    def freeze(self) -> None:
        """One freezes, another takes its shards and commits, and the first one wakes up."""
        frozen = self.start()
        is_running = self.steps(frozen, self.dice.randint(2, STEPS_MAX))
        if is_running:
            frozen.send_signal(signal.SIGSTOP)
            self.said["frozen"] += 1
        successor = self.start()
        # At least one commit of its own, with which the fence is in.
        self.steps(successor, self.dice.randint(3, STEPS_MAX))
        frozen.send_signal(signal.SIGCONT)
        self.finish(frozen)
        successor.kill()
        self.finish(successor)

    def stop(self) -> None:
        for process in list(self.running):
            process.kill()
            self.finish(process)


def run_rounds(kind: str, rounds: int, seed: int, directory: Path) -> Counter[str]:
    with place_for(kind, directory) as place:
        all_rounds = Rounds(kind, place, directory / "status.db", random.Random(seed))
        try:
            for number in range(rounds):
                all_rounds.freeze() if number % 2 else all_rounds.kill()
            all_rounds.finish(all_rounds.start())
        finally:
            all_rounds.stop()
        compare(kind, place, all_rounds.status)
        return all_rounds.said


def compare(kind: str, place: str, path: Path) -> None:
    destination, status = opened(kind, place), Status(path)
    try:
        proof = verify(destination, with_rows=True, checkpoints=status.checkpoints())
        assert proof.is_whole, str(proof)
        assert proof.rows == RECORDS * len(SHARDS)
        for shard in SHARDS:
            found = [record for table in destination.rows([shard]) for record in records_of(table)]
            assert records_digest(found) == records_digest(records_of_shard(shard, 0, RECORDS))
    finally:
        destination.close()
        status.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "postgres", "iceberg"])
def test_workers_that_are_killed_and_frozen_store_each_record_once(kind: str, tmp_path: Path) -> None:
    said = run_rounds(kind, ROUNDS, 1, tmp_path)

    assert said["killed"] >= 2
    assert said["frozen"] >= 1
    assert said["finished"] >= 1


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        print(dict(run_rounds(sys.argv[1], int(sys.argv[2]), int((sys.argv[3:] or ["1"])[0]), Path(name))))
