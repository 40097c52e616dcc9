"""``python -m tests.mirror.drill``: a table mirrored by real processes that are killed and frozen, then compared.

Writes of every kind go on meanwhile: rows replaced, changed and deleted, columns that come and go, values of changing
types, versions of the writer's own, single versions deleted. Shards are split and merged. The seed decides what is
written; rounds are counted in writes, so the machine decides only how fast.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from attrs import define, field
from tablestore import DeleteRowItem, PutRowItem, Row, UpdateRowItem

from streamclient.base.reasons import counted
from streamclient.copying import Mirror
from streamclient.copying.mirror_settings import load_mirror_settings
from streamclient.copying.source_table import COPY
from streamclient.destinations import DeltaDestination, PostgresDestination
from streamclient.destinations.proof.verification import verify
from streamclient.errors import StreamClientException
from streamclient.server import LocalTablestore
from streamclient.server.server_errors import ServiceError
from streamclient.testing.fleet import Fleet, WorkerProcess
from tests.destinations.postgres_server import PostgresServer
from tests.drill_kit import directory_of, merge, open_shards, options, split
from tests.patience import PATIENCE_SECONDS
from tests.stage import IGNORE, make_table, write

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
    fleet: Fleet
    max_versions: int
    said: Counter[str] = field(factory=Counter)
    started: int = 0
    frozen: WorkerProcess | None = None
    last_look: str = ""

    def run(self, rounds: int, minutes: float) -> str:
        """Rounds until both are over; then the comparison. Raises AssertionError if anything differs."""
        dice = random.Random(self.seed)
        started = time.monotonic()
        with ExitStack() as stack:
            server = stack.enter_context(LocalTablestore())
            postgres = stack.enter_context(PostgresServer()) if self.kind == "postgres" else None
            key = [("part", "STRING"), ("id", "INTEGER")]
            make_table(server.client(), TABLE, key, max_version=self.max_versions)
            writer = RandomWriter(server.client(), dice)
            for _ in range(FIRST_ROWS // BATCH):
                writer.batch()
            config = self.configuration(server, "" if postgres is None else postgres.conninfo)
            stack.enter_context(self.fleet)
            while self.said["rounds"] < rounds or time.monotonic() - started < minutes * 60:
                self.round(server, writer, config, dice)
                self.said["rounds"] += 1
                self.caught_up(mirror_of(config), PENDING_MAX)
            return self.compare(writer, config)

    def configuration(self, server: LocalTablestore, conninfo: str) -> Path:
        where = (
            {"kind": "postgres", "conninfo": conninfo, "table": "mirror"}
            if self.kind == "postgres"
            else {"kind": "delta", "url": str(self.fleet.directory / "mirror")}
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
        path = self.fleet.directory / "mirror.toml"
        path.write_text("\n".join(lines))
        return path

    def start(self, config: Path) -> None:
        """Start as many processes as are missing."""
        for _ in range(len(self.fleet.processes), PROCESSES):
            self.started += 1
            command = ["-m", "streamclient.cli.main", "mirror", str(config)]
            self.fleet.start(f"mirror-{self.started}", command)

    def round(self, server: LocalTablestore, writer: RandomWriter, config: Path, dice: random.Random) -> None:
        self.start(config)
        pause = threading.Event()
        for _ in range(dice.randint(1, WRITES_A_ROUND)):
            writer.batch()
            pause.wait(PAUSE_SECONDS)
        self.thaw()
        victim = dice.choice(self.fleet.running())
        event = dice.choice(["kill", "kill", "freeze", "split", "merge", "stop"])
        if event == "freeze":
            victim.freeze()
            self.frozen = victim
        elif event in {"kill", "stop"}:
            victim.kill() if event == "kill" else victim.ask_to_stop()
            victim.wait(PATIENCE_SECONDS)
            del self.fleet.processes[victim.name]
        else:
            self.reshape(server, event, dice)
        self.said[event] += 1

    def reshape(self, server: LocalTablestore, event: str, dice: random.Random) -> None:
        shards = len(open_shards(server, TABLE))
        try:
            if event == "split" and shards < SHARDS_MAX:
                split(server, TABLE, dice.random())
            elif event == "merge" and shards > 1:
                merge(server, TABLE, 0.0)
        except ServiceError:  # a shard of one row has no median, and shards that do not touch do not merge
            self.said[f"refused {event}"] += 1

    def thaw(self) -> None:
        if self.frozen is not None:
            self.frozen.thaw()
            self.frozen = None

    def compare(self, writer: RandomWriter, config: Path) -> str:
        self.thaw()
        self.start(config)
        made = mirror_of(config)
        self.caught_up(made, 0)
        for process in self.fleet.running():
            process.kill()
        found = made.verify()
        listed = "\n".join(map(str, found.differences[:20]))
        assert found.is_equal, f"{found}\n{listed}"
        assert found.pending == 0, str(found)
        assert found.rows > 0
        self.check_history(made)
        done = ", ".join(f"{name} {count}" for name, count in sorted(self.said.items()))
        versions, changes = counted(self.max_versions, "version"), counted(writer.changes, "change")
        return f"{self.kind}, {versions}, {changes}; {done}; {found.rows} rows equal"

    def caught_up(self, made: Mirror, most: int) -> None:
        """Wait until at most `most` changes are after the mirror's position."""

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
            late = time.monotonic() - started > PATIENCE_SECONDS * 5
            assert not late, f"the mirror does not catch up: {self.last_look}"
            for process in self.fleet.processes.values():
                log = process.log.read_text(errors="replace")[-3_000:]
                assert process.is_running, f"a process ended with {process.exit_code}:\n{log}"
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


def drill(kind: str, seed: int, directory: Path, *, rounds: int, minutes: float = 0.0, max_versions: int = 1) -> str:
    """One drill; what it did."""
    return MirrorDrill(kind, seed, Fleet(directory), max_versions).run(rounds, minutes)


def main() -> None:
    given = options(minutes=0.0, rounds=10, seed=1, kind=("delta", "postgres"), versions=1)
    with directory_of("mirror") as directory:
        sizes = {"rounds": given.rounds, "minutes": given.minutes, "max_versions": given.versions}
        said = drill(given.kind, given.seed, directory, **sizes)
    print(f"mirror drill: ok: {said}")


if __name__ == "__main__":
    main()
