"""The proof finds losses, repeats and damages, each with its shard and range, and nothing where all is well."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from attrs import evolve

from streamclient.destinations import Commit
from streamclient.destinations.commit import LogEntry
from streamclient.destinations.memory_destination import MemoryDestination, MemoryPlace
from streamclient.destinations.proof.verification import Finding, Flaw, verify
from streamclient.model import CheckpointPosition
from streamclient.testing.contracts.destination_contract import batch, change, rows_for, store

SHARDS = ("shard-a", "shard-b", "shard-c")
COMMITS = 6
RECORDS = 4


def filled() -> MemoryPlace:
    """A copy of a place with three shards of six commits each."""
    place = template()
    return MemoryPlace(list(place.tables), list(place.entries), place.columns)


@cache
def template() -> MemoryPlace:
    place = MemoryPlace()
    destination = MemoryDestination(place)
    lasts: dict[str, Commit | None] = dict.fromkeys(SHARDS)
    for number in range(COMMITS):
        for base, shard in enumerate(SHARDS):
            records = [change(1_000 * base + 10 * number + n, v=n, w=f"text {n}") for n in range(RECORDS)]
            lasts[shard] = store(destination, lasts[shard], records, shard=shard, epoch=1 + number // 2)
    return place


def commit_of(place: MemoryPlace, shard: str, number: int) -> Commit:
    return next(c for entry in place.entries for c in entry.commits if (c.shard, c.number) == (shard, number))


def entry_index(place: MemoryPlace, commit: Commit) -> int:
    return next(index for index, entry in enumerate(place.entries) if commit in entry.commits)


def table_index(place: MemoryPlace, commit: Commit) -> int:
    return next(
        index
        for index, table in enumerate(place.tables)
        if table.column("_shard_id")[0].as_py() == commit.shard and table.column("_commit")[0].as_py() == commit.number
    )


def test_a_whole_destination_has_no_findings() -> None:
    proof = verify(MemoryDestination(filled()), with_rows=True)

    assert (proof.findings, proof.commits, proof.records, proof.rows) == ([], 18, 72, 72)
    assert str(proof) == "3 shards, 18 commits, 72 records, 72 rows read: each record once"


Damage = Callable[[MemoryPlace, Commit, random.Random], set[Flaw]]


def lose_entry(place: MemoryPlace, commit: Commit, dice: random.Random) -> set[Flaw]:
    del place.entries[entry_index(place, commit)]
    # Its rows are without a commit then; a shard's last entry is missed by its rows only.
    return {Flaw.ROWS_UNKNOWN} if commit.number == COMMITS else {Flaw.HOLE, Flaw.ROWS_UNKNOWN}


def lose_entry_and_rows(place: MemoryPlace, commit: Commit, dice: random.Random) -> set[Flaw]:
    del place.tables[table_index(place, commit)]
    del place.entries[entry_index(place, commit)]
    return {Flaw.CHECKPOINT} if commit.number == COMMITS else {Flaw.HOLE}


def repeat_entry(place: MemoryPlace, commit: Commit, dice: random.Random) -> set[Flaw]:
    place.entries.insert(dice.randint(entry_index(place, commit), len(place.entries)), LogEntry("again", (commit,)))
    return {Flaw.OVERLAP}


def alter_count(place: MemoryPlace, commit: Commit, dice: random.Random) -> set[Flaw]:
    other = evolve(commit, count=commit.count + dice.choice([-1, 1]))
    place.entries[entry_index(place, commit)] = LogEntry("altered", (other,))
    return {Flaw.ALTERED}


def alter_end(place: MemoryPlace, commit: Commit, dice: random.Random) -> set[Flaw]:
    place.entries[entry_index(place, commit)] = LogEntry("altered", (evolve(commit, end="elsewhere"),))
    return {Flaw.ALTERED}


def alter_epoch(place: MemoryPlace, commit: Commit, dice: random.Random) -> set[Flaw]:
    """Upwards for the first one: memory has nothing beside its log that would tell a lower one from the true one."""
    other = evolve(commit, epoch=commit.epoch + (9 if commit.number == 1 else -3))
    place.entries[entry_index(place, commit)] = LogEntry("altered", (other,))
    return {Flaw.EPOCH}


def lose_rows(place: MemoryPlace, commit: Commit, dice: random.Random) -> set[Flaw]:
    index = table_index(place, commit)
    kept = dice.sample(range(RECORDS), dice.randint(0, RECORDS - 1))
    place.tables[index] = place.tables[index].take(pa.array(kept, pa.int64()))
    return {Flaw.ROWS_LOST}


def repeat_rows(place: MemoryPlace, commit: Commit, dice: random.Random) -> set[Flaw]:
    again = place.tables[table_index(place, commit)].slice(dice.randint(0, RECORDS - 1), 1)
    place.tables.insert(dice.randint(0, len(place.tables)), again)
    return {Flaw.ROWS_REPEATED}


def repeat_one_and_lose_one(place: MemoryPlace, commit: Commit, dice: random.Random) -> set[Flaw]:
    """The number of rows is right."""
    index = table_index(place, commit)
    order = [0, *range(RECORDS - 1)]
    place.tables[index] = place.tables[index].take(pa.array(order, pa.int64()))
    return {Flaw.ROWS_ALTERED}


def alter_value(place: MemoryPlace, commit: Commit, dice: random.Random) -> set[Flaw]:
    index = table_index(place, commit)
    table = place.tables[index]
    name = dice.choice(["id", "v", "w", "_timestamp", "_operation"])
    column = table.column(name)
    other = {
        "w": pa.array(["other"] * RECORDS),
        "_operation": pa.array(["DELETE"] * RECORDS),
        "_timestamp": pc.add(column, pa.scalar(1, pa.duration("us"))) if name == "_timestamp" else None,
    }.get(name)
    if other is None:
        other = pc.add(column, 1)
    place.tables[index] = table.set_column(table.column_names.index(name), name, other)
    return {Flaw.ROWS_ALTERED}


def null_value(place: MemoryPlace, commit: Commit, dice: random.Random) -> set[Flaw]:
    """As a cast that failed leaves it."""
    index = table_index(place, commit)
    table = place.tables[index]
    place.tables[index] = table.set_column(table.column_names.index("v"), "v", pa.nulls(RECORDS, pa.int64()))
    return {Flaw.ROWS_ALTERED}


def move_rows(place: MemoryPlace, commit: Commit, dice: random.Random) -> set[Flaw]:
    """To a shard that has no commits."""
    index = table_index(place, commit)
    table = place.tables[index]
    place.tables[index] = table.set_column(
        table.column_names.index("_shard_id"), "_shard_id", pa.array([commit.shard + "x"] * RECORDS)
    )
    return {Flaw.ROWS_LOST}


def lose_the_number_of_a_row(place: MemoryPlace, commit: Commit, dice: random.Random) -> set[Flaw]:
    index = table_index(place, commit)
    table = place.tables[index]
    numbers = [None, *[commit.number] * (RECORDS - 1)]
    column = pa.array(dice.sample(numbers, RECORDS), pa.int64())
    place.tables[index] = table.set_column(table.column_names.index("_commit"), "_commit", column)
    return {Flaw.ROWS_LOST, Flaw.ROWS_UNKNOWN}


DAMAGES: Sequence[Damage] = (
    lose_entry,
    lose_entry_and_rows,
    repeat_entry,
    alter_count,
    alter_end,
    alter_epoch,
    lose_rows,
    repeat_rows,
    repeat_one_and_lose_one,
    alter_value,
    null_value,
    move_rows,
    lose_the_number_of_a_row,
)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_every_damage_is_found_with_its_shard_and_range(damage: Damage) -> None:
    """Each kind at each of the eighteen commits: more than two hundred different ones."""
    dice = random.Random(damage.__name__)
    for shard in SHARDS:
        for number in range(1, COMMITS + 1):
            place = filled()
            commit = commit_of(place, shard, number)
            ends = {one: commit_of(place, one, COMMITS).end for one in SHARDS}
            expected = damage(place, commit, dice)
            findings = verify(MemoryDestination(place), with_rows=True, checkpoints=ends).findings

            assert expected <= {one.flaw for one in findings}, (shard, number, findings)
            assert all(touches(one, commit) for one in findings), (shard, number, findings)


def touches(finding: Finding, commit: Commit) -> bool:
    """Whether the finding is of this shard, and its range begins or ends where that of the damaged commit does."""
    if finding.shard == commit.shard + "x":
        return True
    if finding.shard != commit.shard:
        return False
    if finding.flaw is Flaw.ROWS_UNKNOWN:
        return f"commit {commit.number}," in finding.text or "naming no commit" in finding.text
    if finding.flaw is Flaw.FENCE:
        return True  # it names the shard's last commit, whichever of them is damaged
    near = {commit.start, commit.end, "elsewhere"}
    return bool(near & {finding.start, finding.end})


def test_rows_that_do_not_say_their_commit_cannot_be_counted() -> None:
    """Those that a transform made of changes, for example."""
    for name in ("_shard_id", "_commit"):
        place = filled()
        place.tables = [table.drop_columns([name]) for table in place.tables]
        place.columns = place.tables[0].schema
        (finding,) = verify(MemoryDestination(place), with_rows=True).findings

        assert finding.flaw is Flaw.ROWS_UNKNOWN
        assert f"{len(SHARDS) * COMMITS * RECORDS} rows cannot be counted" in finding.text


class Racing(MemoryDestination):
    """Its log is read, and then a writer commits."""

    last: Commit | None = None

    def last_commits(self, shards: Sequence[str]) -> dict[str, Commit | None]:
        if self.last is None:
            self.last = commit_of(self.place, "shard-a", COMMITS)
            self.last = store(self, self.last, [change(99)], shard="shard-a", epoch=9)
        return super().last_commits(shards)


@pytest.mark.parametrize("with_rows", [False, True])
def test_a_writer_that_goes_on_meanwhile_is_no_finding(with_rows: bool) -> None:
    assert verify(Racing(filled()), with_rows=with_rows).findings == []


class Hasty(MemoryDestination):
    """Between two looks at its log a writer commits twice, and the first of these is cleared away again."""

    moment = ""

    def last_commits(self, shards: Sequence[str]) -> dict[str, Commit | None]:
        if self.moment != "fences":
            return super().last_commits(shards)
        last = store(self, commit_of(self.place, "shard-a", COMMITS), [change(98)], shard="shard-a", epoch=9)
        found = super().last_commits(shards)
        self._commit_and_clear(last)
        return found

    def rows(self, shards: Sequence[str] | None = None) -> Iterator[pa.Table]:
        if self.moment == "rows":
            last = store(self, commit_of(self.place, "shard-a", COMMITS), [change(98)], shard="shard-a", epoch=9)
            self._commit_and_clear(last)
        yield from super().rows(shards)

    def _commit_and_clear(self, last: Commit) -> None:
        self.moment = ""
        carried = [commit_of(self.place, shard, COMMITS) for shard in SHARDS if shard != last.shard]
        carried.append(store(self, last, [change(99)], shard=last.shard, epoch=9))
        self.place.entries[:] = [LogEntry("carried", carried=tuple(carried))]


@pytest.mark.parametrize("moment", ["fences", "rows"])
def test_what_was_committed_and_cleared_away_meanwhile_is_no_finding(moment: str) -> None:
    destination = Hasty(filled())
    destination.moment = moment

    assert verify(destination, with_rows=True).findings == []
    assert destination.moment == ""


@pytest.mark.parametrize(
    ("earlier", "later", "is_whole"), [(2, 7, True), (6, 6, True), (7, 7, False), (2, 2, False), (6, 2, False)]
)
def test_checkpoints_are_compared_with_a_log_that_grows(earlier: int, later: int, is_whole: bool) -> None:
    """Read before the log it must hold them, read after it they may be further, but not far behind."""
    place = filled()
    ends = [commit_of(place, "shard-a", one).end if one <= COMMITS else "further" for one in (earlier, later)]
    answers = iter([{"shard-a": end} for end in ends])
    findings = verify(MemoryDestination(place), checkpoints=lambda: next(answers)).findings

    assert [(one.flaw, one.shard) for one in findings] == ([] if is_whole else [(Flaw.CHECKPOINT, "shard-a")])


def test_a_last_commit_that_the_log_does_not_have_is_found() -> None:
    """What fences is kept beside the log, as in a database; the log has lost its end."""
    place = filled()
    last = commit_of(place, "shard-a", COMMITS)
    destination = Racing(place)
    destination.last = last
    destination.last_commits = lambda shards: {**dict.fromkeys(shards), "shard-a": last}  # type: ignore[method-assign]
    del place.entries[entry_index(place, last)]
    findings = {one.shard: one for one in verify(destination).findings}

    assert {one.flaw for one in findings.values()} == {Flaw.FENCE}
    assert (findings["shard-a"].start, findings["shard-a"].end) == (last.start, last.end)
    assert "nothing" in findings["shard-b"].text


def test_two_damages_at_once_are_both_found() -> None:
    place = filled()
    one, two = commit_of(place, "shard-a", 2), commit_of(place, "shard-c", 5)
    lose_rows(place, one, random.Random(1))
    lose_entry_and_rows(place, two, random.Random(1))
    found = {(finding.flaw, finding.shard) for finding in verify(MemoryDestination(place), with_rows=True).findings}

    assert found == {(Flaw.ROWS_LOST, "shard-a"), (Flaw.HOLE, "shard-c")}


def test_an_unreadable_entry_is_found_and_so_is_the_hole_behind_it() -> None:
    place = filled()
    index = entry_index(place, commit_of(place, "shard-b", 3))
    place.entries[index] = LogEntry.from_json("7", place.entries[index].to_json()[:-5])
    flaws = [finding.flaw for finding in verify(MemoryDestination(place)).findings]

    assert flaws == [Flaw.UNREADABLE, Flaw.HOLE]


# --- the shard tree ---------------------------------------------------------------------------------------------------

PARENTS = {"child": ("left", "right")}


def merged(steps: Sequence[str]) -> MemoryPlace:
    """One step for each letter: r and l end a parent, c is the first commit of the child."""
    place = MemoryPlace()
    destination = MemoryDestination(place)
    lasts = {name: store(destination, None, [change(n)], shard=name) for n, name in enumerate(("left", "right"))}
    for step in steps:
        if step == "c":
            store(destination, None, [change(9)], shard="child")
        else:
            name = {"l": "left", "r": "right"}[step]
            store(destination, lasts[name], [], shard=name, end=CheckpointPosition.SHARD_END)
    return place


@pytest.mark.parametrize(
    ("steps", "guilty"), [("lrc", []), ("lcr", ["right"]), ("rc", ["left"]), ("clr", ["left", "right"])]
)
def test_a_child_must_begin_after_its_parents_have_ended(steps: str, guilty: list[str]) -> None:
    findings = verify(MemoryDestination(merged(steps)), parents=PARENTS).findings

    assert [(one.flaw, one.shard) for one in findings] == [(Flaw.TREE, "child")] * len(guilty)
    assert all(f"parent {name}" in one.text for name, one in zip(guilty, findings, strict=True))


def test_a_commit_behind_the_end_of_a_shard_is_found() -> None:
    place = merged("l")
    end = place.entries[-1].commits[0]
    more = evolve(end, number=end.number + 1, start=end.end, end="more", previous_digest=end.digest)
    place.entries.append(LogEntry("x", (evolve(more, digest=more.chain_digest()),)))

    assert [one.flaw for one in verify(MemoryDestination(place)).findings] == [Flaw.OVERLAP]


# --- beginnings that are cleared away ---------------------------------------------------------------------------------


def test_entries_that_were_carried_on_before_they_were_cleared_are_no_hole() -> None:
    place = filled()
    carried = tuple(commit_of(place, shard, COMMITS) for shard in SHARDS)
    place.entries.append(LogEntry("carried", carried=carried))
    whole = verify(MemoryDestination(place), with_rows=True)
    del place.entries[:10]
    half = verify(MemoryDestination(place), with_rows=True)
    del place.entries[:-1]
    bare = verify(MemoryDestination(place), with_rows=True)

    assert [proof.findings for proof in (whole, half, bare)] == [[], [], []]
    assert bare.lasts == whole.lasts


def test_entries_that_were_lost_before_the_carrying_are_a_hole() -> None:
    place = filled()
    del place.entries[entry_index(place, commit_of(place, "shard-a", COMMITS))]
    place.entries.append(LogEntry("carried", carried=(commit_of(filled(), "shard-a", COMMITS),)))
    findings = verify(MemoryDestination(place)).findings

    assert [(one.flaw, one.shard) for one in findings] == [(Flaw.HOLE, "shard-a")]


@pytest.mark.parametrize("values", [{"count": 5}, {"end": "elsewhere"}, {"epoch": 9}, {"digest": "0" * 64}], ids=str)
def test_what_was_carried_on_otherwise_than_it_was_committed_is_found(values: dict[str, Any]) -> None:
    place = filled()
    carried = evolve(commit_of(place, "shard-a", 3), **values)
    place.entries.append(LogEntry("carried", carried=(carried,)))

    assert [(one.flaw, one.shard) for one in verify(MemoryDestination(place)).findings][:1] == [
        (Flaw.ALTERED, "shard-a")
    ]


def test_the_first_commit_that_is_left_follows_the_one_that_was_carried_on() -> None:
    place = filled()
    before, first = commit_of(place, "shard-a", 2), commit_of(place, "shard-a", 3)
    other = evolve(before, content="0" * 64)
    other = evolve(other, digest=other.chain_digest())
    place.entries[: entry_index(place, first)] = [LogEntry("carried", carried=(other,))]
    findings = [one for one in verify(MemoryDestination(place)).findings if one.shard == "shard-a"]

    assert [(one.flaw, one.start, one.end) for one in findings] == [(Flaw.ALTERED, before.start, first.end)]


def test_a_step_goes_on_behind_what_was_carried() -> None:
    place = filled()
    last = commit_of(place, "shard-a", COMMITS)
    place.entries[:] = [LogEntry("carried", carried=(last,))]
    destination = MemoryDestination(place)
    commit = batch(last, [change(77)], shard="shard-a", epoch=9)
    destination.commit(rows_for(destination, [change(77)], commit), [commit])

    assert destination.last_commits(["shard-a"]) == {"shard-a": commit}
    assert verify(destination).findings == []
