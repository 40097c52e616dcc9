"""``python -m tests.loops.drill``: a loop in an event loop, cancelled and killed over HTTP; then figures of loops.

One consumer process at a time is cancelled at random awaits and killed with ``kill -9``. No body may leave a gap within
a key, and the status table never holds a position beyond what a body finished: each write of it is judged, and what it
holds after each cancellation and each kill.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attrs import define, field, frozen
from tablestore import OTSClient

from streamclient.server import Exchange, LocalTablestore
from streamclient.tablestore import TablestoreStreamApi
from streamclient.testing.deliveries import unread
from streamclient.testing.fleet import Fleet, WorkerProcess
from streamclient.testing.journal import LeaseJournal
from streamclient.worker.lease import LeaseManager
from streamclient.worker.lease.lease_rows import CHECKPOINT
from tests.drill_kit import command, directory_of, merge, open_shards, options, put, split
from tests.loops.drill_figures import figures
from tests.loops.drill_judge import Change, Done, Event, Given, Stored, judge
from tests.patience import until
from tests.stage import make_table, write

TABLE, STATUS_TABLE = "changes", "changes_drill"
KEYS, BATCH_ROWS = 200, 12
MOST_OPEN_SHARDS = 5

BACKLOGS = (0, 60, 400)
"""Changes that wait for the consumer: it finds nothing, something, or always more."""

MOST_LINES_BEFORE_A_KILL = 12
"""Of the journal, after the cancellations of a process: about four bodies."""

LOOK_SECONDS = 0.02


@frozen
class Shown:
    """What a drill showed."""

    cancellations: Counter[str]
    """By the place that they reached."""
    kills: int
    changes: int
    bodies: int
    finished: int
    stored: int
    """Positions in the writes of the status table that it accepted, and in what was read from it."""
    problems: list[str]
    seconds: float

    def __str__(self) -> str:
        places = " ".join(f"{place.replace(' ', '_')}={number}" for place, number in sorted(self.cancellations.items()))
        return (
            f"cancellations={self.cancellations.total()} {places} kills={self.kills} changes={self.changes} "
            f"bodies={self.bodies} finished={self.finished} stored={self.stored} problems={len(self.problems)} "
            f"seconds={self.seconds:.1f}"
        )


@frozen
class Seen:
    """A position in the status table, and how long the journals of the processes were then."""

    process: int
    size: int
    stored: Stored


@define(eq=False)
class Drill:
    """A table that is written, and one process that reads it."""

    local: LocalTablestore
    client: OTSClient
    stream_id: str
    fleet: Fleet
    dice: random.Random
    written: Counter[str] = field(factory=Counter)
    cancellations: Counter[str] = field(factory=Counter)
    seen: list[Seen] = field(factory=list)
    lines: list[list[tuple[int, dict[str, Any]]]] = field(factory=list)
    """Of the journal of each process, with the size of the journal that ends with it."""
    _leases: LeaseJournal = field(factory=lambda: LeaseJournal(STATUS_TABLE))
    _counted: int = 0
    """Writes of leases that are in ``seen``."""
    _finished: defaultdict[str, int] = field(factory=lambda: defaultdict(int))
    _given: dict[tuple[str, str], list[Any]] = field(factory=dict)
    _lock: threading.Lock = field(factory=threading.Lock)

    # --- the process -------------------------------------------------------------------------------------------------

    def start(self, *, is_calm: bool = False) -> WorkerProcess:
        self.lines.append([])
        journal, seed = str(self._journal), self.dice.randrange(2**32)
        words = command(
            "tests.loops.drill_consumer", self.local, table=TABLE, journal=journal, seed=seed, is_calm=is_calm
        )
        return self.fleet.start(f"consumer-{len(self.lines)}", words)

    def cancel_and_kill(self, cancellations: int) -> None:
        """Let a process be cancelled until there were so many in all, and kill it some lines later."""
        process, backlog = self.start(), self.dice.choice(BACKLOGS)
        self._go_on(process, backlog, lambda: self.cancellations.total() >= cancellations)
        end = len(self.lines[-1]) + self.dice.randint(1, MOST_LINES_BEFORE_A_KILL)
        self._go_on(process, max(1, backlog), lambda: len(self.lines[-1]) >= end)
        process.kill()
        self.read()
        self.look()

    def finish(self) -> None:
        """Let a process read the rest, and end in order."""
        process = self.start(is_calm=True)
        self._go_on(process, 0, lambda: not self._unread())
        process.ask_to_stop()
        assert process.wait() == 0, process.log.read_text()[-2_000:]
        self.read()
        self.look()

    def _unread(self) -> list[str]:
        """What is not stored yet. What was stored and never finished is for the judge, who is not waited for."""
        leases = LeaseManager(self.client, STATUS_TABLE, self.stream_id).list_leases()
        return unread(TablestoreStreamApi(self.client), self.stream_id, leases)

    def _go_on(self, process: WorkerProcess, backlog: int, is_enough: Callable[[], bool]) -> None:
        """Write, and look after each cancellation, until it is enough."""

        def is_over() -> bool:
            assert process.is_running, f"{process.name} ended by itself: {process.log.read_text()[-2_000:]}"
            before = self.cancellations.total()
            self.read()
            if self.cancellations.total() > before:
                self.look()
            if self.unfinished < backlog:
                self._write()
            return is_enough()

        until(is_over, lambda: f"{process.name}: {self.cancellations}, {self.unfinished} unfinished")

    # --- the table ---------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        rows = []
        for number in self.dice.sample(range(KEYS), BATCH_ROWS):
            key = f"{number:03}"
            self.written[key] += 1
            rows.append(put(key, ("number", self.written[key])))
        write(self.client, TABLE, rows)

    def reshard(self) -> None:
        count = len(open_shards(self.local, TABLE))
        is_merge = count >= MOST_OPEN_SHARDS or (count > 1 and self.dice.random() < 0.4)
        (merge if is_merge else split)(self.local, TABLE, self.dice.random())

    # --- what is seen ------------------------------------------------------------------------------------------------

    @property
    def _journal(self) -> Path:
        return self.fleet.directory / f"journal-{len(self.lines)}.lines"

    @property
    def unfinished(self) -> int:
        """Changes that no body finished."""
        return self.written.total() - sum(self._finished.values())

    def read(self) -> None:
        """Read what the journal has more than before."""
        lines = self.lines[-1]
        size = lines[-1][0] if lines else 0
        if not self._journal.exists():
            return
        with self._journal.open("rb") as file:
            file.seek(size)
            for text in file:
                if not text.endswith(b"\n"):
                    return  # written while this reads, or cut by a kill
                size += len(text)
                line = json.loads(text)
                lines.append((size, line))
                self._count(line)

    def _count(self, line: dict[str, Any]) -> None:
        if line["what"] == "cancelled":
            self.cancellations[line["where"]] += 1
            return
        place = line["shard"], line["position"]
        if line["what"] == "begin":
            self._given[place] = line["changes"]
            return
        for key, number, _ in self._given[place]:
            self._finished[key] = max(self._finished[key], number)

    def look(self) -> None:
        """Read the status table."""
        leases = LeaseManager(self.client, STATUS_TABLE, self.stream_id)
        found = leases.list_leases()
        self._note([Stored(lease.lease_key, lease.checkpoint) for lease in found], self._size())

    def observe(self, exchange: Exchange) -> None:
        """See each position that the status table is given, before its sender learns that it has it."""
        size = self._size()
        with self._lock:
            self._leases(exchange)
            writings = self._leases.writings[self._counted :]
            self._counted += len(writings)
        stored = [
            Stored(each.lease_key, str(each.columns[CHECKPOINT]))
            for each in writings
            if each.is_accepted and CHECKPOINT in each.columns
        ]
        self._note(stored, size)

    def _note(self, stored: list[Stored], size: tuple[int, int]) -> None:
        with self._lock:
            self.seen += [Seen(*size, each) for each in stored]

    def _size(self) -> tuple[int, int]:
        """The number of processes that there were, and the size of the last one's journal."""
        count, path = len(self.lines), self._journal
        return count, path.stat().st_size if path.exists() else 0

    def events(self) -> Iterator[Event]:
        """Everything in its order: a position comes after the lines that stood in the journals when it was seen."""
        seen = sorted(self.seen, key=lambda each: (each.process, each.size))
        upcoming = iter(seen)
        following = next(upcoming, None)
        for number, lines in enumerate(self.lines, 1):
            for size, line in lines:
                while following is not None and (following.process, following.size) < (number, size):
                    yield following.stored
                    following = next(upcoming, None)
                if line["what"] == "begin":
                    changes = [Change(key, count, tuple(place)) for key, count, place in line["changes"]]
                    yield Given(line["shard"], line["position"], tuple(changes))
                elif line["what"] == "done":
                    yield Done(line["shard"], line["position"])
        while following is not None:
            yield following.stored
            following = next(upcoming, None)


def play(seed: int, directory: Path, cancellations: int, kills: int) -> Shown:
    """Play the drill; every file of it is left in ``directory``."""
    begun = time.monotonic()
    with LocalTablestore() as local, Fleet(directory) as fleet:
        client = local.client()
        make_table(client, TABLE, split_points=[f"{KEYS // 2:03}"])
        (stream,) = TablestoreStreamApi(client).list_stream(TABLE)
        LeaseManager(client, STATUS_TABLE, stream.stream_id).create_lease_table_if_not_exists()
        drill = Drill(local, client, stream.stream_id, fleet, random.Random(seed))
        local.observe(drill.observe)
        for number in range(1, kills + 1):
            drill.cancel_and_kill(cancellations * number // kills)
            if drill.dice.random() < 0.3:
                drill.reshard()
        drill.finish()
        events = list(drill.events())
    return Shown(
        cancellations=drill.cancellations,
        kills=kills,
        changes=drill.written.total(),
        bodies=sum(isinstance(event, Given) for event in events),
        finished=sum(isinstance(event, Done) for event in events),
        stored=sum(isinstance(event, Stored) for event in events),
        problems=judge(events, drill.written),
        seconds=time.monotonic() - begun,
    )


def main() -> None:
    given = options(cancellations=300, kills=50, seed=1)
    with directory_of("loop-drill") as directory:
        shown = play(given.seed, directory, given.cancellations, max(1, given.kills))
        print(f"loop drill: {shown}", flush=True)
        assert not shown.problems, "\n".join(shown.problems[:20])
        rows = []
        for row in figures():
            rows.append(row)
            print(row, flush=True)
        wrong = [row.what for row in rows if row.problem]
        assert not wrong, ", ".join(wrong)
    print(f"loop drill: ok from seed {given.seed}")


if __name__ == "__main__":
    main()
