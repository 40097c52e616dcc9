"""``python -m tests.mirror.drill``: a table mirrored by real processes that are killed and frozen, then compared.

Writes of every kind go on meanwhile: rows replaced, changed and deleted, columns that come and go, values of changing
types, versions of the writer's own, single versions deleted. Shards are split and merged. The seed decides what is
written; rounds are counted in writes, so the machine decides only how fast.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from attrs import define, field
from tablestore import (
    CapacityUnit,
    DeleteRowItem,
    PutRowItem,
    ReservedThroughput,
    Row,
    TableMeta,
    TableOptions,
    UpdateRowItem,
)

from streamclient.copying import Mirror
from streamclient.copying.mirror_settings import load_mirror_settings
from streamclient.copying.mirror_source import COPY
from streamclient.destinations import DeltaDestination, PostgresDestination
from streamclient.destinations.proof.verification import verify
from streamclient.errors import StreamClientException
from streamclient.server import LocalTablestore
from streamclient.server.server_errors import ServiceError
from streamclient.tablestore import StreamSpecification, TablestoreStreamApi
from tests.destinations.postgres_server import PostgresServer
from tests.patience import PATIENCE_SECONDS
from tests.replicate.drill import IGNORE, write

TABLE, STATUS = "orders", "orders_mirror_status"
ROWS = 400
FIRST_ROWS = 300
BATCH = 20
WRITES_A_ROUND = 30
SHARDS_MAX = 6
PROCESSES = 2
LEASE_SECONDS = 15.0
"""So long that heartbeats come in time on a machine that does ten other things."""

LOOK_SECONDS = 3.0
"""Between two comparisons while the mirror catches up: each reads everything."""

PENDING_MAX = 5_000
"""Changes that the mirror may be behind when a round begins: a machine that is slower gets fewer rounds, not an ever
longer way to go at the end."""

COLUMNS_MAX = 1_000

PAUSE_SECONDS = 0.02
"""Between two batches, so that the processes have something to do at every moment of a round."""


@define
class RandomWriter:
    """Writes whatever a table takes."""

    client: Any
    dice: random.Random
    changes: int = 0
    recent: list[int] = field(factory=list)
    """Versions that were given lately, to be deleted."""

    def batch(self) -> None:
        keys = [(self.dice.choice("ab"), number) for number in self.dice.sample(range(ROWS), BATCH)]
        write(self.client, TABLE, [self.change(key) for key in keys])
        self.changes += len(keys)

    def change(self, key: tuple[str, int]) -> object:
        primary, kind = [("part", key[0]), ("id", key[1])], self.dice.random()
        if kind < 0.1:
            return DeleteRowItem(Row(primary), IGNORE)
        if kind < 0.45:
            return PutRowItem(Row(primary, [self.put() for _ in range(self.dice.randint(1, 5))]), IGNORE)
        changed: dict[str, list[Any]] = {"PUT": [self.put() for _ in range(self.dice.randint(1, 3))]}
        if kind < 0.6:
            changed["DELETE_ALL"] = [self.column()]
        elif kind < 0.75 and self.recent:
            changed["DELETE"] = [(self.column(), None, self.dice.choice(self.recent))]
        if kind > 0.95:
            del changed["PUT"]
            changed.setdefault("DELETE_ALL", [self.column()])
        return UpdateRowItem(Row(primary, changed), IGNORE)

    def put(self) -> tuple[Any, ...]:
        if self.dice.random() < 0.7:
            return (self.column(), self.value())
        version = int(time.time() * 1_000) + self.dice.randint(-3, 3) * 1_000
        self.recent = [*self.recent[-20:], version]
        return (self.column(), self.value(), version)

    def column(self) -> str:
        # More and more columns come, and one of each case.
        return self.dice.choice(
            ["value", "Value", "note", f"extra {self.dice.randrange(1 + min(self.changes // 400, COLUMNS_MAX))}"]
        )

    def value(self) -> Any:
        number = self.dice.randrange(1_000_000)
        kinds = [number, str(number), number / 7, number % 2 == 0, bytearray(str(number).encode()), float(number)]
        return self.dice.choice(kinds + [number] * 10)


@define
class MirrorDrill:
    """A source, a destination, and processes that mirror the one into the other."""

    kind: str
    seed: int
    directory: Path
    max_versions: int
    said: Counter[str] = field(factory=Counter)
    running: list[subprocess.Popen[bytes]] = field(factory=list)
    frozen: subprocess.Popen[bytes] | None = None
    last_look: str = ""

    def run(self, rounds: int, minutes: float) -> str:
        """Rounds until both are over; then the comparison. Raises AssertionError if anything differs."""
        dice = random.Random(self.seed)
        started = time.monotonic()
        with ExitStack() as stack:
            server = stack.enter_context(LocalTablestore())
            postgres = stack.enter_context(PostgresServer()) if self.kind == "postgres" else None
            make_table(server, self.max_versions)
            writer = RandomWriter(server.client(), dice)
            for _ in range(FIRST_ROWS // BATCH):
                writer.batch()
            config = self.configuration(server, "" if postgres is None else postgres.conninfo)
            stack.callback(self.stop)
            while self.said["rounds"] < rounds or time.monotonic() - started < minutes * 60:
                self.round(server, writer, config, dice)
                self.said["rounds"] += 1
                self.caught_up(mirror_of(config), PENDING_MAX)
            return self.compare(server, writer, config)

    def configuration(self, server: LocalTablestore, conninfo: str) -> Path:
        where = (
            {"kind": "postgres", "conninfo": conninfo, "table": "mirror"}
            if self.kind == "postgres"
            else {"kind": "delta", "url": str(self.directory / "mirror")}
        )
        sections = {
            "source": {
                "endpoint": server.endpoint,
                "instance": server.instance,
                "table": TABLE,
                "status_table": STATUS,
                "access_key_id": server.access_key_id,
                "access_key_secret": server.access_key_secret,
            },
            "destination": where,
            "mirror": {"history": True, "max_age_seconds": 0.3, "lease_seconds": LEASE_SECONDS},
        }
        lines = [
            line
            for name, section in sections.items()
            for line in (f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in section.items()))
        ]
        path = self.directory / "mirror.toml"
        path.write_text("\n".join(lines))
        return path

    def start(self, config: Path) -> None:
        command = [sys.executable, "-m", "streamclient.cli.main", "mirror", str(config)]
        log = (self.directory / "mirror.log").open("ab")
        with log:
            self.running.append(subprocess.Popen(command, stdout=log, stderr=log))

    def round(self, server: LocalTablestore, writer: RandomWriter, config: Path, dice: random.Random) -> None:
        while len(self.running) < PROCESSES:
            self.start(config)
        pause = threading.Event()
        for _ in range(dice.randint(1, WRITES_A_ROUND)):
            writer.batch()
            pause.wait(PAUSE_SECONDS)
        self.thaw()
        victim = dice.choice(self.running)
        event = dice.choice(["kill", "kill", "freeze", "split", "merge", "stop"])
        if event == "kill":
            victim.kill()
            self.end(victim)
        elif event == "stop":
            victim.terminate()
            self.end(victim)
        elif event == "freeze":
            victim.send_signal(signal.SIGSTOP)
            self.frozen = victim
        else:
            self.reshape(server, event, dice)
        self.said[event] += 1

    def reshape(self, server: LocalTablestore, event: str, dice: random.Random) -> None:
        shards = [one.shard_id for one in server.shards(TABLE) if one.is_open]
        try:
            if event == "split" and len(shards) < SHARDS_MAX:
                server.split(TABLE, dice.choice(shards))
            elif event == "merge" and len(shards) > 1:
                server.merge(TABLE, *shards[:2])
        except ServiceError:  # a shard of one row has no median, and shards that do not touch do not merge
            self.said[f"refused {event}"] += 1

    def thaw(self) -> None:
        if self.frozen is not None:
            self.frozen.send_signal(signal.SIGCONT)
            self.frozen = None

    def end(self, process: subprocess.Popen[bytes]) -> None:
        process.wait(PATIENCE_SECONDS)
        self.running.remove(process)

    def stop(self) -> None:
        for process in list(self.running):
            process.kill()
            process.send_signal(signal.SIGCONT)
            self.end(process)

    def compare(self, server: LocalTablestore, writer: RandomWriter, config: Path) -> str:
        self.thaw()
        while len(self.running) < PROCESSES:
            self.start(config)
        made = mirror_of(config)
        self.caught_up(made, 0)
        self.stop()
        found = made.verify()
        listed = "\n".join(map(str, found.differences[:20]))
        assert found.is_equal, f"{found}\n{listed}"
        assert found.pending == 0, str(found)
        assert found.rows > 0
        self.check_history(made)
        done = ", ".join(f"{name} {count}" for name, count in sorted(self.said.items()))
        return f"{self.kind}, {self.max_versions} version(s), {writer.changes} changes; {done}; {found.rows} rows equal"

    def caught_up(self, made: Mirror, most: int) -> None:
        """Wait until at most so many changes are behind the mirror's position."""

        def is_there() -> bool:
            try:
                found = made.verify()
            except StreamClientException as error:  # it is being copied
                self.last_look = str(error)
                return False
            self.last_look = str(found)
            return found.pending <= most

        started = time.monotonic()
        while not is_there():
            log = (self.directory / "mirror.log").read_text(errors="replace")[-3_000:]
            late = time.monotonic() - started > PATIENCE_SECONDS * 5
            assert not late, f"the mirror does not catch up: {self.last_look}\n{log}"
            for process in self.running:
                assert process.poll() is None, f"a process ended with {process.returncode}:\n{log}"
            threading.Event().wait(LOOK_SECONDS)

    def check_history(self, made: Mirror) -> None:
        """Each change is in the history once, as its own digests prove."""
        history = made.history
        assert isinstance(history, DeltaDestination | PostgresDestination)
        try:
            proof = verify(history, with_rows=True)
        finally:
            history.close()
        assert proof.is_whole, str(proof)
        assert any(shard.startswith(f"{COPY}/") for _, shard in proof.lasts), "the rows that were copied"


def mirror_of(config: Path) -> Mirror:
    made = load_mirror_settings(config, os.environ).make()
    assert isinstance(made, Mirror)
    return made


def make_table(server: LocalTablestore, max_versions: int) -> None:
    TablestoreStreamApi(server.client()).create_table(
        TableMeta(TABLE, [("part", "STRING"), ("id", "INTEGER")]),
        TableOptions(max_version=max_versions),
        ReservedThroughput(CapacityUnit(0, 0)),
        stream=StreamSpecification(enable_stream=True, expiration_time_hours=24),
    )


def drill(kind: str, seed: int, directory: Path, *, rounds: int, minutes: float = 0.0, max_versions: int = 1) -> str:
    """One drill; what it did."""
    directory.mkdir(parents=True, exist_ok=True)
    return MirrorDrill(kind, seed, directory, max_versions).run(rounds, minutes)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=0.0, help="at least so long")
    parser.add_argument("--rounds", type=int, default=10, help="at least so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=("delta", "postgres"), default="delta")
    parser.add_argument("--versions", type=int, default=1)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="streamclient-mirror-"))
    try:
        said = drill(
            options.kind,
            options.seed,
            directory,
            rounds=options.rounds,
            minutes=options.minutes,
            max_versions=options.versions,
        )
    except AssertionError as error:
        print(f"not clean; files in {directory}: {error}", file=sys.stderr)
        return 1
    print(f"mirror drill: ok: {said}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
