"""The parts of the drill with a status table, parked records, and the data directory of a server."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from attrs import define, field
from tablestore import INF_MAX, INF_MIN, OTSClient

from streamclient.server import LocalTablestore
from streamclient.tablestore import TablestoreStreamApi
from streamclient.testing.deliveries import Delivery, judge, key_text, read_deliveries, read_history, unread
from streamclient.testing.fleet import WorkerProcess
from streamclient.worker.lease import LeaseManager
from tests.drill_kit import merge, put, split
from tests.patience import until
from tests.stage import make_table, write
from tests.upgrade_drill.stage import NEW, OLD, Stage, console

TABLE, STATUS = "changes", "changes_status"
KEYS = 40
BATCH = 60
"""Changes between two events of the drill."""

SPLITS = 5
"""So many shards that each of four workers has one."""

LISTENING = re.compile(r"^listening on (\S+)$\n", re.MULTILINE)
"""The whole line of a server that has started: its log is read while it is written."""

BAD = 0.1
"""The share of records that no worker accepts, where they are parked."""


@define(eq=False)
class Scene:
    """A table with a stream, and workers of both versions that read it."""

    stage: Stage
    local: LocalTablestore
    given: dict[str, Any] = field(factory=dict)
    """What each step is given, besides the names of the tables."""
    client: OTSClient = field(init=False)
    stream_id: str = field(init=False)
    streams: TablestoreStreamApi = field(init=False)
    manager: LeaseManager = field(init=False)
    written: int = 0
    bad_share: float = 0.0

    def __attrs_post_init__(self) -> None:
        self.client = self.local.client()
        make_table(self.client, TABLE, [("id", "INTEGER")])
        self.streams = TablestoreStreamApi(self.client)
        self.stream_id = self.streams.list_stream(TABLE)[0].stream_id
        self.manager = LeaseManager(self.client, STATUS, self.stream_id)
        local = self.local
        self.given |= {
            "client": [local.endpoint, local.access_key_id, local.access_key_secret, local.instance],
            "table": TABLE,
            "status_table": STATUS,
        }

    def start(self, version: str, count: int = 1) -> list[WorkerProcess]:
        """Start workers of a version."""
        return [self.stage.step(version, "work", **self.given) for _ in range(count)]

    def write(self, count: int = BATCH) -> None:
        dice = self.stage.dice
        rows = [
            put(dice.randrange(KEYS), ("n", self.written + number), ("bad", int(dice.random() < self.bad_share)))
            for number in range(count)
        ]
        for row in rows:  # one request has each row once
            write(self.client, TABLE, [row])
        self.written += count

    def deliveries(self) -> list[Delivery]:
        return read_deliveries(sorted(self.stage.directory.glob("*.lines")))

    def by_version(self) -> Counter[str]:
        """The number of batches that each version has accepted."""
        return Counter(each.worker.partition("-")[0] for each in self.deliveries())

    def go_on(self, *versions: str) -> None:
        """Write until each of these versions has accepted a further batch, and all is read."""
        before = self.by_version()

        def have_all() -> bool:
            self.stage.require_alive()
            now = self.by_version()
            if all(now[version] > before[version] for version in versions):
                return True
            self.write(BATCH // 10)
            return False

        self.write()
        until(have_all, lambda: f"a batch of each of {versions}: {before} before, {self.by_version()} now")
        # Parked records alone move no checkpoint: the last record is one that is accepted.
        write(self.client, TABLE, [put(KEYS, ("n", self.written), ("bad", 0))])
        self.written += 1
        self.caught_up()

    def caught_up(self) -> None:
        """Wait until the fleet owes no read."""

        def owes_nothing() -> bool:
            self.stage.require_alive()
            return not unread(self.streams, self.stream_id, self.manager.list_leases())

        until(owes_nothing, lambda: unread(self.streams, self.stream_id, self.manager.list_leases()))

    def end(self, processes: Sequence[WorkerProcess], *, kills: bool) -> None:
        """Stop processes in order, or kill them while they have something to do."""
        for process in processes:
            if kills:
                self.write()
                self.stage.kill(process)
            else:
                self.stage.stop(process)

    def relay(self) -> None:
        """The old alone, both, hand-overs in both directions with stops and with ``kill -9``, the new alone."""
        stage = self.stage
        self.start(OLD, 2)
        self.go_on(OLD)
        for number in range(SPLITS):
            split(self.local, TABLE, number / SPLITS)
        self.start(NEW, 2)
        self.go_on(OLD, NEW)
        self.see_each_other()
        self.obey_each_other()
        self.end(stage.running(OLD)[:1], kills=True)
        self.start(NEW)
        split(self.local, TABLE, 0.0)
        self.go_on(OLD, NEW)
        self.end(stage.running(NEW)[:2], kills=True)
        self.start(OLD)
        self.go_on(OLD, NEW)
        for leaving, coming, kills in ((OLD, NEW, False), (NEW, OLD, False), (OLD, NEW, True), (NEW, OLD, True)):
            self.start(coming)
            self.end(stage.running(leaving), kills=kills)
            merge(self.local, TABLE, 0.5)
            self.go_on(coming)
        self.start(NEW, 2)
        self.end(stage.running(OLD), kills=False)
        self.go_on(NEW)

    def obey_each_other(self) -> None:
        """Owners of both versions obey the pauses of either, and either sees them all in the audit."""
        for version in (OLD, NEW):
            for words in (("pause", "--all", "--reason", f"by {version}"), ("resume", "--all")):
                code = self.stage.run(version, *console("leases", *words, *self.named()))
                assert code == 0, f"leases {words[0]} of the {version} version ended with {code}"
        audits = [self.audit(version) for version in (OLD, NEW)]
        assert audits[0] == audits[1] != [], f"the versions read different audits: {audits}"

    def audit(self, version: str) -> list[tuple[str, str, str, str]]:
        """The changes by operators, as a version reads them."""
        log = self.stage.run_logged(version, *console("leases", "audit", "--limit", "1000", "--json", *self.named()))
        return [
            (record["shard"], record["command"], record["reason"], record["outcome"])
            for record in json.loads(log[log.index("{") :])["records"]
        ]

    def see_each_other(self) -> None:
        """Commands of either version see the workers of both, and read each other's snapshots."""
        files = {}
        expected = {each.name for version in (OLD, NEW) for each in self.stage.running(version)}
        until(lambda: {row.worker_id for row in self.manager.list_workers()} == expected, f"the rows of {expected}")
        for version in (OLD, NEW):
            files[version] = self.stage.directory / f"{version}.snapshot.json"
            code = self.stage.run(version, *console("leases", "snapshot", str(files[version]), *self.named()))
            assert code == 0, f"the {version} version took no snapshot"
            seen = {worker["worker"] for worker in json.loads(files[version].read_text())["workers"]}
            assert seen == expected, f"the {version} version sees {seen}, expected {expected}"
        for version, other in ((OLD, NEW), (NEW, OLD)):
            words = console("leases", "diff", str(files[other]), str(files[version]), *self.named())
            assert self.stage.run(version, *words) == 0, f"the {version} version cannot read the other's snapshot"

    def named(self) -> list[str]:
        """The options of commands that name the fleet."""
        local = self.local
        pairs = {
            "endpoint": local.endpoint,
            "instance": local.instance,
            "access-key-id": local.access_key_id,
            "access-key-secret": local.access_key_secret,
            "data-table": TABLE,
            "status-table": STATUS,
        }
        return [word for name, value in pairs.items() for word in (f"--{name}", value)]

    def hand_overs(self) -> Counter[str]:
        """How often a shard went from one version to the other."""
        last: dict[str, str] = {}
        found = Counter[str]()
        for each in self.deliveries():
            version = each.worker.partition("-")[0]
            before = last.get(each.shard_id, version)
            if before != version:
                found[f"{before} to {version}"] += 1
            last[each.shard_id] = version
        return found


@contextmanager
def scene(stage: Stage, **given: Any) -> Iterator[Scene]:
    with LocalTablestore() as local, stage.fleet:
        yield Scene(stage, local, given)


def told_moves(made: Scene) -> str:
    moves = made.hand_overs()
    for move in (f"{OLD} to {NEW}", f"{NEW} to {OLD}"):
        assert moves[move], f"no shard went from {move}: the drill has shown nothing"
    return ", ".join(f"{count} shards {move}" for move, count in sorted(moves.items()))


def leases(stage: Stage) -> str:
    """The status table: leases, epochs and workers' rows."""
    with scene(stage) as made:
        made.relay()
        verdict = judge(read_history(made.streams, made.stream_id), made.deliveries())
        assert verdict.is_clean, "\n".join(verdict.problems[:20])
        assert verdict.distinct == verdict.changes == made.written, f"{verdict}, {made.written} written"
        return f"{verdict.changes} changes, {told_moves(made)}"


def parked(stage: Stage, kind: str) -> str:
    """Records that workers of one version park, and the other replays."""
    place = "parked" if kind == "table" else str(stage.directory / "parked")
    with scene(stage, parking=[kind, place]) as made:
        made.bad_share = BAD
        made.start(OLD)
        replays = 0
        for present, coming, kills in ((OLD, NEW, True), (NEW, OLD, True), (OLD, NEW, False)):
            made.go_on(present)
            made.end(stage.running(present), kills=kills)
            made.start(coming)
            made.go_on(coming)  # it finds what the other has parked, and parks what follows of these keys
            made.end(stage.running(coming), kills=False)
            code = stage.run_step(present, "replay", **made.given)
            assert code == 0, f"the {present} version could not replay what the {coming} version had parked"
            replays += 1
            made.start(coming)
        made.bad_share = 0.0
        made.go_on(NEW)
        made.end(stage.running(NEW), kills=False)
        assert stage.run_step(NEW, "replay", **made.given) == 0
        return judged_parked(made, replays)


def judged_parked(made: Scene, replays: int) -> str:
    """Each change was accepted or replayed, none both ways, and those of a key in order."""
    (shard,) = read_history(made.streams, made.stream_id)
    expected = {(key_text(each.primary_key), each.sequence_info) for each in shard.records}
    accepted, replayed = Counter[Any](), Counter[Any]()
    by_key: dict[str, list[Any]] = {}
    for delivery in made.deliveries():
        for key, sequence in delivery.records:
            (replayed if delivery.epoch == 0 else accepted)[key, sequence] += 1
            known = by_key.setdefault(key, [])
            if sequence not in known:
                known.append(sequence)
    missing = expected - {*accepted, *replayed}
    assert not missing, f"{len(missing)} changes of {len(expected)} were neither accepted nor replayed"
    assert not accepted.keys() & replayed.keys(), "a change was accepted and replayed, too"
    assert set(replayed.values()) == {1}, "a change was replayed twice, or none was"
    unordered = [key for key, found in by_key.items() if found != sorted(found)]
    assert not unordered, f"changes of {unordered[:5]} came out of order"
    return f"{len(expected)} changes, {len(replayed)} of them parked and replayed in {replays + 1} replays"


# --- the data directory of a server -----------------------------------------------------------------------------------


@define(eq=False)
class ServedData:
    """A data directory that servers of both versions open in turn, and what it must hold."""

    stage: Stage
    rows: dict[int, int] = field(factory=dict)
    changes: list[tuple[int, int]] = field(factory=list)

    @contextmanager
    def served(self, version: str) -> Iterator[OTSClient | None]:
        """A server of this version until it is killed; ``None`` if it refuses the directory by name."""
        no_console = "--no-console"
        more = [no_console] if no_console in self.stage.run_logged(version, *console("server", "--help")) else []
        words = console("server", "--port", "0", "--data", str(self.stage.directory / "data"), *more)
        process = self.stage.start(version, *words)
        until(
            lambda: LISTENING.search(process.log.read_text()) is not None or not process.is_running,
            process.log.read_text,
        )
        listening = LISTENING.search(said := process.log.read_text())
        if listening is None:
            assert "format" in said, f"the {version} version did not start: {said}"
            del self.stage.fleet.processes[process.name]
            yield None
            return
        default = LocalTablestore()
        yield OTSClient(
            listening[1],
            default.access_key_id,
            default.access_key_secret,
            default.instance,
            logger_name="streamclient-upgrade-drill",
        )
        self.stage.kill(process)

    def write(self, client: OTSClient, count: int) -> None:
        for _ in range(count):
            key, value = self.stage.dice.randrange(KEYS), len(self.changes)
            write(client, TABLE, [put(key, ("n", value))])
            self.rows[key] = value
            self.changes.append((key, value))

    def compare(self, client: OTSClient) -> None:
        """The rows, and the changes in their order, are those that were acknowledged."""
        key: Any = [("id", INF_MIN)]
        found: dict[int, int] = {}
        while key is not None:
            _, key, rows, _ = client.get_range(TABLE, "FORWARD", key, [("id", INF_MAX)])
            found.update((row.primary_key[0][1], dict(cell[:2] for cell in row.attribute_columns)["n"]) for row in rows)
        assert found == self.rows, f"{len(found)} rows, expected {len(self.rows)}"
        streams = TablestoreStreamApi(client)
        (shard,) = read_history(streams, streams.list_stream(TABLE)[0].stream_id)
        told = [(each.primary_key[0][1], each.values["n"]) for each in shard.records]
        assert told == self.changes, f"{len(told)} changes, expected {len(self.changes)}"


def server(stage: Stage) -> str:
    """A data directory that one version writes until it is killed, and the other opens."""
    data, refusals = ServedData(stage), 0
    with stage.fleet:
        for number, version in enumerate((OLD, NEW, OLD, NEW, NEW)):
            with data.served(version) as client:
                if client is None:
                    assert version == OLD, "the new version refuses what it has written, or what the old one wrote"
                    refusals += 1
                    continue
                if number == 0:
                    make_table(client, TABLE, [("id", "INTEGER")])
                data.compare(client)
                data.write(client, 3 * BATCH)
                data.compare(client)
    old = "refused by the old version by name" if refusals else "read by the old version, too"
    return f"{len(data.changes)} changes of {len(data.rows)} rows, what the new version wrote was {old}"
