"""Simulated histories of owners, a status table and a destination, with faults at every step of a commit.

Each model of a destination does what the real one does, step by step, and decides with the same code
(``Commit.after``, ``is_stored``). Between any two steps, also between the preparing of two shards, an owner may be
paused or crash, and another one may take its shards; a request to destination or status table may be lost, its answer
may be lost, or it may arrive late, when its sender has long given up. At the end one owner without faults finishes the
stream. Then each record must be stored once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from functools import partial
from itertools import pairwise

from attrs import define, evolve, field, frozen

from streamclient.destinations.commit import Commit, FencedCommit, LogEntry, is_stored, last_of
from streamclient.errors import StreamClientError

RECORDS = 15
STEPS = 90
TRIES = 4
BURST_MAX = 16
"""Steps that an owner does before somebody else is drawn."""
SHARDS = ("a", "b", "c")

Row = tuple[str, int]
Step = Generator[None, None, None]


class Lost(Exception):
    """No answer came."""


class Refused(Exception):
    """Another writer was quicker."""


@define
class Place:
    """What the destination has durably stored."""

    log: list[LogEntry] = field(factory=list)
    rows: list[Row] = field(factory=list)

    def store(self, rows: Sequence[Row], commits: Sequence[Commit]) -> None:
        self.log.append(LogEntry(str(len(self.log)), tuple(commits)))
        self.rows.extend(rows)


@define
class Network:
    """Loses requests and answers, and delivers some requests late."""

    dice: random.Random
    is_faulty: bool = True
    late: list[Callable[[], None]] = field(factory=list)
    met: Counter[str] = field(factory=Counter)

    def send(self, request: Callable[[], None], kind: str = "commit") -> None:
        """Do a request that changes something; ``Refused`` is its answer, too."""
        fault = self.dice.choice(["", "", "", "request lost", "answer lost", "late"]) if self.is_faulty else ""
        self.met[f"{kind}: {fault}"] += 1
        if fault == "late":
            self.late.append(request)
        if fault in {"request lost", "late"}:
            raise Lost
        request()
        if fault == "answer lost":
            raise Lost

    def deliver_late(self) -> None:
        if self.late:
            try:
                self.late.pop(self.dice.randrange(len(self.late)))()
            except Refused:
                self.met["late, refused"] += 1


@define
class Model:
    """A destination. Subclasses say how one try goes; ``mutation`` names a rule that they break."""

    network: Network
    place: Place = field(factory=Place)
    mutation: str = ""

    def lasts(self, view: int) -> dict[str, Commit]:
        return last_of(self.place.log[:view], "app")

    def commit(self, rows: Sequence[Row], commits: Sequence[Commit]) -> Step:
        for _ in range(TRIES):
            try:
                yield from self.attempt(rows, commits)
                return
            except (Lost, Refused):
                if self.mutation == "takes an error for a failure":
                    raise StreamClientError("it failed") from None
                if self.mutation == "takes an error for a success":
                    return
        raise Lost

    def attempt(self, rows: Sequence[Row], commits: Sequence[Commit]) -> Step:
        raise AssertionError

    def is_done(self, view: int, commits: Sequence[Commit]) -> bool:
        lasts = self.lasts(view)
        if self.mutation == "looks at nothing":
            return False
        if self.mutation == "knows repeats, not owners":
            return all(one.shard in lasts and lasts[one.shard].digest == one.digest for one in commits)
        return is_stored(lasts, commits)


class Delta(Model):
    """A log of entries that are created if absent; a writer goes on behind others' that have none of its shards."""

    def attempt(self, rows: Sequence[Row], commits: Sequence[Commit]) -> Step:
        view = len(self.place.log)
        yield
        if self.is_done(view, commits):
            return
        shards = {one.shard for one in commits}
        version = view
        while True:
            yield
            try:
                self.network.send(lambda at=version: self._create(at, rows, commits))  # type: ignore[misc]
                return
            except Refused:
                newer = self.place.log[view:]
                if self.mutation != "commits without transactions" and any(
                    one.shard in shards for entry in newer for one in entry.commits
                ):
                    raise
                version = len(self.place.log)

    def _create(self, version: int, rows: Sequence[Row], commits: Sequence[Commit]) -> None:
        if version < len(self.place.log):
            if self.mutation == "store ignores the condition":
                gone = self.place.log[version]
                self.place.log[version] = LogEntry(str(version), tuple(commits))
                for one in gone.commits:
                    start, end = int(one.start), int(one.end)
                    self.place.rows = [
                        row for row in self.place.rows if row[0] != one.shard or not start <= row[1] < end
                    ]
                self.place.rows.extend(rows)
                return
            raise Refused
        self.place.store(rows, commits)


class Iceberg(Model):
    """Metadata that a catalog swaps if they are those that the writer saw."""

    def attempt(self, rows: Sequence[Row], commits: Sequence[Commit]) -> Step:
        view = len(self.place.log)
        yield
        if self.is_done(view, commits):
            return
        yield
        self.network.send(lambda: self._swap(view, rows, commits))

    def _swap(self, view: int, rows: Sequence[Row], commits: Sequence[Commit]) -> None:
        if view != len(self.place.log) and self.mutation != "retries by itself":
            raise Refused
        self.place.store(rows, commits)


@define
class Postgres(Model):
    """Rows of shards that a transaction locks; the server ends a transaction whose writer says nothing."""

    locks: dict[str, object] = field(factory=dict)

    def attempt(self, rows: Sequence[Row], commits: Sequence[Commit]) -> Step:
        own = object()
        try:
            for one in sorted(commits, key=lambda commit: commit.shard):
                while self.mutation != "locks nothing" and self.locks.setdefault(one.shard, own) is not own:
                    yield
            view = len(self.place.log)
            yield
            if self.is_done(view, commits):
                return
            yield
            self.network.send(lambda: self._end(own, rows, commits))
        finally:
            # Also when the owner crashes: its connection breaks.
            for shard in [shard for shard, holder in self.locks.items() if holder is own]:
                del self.locks[shard]

    def _end(self, own: object, rows: Sequence[Row], commits: Sequence[Commit]) -> None:
        if self.mutation != "locks nothing" and any(self.locks.get(one.shard) is not own for one in commits):
            raise Refused
        self.place.store(rows, commits)

    def end_idle(self) -> None:
        """The server ends a transaction that has been idle for too long."""
        if self.locks:
            holder = self.network.dice.choice(list(self.locks.values()))
            self.locks = {shard: one for shard, one in self.locks.items() if one is not holder}


@define
class StatusRow:
    epoch: int = 0
    checkpoint: int = 0
    pending: Commit | None = None
    version: int = 0
    """Of what was written last; a write names the one that it has seen."""


@frozen
class Outcome:
    rows: list[Row]
    log: list[LogEntry]
    fenced: int
    met: Counter[str]
    crashes: int


@define
class World:
    """One history."""

    dice: random.Random
    model: Model
    mutation: str = ""
    status: dict[str, StatusRow] = field(factory=lambda: {shard: StatusRow() for shard in SHARDS})
    owners: list[Step] = field(factory=list)
    fenced: int = 0
    crashes: int = 0

    def owner(self, shards: Sequence[str]) -> Step:
        """An owner that has just taken these shards. It goes on until one of them fails or all are read."""
        epochs = {}
        for shard in shards:
            self.status[shard].epoch += 1
            epochs[shard] = self.status[shard].epoch
        try:
            while True:
                commits = []
                for shard in shards:
                    yield
                    commits += yield from self._prepared(shard, epochs[shard])
                if not commits:
                    return
                yield
                rows = [(one.shard, place) for one in commits for place in range(int(one.start), int(one.end))]
                yield from self.model.commit(rows, commits)
                for one in commits:
                    yield
                    yield from self._write(one.shard, epochs[one.shard], int(one.end), None)
        except FencedCommit:
            self.fenced += 1
        except (Lost, StreamClientError):
            return

    def _prepared(self, shard: str, epoch: int) -> Generator[None, None, list[Commit]]:
        """The next batch of a shard, remembered in the status table; a batch that was remembered comes first."""
        row, last = self.status[shard], self.model.lasts(len(self.model.place.log)).get(shard)
        if row.epoch != epoch:
            raise Lost  # the lease is gone, and it knows
        checkpoint, pending = row.checkpoint, row.pending
        if pending is not None and last is not None and last.digest == pending.digest:
            checkpoint, pending = int(pending.end), None
            yield from self._write(shard, epoch, checkpoint, pending)
        if checkpoint == RECORDS:
            return []
        end = min(RECORDS, checkpoint + self.dice.randint(1, 4))
        if pending is not None and self.mutation != "cuts anew":
            end = int(pending.end)
        if self.mutation == "cuts anew":
            last = None if last is None else evolve(last, end=str(checkpoint))
        commit = Commit.after(
            last,
            application="app",
            shard=shard,
            epoch=epoch,
            start=str(checkpoint),
            end=str(end),
            count=end - checkpoint,
            content=f"{shard}{checkpoint}-{end}",
        )
        yield from self._write(shard, epoch, checkpoint, commit)
        return [commit]

    def _write(self, shard: str, epoch: int, checkpoint: int, pending: Commit | None) -> Step:
        """Write the shard's row, and again until an answer says that it is done, or that the lease is gone."""
        row = self.status[shard]
        for _ in range(TRIES):
            try:
                request = partial(self._put, row, StatusRow(epoch, checkpoint, pending, row.version + 1))
                self.model.network.send(request, "prepare" if pending else "checkpoint")
                return
            except (Lost, Refused):
                if self.mutation == "commits what it may not have prepared" and pending:
                    return
                yield
                if row.epoch != epoch:
                    break
                if (row.checkpoint, row.pending) == (checkpoint, pending):
                    return
        raise Lost

    def _put(self, row: StatusRow, new: StatusRow) -> None:
        if (row.epoch, row.version) != (new.epoch, new.version - 1):
            raise Refused
        row.checkpoint, row.pending, row.version = new.checkpoint, new.pending, new.version

    def run(self) -> Outcome:
        for _ in range(STEPS):
            self._event()
        self.model.network.is_faulty = False
        for one in self.owners:
            one.close()
        while self.model.network.late:
            self.model.network.deliver_late()
        for _ in range(3):
            # Fenced or failed owners are followed by another one, as in life; the last one must get through.
            for _ in self.owner(SHARDS):
                pass
        place = self.model.place
        return Outcome(place.rows, place.log, self.fenced, self.model.network.met, self.crashes)

    def _event(self) -> None:
        kind = self.dice.random()
        if not self.owners or kind < 0.06:
            self.owners.append(self.owner(self.dice.sample(SHARDS, self.dice.randint(1, len(SHARDS)))))
        elif kind < 0.10:
            self.crashes += 1
            self.owners.pop(self.dice.randrange(len(self.owners))).close()
        elif kind < 0.16:
            self.model.network.deliver_late()
        elif kind < 0.18 and isinstance(self.model, Postgres):
            self.model.end_idle()
        else:
            # Whoever is not drawn is paused, for so long that its successors may get through.
            one = self.dice.choice(self.owners)
            if any(next(one, one) is one for _ in range(self.dice.randint(1, BURST_MAX))):
                self.owners.remove(one)


def run_history(kind: type[Model], seed: int, mutation: str = "") -> Outcome:
    dice = random.Random(seed)
    return World(dice, kind(Network(dice), mutation=mutation), mutation).run()


def violations(outcome: Outcome) -> list[str]:
    """What is wrong with a history that has ended."""
    found = []
    wanted = Counter((shard, place) for shard in SHARDS for place in range(RECORDS))
    stored = Counter(outcome.rows)
    if stored - wanted:
        found.append(f"stored twice: {sorted((stored - wanted).elements())}")
    if wanted - stored:
        found.append(f"lost: {sorted((wanted - stored).elements())}")
    commits = [one for entry in outcome.log for one in entry.commits]
    for shard in SHARDS:
        own = [one for one in commits if one.shard == shard]
        epochs = [one.epoch for one in own]
        if epochs != sorted(epochs):
            found.append(f"epochs of {shard} fall: {epochs}")
        if any(after.start != before.end for before, after in pairwise(own)):
            found.append(f"the chain of {shard} is broken")
    return found
