"""Processes killed and frozen at random steps, over each real destination: each record is stored once.

A run counts the writers that a destination refused since they were fenced, and is not accepted without one. Beside the
writers of a Delta table another process compacts it and clears its log.

More rounds: ``python -m tests.destinations.test_destination_rounds delta 30``, also ``spark`` (Delta Lake behind the
Spark processor), ``iceberg`` and ``postgres``; all of them are ``make destination-rounds``.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest
from attrs import define, evolve, field

from streamclient.destinations import Commit, records_digest, records_of
from streamclient.destinations.proof.verification import verify
from streamclient.records import StreamRecord
from tests.destinations.postgres_server import PostgresServer
from tests.destinations.rounds_worker import (
    FREEZING,
    LAST_WORDS,
    SHARDS,
    Status,
    count_of,
    opened,
    records_of_shard,
)
from tests.patience import PATIENCE_SECONDS

ROUNDS = 2
"""One kills, one freezes a writer that has to be refused."""
STEPS_MAX = 12
STEP_SECONDS = 0.1
"""About as long as a step takes; a writer dies at a random time of that."""
BATCHES_MAX = 4
"""Batches of a writer before the one over which it freezes, that one counted."""
RECORDS_PER_ROUND = 120
"""Of each shard: more than the workers of a round store, so that the last rounds have something left to do."""


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


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Nobody reads or writes the file meanwhile."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=PATIENCE_SECONDS)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield
        connection.execute("ROLLBACK")


@define
class Rounds:
    kind: str
    place: str
    status: Path
    dice: random.Random
    records: int
    said: Counter[str] = field(factory=Counter)
    running: list[subprocess.Popen[str]] = field(factory=list)

    def start(self, *, freezes_at: int = 0) -> subprocess.Popen[str]:
        program = Path(__file__).with_name("rounds_worker.py")
        shards = self.dice.sample(SHARDS, len(SHARDS))
        seed = str(self.dice.random())
        command = [sys.executable, str(program), self.kind, self.place, str(self.status), seed]
        command += [str(self.records), str(freezes_at), *shards]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.running.append(process)
        return process

    def steps(self, process: subprocess.Popen[str], count: int) -> bool:
        """Let it do so many steps, and begin the next one; whether it is still running."""
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(count):
            line = process.stdout.readline().strip()
            if not line:
                return False
            self.said[line] += 1
            with suppress(BrokenPipeError):  # it is dead, and what it said last was still to be read
                if line not in LAST_WORDS:
                    os.write(process.stdin.fileno(), b"\n")
        return True

    def finish(self, process: subprocess.Popen[str]) -> None:
        while self.steps(process, 1):
            pass
        assert process.wait(PATIENCE_SECONDS) in {0, -signal.SIGKILL}
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
        self.running.remove(process)

    def kill(self) -> None:
        """One dies at a random step, and somewhere in it: often when its batch is stored, and it does not know."""
        process = self.start()
        if self.until(process, "prepared") and self.steps(process, self.dice.randint(0, STEPS_MAX)):
            threading.Event().wait(self.dice.uniform(0, STEP_SECONDS))
        process.kill()
        self.said["killed"] += 1
        self.finish(process)
        self.said["stored, not yet known"] += self.is_unknown()

    def is_unknown(self) -> bool:
        """Whether a prepared batch is stored whose writer has not noted that."""
        destination, status = opened(self.kind, self.place), Status(self.status)
        try:
            lasts = destination.last_commits(SHARDS)
            pending = {shard: status.row(shard)[2] for shard in status.checkpoints()}
            return any(
                text and last is not None and last.digest == Commit.from_json(text).digest
                for shard, text in pending.items()
                for last in [lasts[shard]]
            )
        finally:
            destination.close()
            status.close()

    def freeze(self) -> None:
        """One freezes, another takes its shards and commits to each, and the first one wakes up.

        Two of three freeze between preparing a batch and storing it, so that the destination has to refuse them:
        wherever else a writer freezes, it may look at its lease first. The third freezes anywhere.
        """
        is_exact = self.said["frozen"] % 3 < 2
        frozen = self.start(freezes_at=self.dice.randint(1, BATCHES_MAX) if is_exact else 0)
        is_running = self.until(frozen, FREEZING) if is_exact else self.steps(frozen, self.dice.randint(1, STEPS_MAX))
        if is_running:
            self.stop_still(frozen, is_exact=is_exact)
            self.said["frozen"] += 1
        self.succeed()
        frozen.send_signal(signal.SIGCONT)
        refused = self.said["fenced"]
        self.finish(frozen)
        assert not is_exact or self.said["fenced"] == refused + 1, f"a fenced writer was not refused: {self.said}"

    def succeed(self) -> None:
        """Another worker takes all shards and commits to each behind what is prepared there, then dies.

        What is prepared it stores as it is, and a repeat of that is no news from anybody; with the next one the fence
        is in.
        """
        before = self.places(is_prepared=True)
        successor = self.start()
        while any(place <= before[shard] for shard, place in self.places().items()):
            assert self.steps(successor, 1), f"it ended before each shard had a commit of its own: {self.said}"
        self.steps(successor, self.dice.randint(1, STEPS_MAX))
        successor.kill()
        self.finish(successor)

    def places(self, *, is_prepared: bool = False) -> dict[str, int]:
        """How far each shard is stored, or is at least prepared."""
        status = Status(self.status)
        rows = {shard: status.row(shard) for shard in status.checkpoints()}
        status.close()
        return {
            shard: count_of(Commit.from_json(pending).end) if is_prepared and pending else checkpoint
            for shard, (_, checkpoint, pending) in rows.items()
        }

    def stop_still(self, process: subprocess.Popen[str], *, is_exact: bool) -> None:
        """Freeze it anywhere but in a file of SQLite, which its successor could not use then: status table, catalog."""
        files = [self.status, *([Path(self.place) / "catalog.db"] if self.kind == "iceberg" else [])]
        with ExitStack() as stack:
            for path in [] if is_exact else files:
                stack.enter_context(alone(path))
            if not is_exact:
                process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def until(self, process: subprocess.Popen[str], line: str) -> bool:
        """Let it go on until it says so; whether it is still running."""
        before = self.said[line]
        while self.said[line] == before:
            if not self.steps(process, 1):
                return False
        return True

    @contextmanager
    def maintained(self) -> Iterator[None]:
        """Somebody compacts and cleans meanwhile, where there is somebody for that."""
        if self.kind not in {"delta", "spark"}:
            yield
            return
        program = Path(__file__).with_name("rounds_worker.py")
        command = [sys.executable, str(program), "maintain", self.place]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield
                out, _ = process.communicate(timeout=PATIENCE_SECONDS)
            finally:
                process.kill()
        assert process.returncode == 0
        for name, count in zip(("maintained", "compacted", "entries cleared"), out.split(), strict=True):
            self.said[name] += int(count)

    def stop(self) -> None:
        for process in list(self.running):
            process.kill()
            self.finish(process)


def run_rounds(kind: str, rounds: int, seed: int, directory: Path) -> Counter[str]:
    with place_for(kind, directory) as place:
        records = RECORDS_PER_ROUND * rounds
        all_rounds = Rounds(kind, place, directory / "status.db", random.Random(seed), records)
        try:
            with all_rounds.maintained():
                for number in range(rounds):
                    all_rounds.freeze() if number % 2 else all_rounds.kill()
                all_rounds.finish(all_rounds.start())
        finally:
            all_rounds.stop()
        compare(kind, place, all_rounds.status, records)
        return all_rounds.said


def compare(kind: str, place: str, path: Path, records: int) -> None:
    destination, status = opened(kind, place), Status(path)
    try:
        # What a transform made of the records has another digest, and is compared below.
        proof = verify(destination, with_rows=kind != "spark", checkpoints=status.checkpoints())
        assert proof.is_whole, str(proof)
        for shard in SHARDS:
            found = [record for table in destination.rows([shard]) for record in records_of(table)]
            expected = records_of_shard(shard, 0, records)
            wanted = [transformed(record) for record in expected] if kind == "spark" else expected
            assert len(found) == len(wanted)
            assert records_digest(found) == records_digest(wanted)
    finally:
        destination.close()
        status.close()


def transformed(record: StreamRecord) -> StreamRecord:
    """What the transform of the rounds makes of a record."""
    upper = [evolve(one, value=one.value.upper()) if isinstance(one.value, str) else one for one in record.columns]
    return evolve(record, columns=tuple(upper))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["delta", "postgres", "iceberg", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.long])]
)
def test_workers_that_are_killed_and_frozen_store_each_record_once(kind: str, tmp_path: Path) -> None:
    said = run_rounds(kind, ROUNDS, 1, tmp_path)

    assert said["killed"] >= ROUNDS // 2
    assert said["fenced"] >= ROUNDS // 2
    assert said["finished"] >= 1
    assert kind not in {"delta", "spark"} or said["maintained"] >= 1


def main(kind: str, rounds: str, seed: str = "1") -> None:
    with tempfile.TemporaryDirectory() as name:
        said = run_rounds(kind, int(rounds), int(seed), Path(name))
    print(f"{kind}, {rounds} rounds, each record once:", ", ".join(f"{what} {said[what]}" for what in sorted(said)))
    if not said["fenced"]:
        raise SystemExit("no fenced writer was seen refused: more rounds, or another seed")


if __name__ == "__main__":
    main(*sys.argv[1:])
