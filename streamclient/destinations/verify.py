"""Proof that a destination holds each record once: from its log alone, and by reading its rows.

From the log: the commits of each shard form one chain, each beginning where the one before ended and naming its digest;
epochs never fall; nothing follows the end of a shard; children begin after their parents have ended. With the
data: each commit has exactly its rows, and their digest is the commit's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from streamclient.destinations.changes import COMMIT, SHARD, records_of
from streamclient.destinations.commit import Commit, Destination, LogEntry, RowFiles
from streamclient.destinations.digest import records_digest
from streamclient.destinations.extra import compute, pyarrow
from streamclient.errors import CodecError
from streamclient.model import CheckpointPosition

if TYPE_CHECKING:
    from pyarrow import Table


_UNLIKE_RECORDS = (CodecError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What rows raise of which no records can be made: values may be of any kind and missing anywhere."""


class Flaw(Enum):
    """What is wrong with a range of a shard."""

    UNREADABLE = "unreadable"
    """An entry of the log, or a file of rows, is no longer what was written."""

    HOLE = "hole"
    """No commit says what became of the range."""

    OVERLAP = "overlap"
    """More than one commit has the range, or they stand in the wrong order."""

    ALTERED = "altered"
    """A commit's values do not give its digest."""

    EPOCH = "epoch"
    """A commit of an earlier owner follows one of a later owner."""

    TREE = "tree"
    """A child shard began before a parent had ended."""

    CHECKPOINT = "checkpoint"
    """The status table is at another place than the destination."""

    ROWS_LOST = "rows lost"
    ROWS_REPEATED = "rows repeated"
    ROWS_ALTERED = "rows altered"
    ROWS_UNKNOWN = "rows unknown"
    """Rows that belong to no commit of the log."""


@frozen
class Finding:
    """One thing that is wrong, and where."""

    flaw: Flaw
    shard: str
    """Empty if what is unreadable, or rows that are nobody's, do not say."""
    start: str
    """Position behind which the range lies."""
    end: str
    text: str

    def __str__(self) -> str:
        return (
            f"{self.flaw.value}: shard {self.shard or '?'} from {self.start or '?'} to {self.end or '?'}: {self.text}"
        )


@define
class Proof:
    """What was looked at, and what was found."""

    commits: int = 0
    records: int = 0
    """By the commits."""
    rows: int | None = None
    """Rows that were read; ``None`` without the data."""
    findings: list[Finding] = field(factory=list)
    losses: list[Commit] = field(factory=list)
    """Commits before whose records others were lost, as they had left the stream, and that was accepted."""
    lasts: dict[tuple[str, str], Commit] = field(factory=dict)
    """The last commit of each application and shard."""

    def note_damage(self, text: str) -> None:
        """Something that cannot be read, and so does not say what it held."""
        self.findings.append(Finding(Flaw.UNREADABLE, "", "", "", text))

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def __str__(self) -> str:
        read = "" if self.rows is None else f", {self.rows} rows read"
        lost = "".join(f", behind {one.start} of shard {one.shard} records lost and given up" for one in self.losses)
        head = f"{len(self.lasts)} shards, {self.commits} commits, {self.records} records{read}{lost}: "
        if self.is_whole:
            return head + "each record once"
        return head + f"{len(self.findings)} findings\n" + "\n".join(map(str, self.findings))


def verify(
    destination: Destination,
    *,
    parents: Mapping[str, Collection[str]] | None = None,
    checkpoints: Mapping[str, str] | None = None,
    with_rows: bool = False,
) -> Proof:
    """Look for losses, repeats and damages.

    Args:
        destination: where to look. Its writers may go on meanwhile, if ``with_rows`` is not set.
        parents: the parents of each shard, as the stream lists them, those that are read into this destination.
        checkpoints: stored checkpoints by shard, of the application of ``destination``: a destination that has lost its
            latest commits can only be told by them.
        with_rows: also read all rows, count them and compare their digests. Rows that other things than change records
            were made of cannot be compared.
    """
    proof = Proof()
    chains = _read_chains(destination.log(), proof)
    if parents:
        _check_tree(chains, parents, proof)
    if checkpoints is not None:
        _check_checkpoints(proof, destination.application, checkpoints)
    if with_rows:
        _check_rows(readable_rows(destination, proof.note_damage), chains, proof)
    return proof


@define
class _Chain:
    """The commits of one shard in one application, in the order of the log, each with the place of its entry."""

    commits: list[tuple[int, Commit]] = field(factory=list)
    carried: int = 0
    """The highest number that was carried on: entries up to there may have been cleared away."""


_Chains = dict[tuple[str, str], _Chain]


def _read_chains(entries: Iterable[LogEntry], proof: Proof) -> _Chains:
    chains: _Chains = {}
    carried: list[Commit] = []
    for place, entry in enumerate(entries):
        if entry.damage:
            proof.note_damage(entry.damage)
        for commit in entry.commits:
            chains.setdefault((commit.application, commit.shard), _Chain()).commits.append((place, commit))
        for commit in entry.carried:
            chain = chains.setdefault((commit.application, commit.shard), _Chain())
            chain.carried = max(chain.carried, commit.number)
            carried.append(commit)
    for key, chain in chains.items():
        own = [commit for commit in carried if (commit.application, commit.shard) == key]
        last = _check_chain(chain, own, proof)
        if last is not None:
            proof.lasts[key] = last
    return chains


def _check_chain(chain: _Chain, carried: list[Commit], proof: Proof) -> Commit | None:
    last: Commit | None = None
    for _, commit in chain.commits:
        proof.commits += 1
        proof.records += commit.count
        if commit.is_past_loss:
            proof.losses.append(commit)
        if not commit.is_intact:
            proof.findings.append(_found(Flaw.ALTERED, commit, f"the digest of {commit} does not belong to its values"))
        if last is None:
            _check_first(commit, chain.carried, proof)
        else:
            _check_next(last, commit, proof)
        if last is None or commit.number > last.number:
            last = commit
    for commit in carried:
        if last is None or commit.number > last.number:
            if last is not None:
                text = f"commit {commit.number} was carried on, but the log ends at {last.number}"
                proof.findings.append(Finding(Flaw.HOLE, commit.shard, last.end, commit.end, text))
            last = commit
    return last


def _check_first(commit: Commit, carried: int, proof: Proof) -> None:
    if commit.number > 1 and carried < commit.number - 1:
        text = f"the log begins with commit {commit.number}, and none of its entries carries an earlier one on"
        proof.findings.append(Finding(Flaw.HOLE, commit.shard, CheckpointPosition.TRIM_HORIZON, commit.start, text))


def _check_next(last: Commit, commit: Commit, proof: Proof) -> None:
    if commit.number <= last.number:
        text = f"commit {commit.number} stands behind commit {last.number}"
        proof.findings.append(_found(Flaw.OVERLAP, commit, text))
    elif commit.number > last.number + 1:
        text = f"commit {commit.number} stands behind commit {last.number}"
        proof.findings.append(Finding(Flaw.HOLE, commit.shard, last.end, commit.start, text))
    elif commit.previous_digest != last.digest or commit.start != last.end:
        text = f"{commit} does not follow {last}"
        flaw = Flaw.ALTERED if commit.start == last.end else Flaw.HOLE
        proof.findings.append(Finding(flaw, commit.shard, last.start, commit.end, text))
    if last.end == CheckpointPosition.SHARD_END and commit.number > last.number:
        proof.findings.append(_found(Flaw.OVERLAP, commit, f"{commit} stands behind the end of the shard"))
    if commit.epoch < last.epoch:
        proof.findings.append(_found(Flaw.EPOCH, commit, f"{commit} stands behind {last}"))


def _found(flaw: Flaw, commit: Commit, text: str) -> Finding:
    return Finding(flaw, commit.shard, commit.start, commit.end, text)


def _check_tree(chains: _Chains, parents: Mapping[str, Collection[str]], proof: Proof) -> None:
    for (application, shard), chain in chains.items():
        if not chain.commits or chain.commits[0][1].number > 1:
            continue  # its beginning is cleared away
        place, first = chain.commits[0]
        for parent in sorted(parents.get(shard, ())):
            above = chains.get((application, parent), _Chain())
            ends = [at for at, one in above.commits if one.end == CheckpointPosition.SHARD_END]
            if ends and ends[0] <= place:
                continue
            last = proof.lasts.get((application, parent))
            if not ends and last is not None and last.end == CheckpointPosition.SHARD_END:
                continue  # its end was carried on
            text = f"{first} began before its parent {parent} had ended" + (
                "" if ends else ", which it has not to this day"
            )
            proof.findings.append(_found(Flaw.TREE, first, text))


def _check_checkpoints(proof: Proof, application: str, checkpoints: Mapping[str, str]) -> None:
    for shard, checkpoint in sorted(checkpoints.items()):
        last = proof.lasts.get((application, shard))
        if last is None:
            if checkpoint != CheckpointPosition.TRIM_HORIZON:
                text = "the status table has a checkpoint, the destination no commit"
                start = CheckpointPosition.TRIM_HORIZON
                proof.findings.append(Finding(Flaw.CHECKPOINT, shard, start, checkpoint, text))
        elif checkpoint not in {last.start, last.end}:
            # At the start: the batch is committed, and its checkpoint comes next.
            text = f"the status table is at {checkpoint}, the destination at {last}"
            proof.findings.append(Finding(Flaw.CHECKPOINT, shard, last.end, checkpoint, text))


# --- the rows ---------------------------------------------------------------------------------------------------------


@define
class _Part:
    """Rows of one commit that were met so far."""

    commits: list[Commit]
    """One; more if several applications write the shard into one place."""
    tables: list[Table] = field(factory=list)
    """Let go as soon as they are all there, so that memory holds unfinished commits only."""
    rows: int = 0
    is_equal: bool | None = None

    @property
    def expected(self) -> int:
        return sum(commit.count for commit in self.commits)


def _check_rows(tables: Iterable[Table], chains: _Chains, proof: Proof) -> None:
    parts: dict[tuple[str, int], _Part] = {}
    for chain in chains.values():
        for _, commit in chain.commits:
            part = parts.setdefault((commit.shard, commit.number), _Part([]))
            if commit not in part.commits:
                part.commits.append(commit)
    cleared = {(shard, chain.carried) for (_, shard), chain in chains.items()}
    unknown: dict[tuple[str, int], int] = {}
    proof.rows = 0
    for table in tables:
        proof.rows += table.num_rows
        for shard, number, rows in _by_commit(table):
            found = parts.get((shard, number))
            if found is not None:
                _add(found, rows)
            elif not any(shard == one and number <= up_to for one, up_to in cleared):
                unknown[shard, number] = unknown.get((shard, number), 0) + rows.num_rows
    for (shard, number), count in sorted(unknown.items(), key=repr):
        proof.findings.append(_unknown(parts, shard, number, count))
    for part in parts.values():
        _check_part(part, proof)


def _unknown(parts: Mapping[tuple[str, int], _Part], shard: str, number: int, count: int) -> Finding:
    """Rows of no commit: between those with the nearest numbers."""
    own = [part.commits[0] for (name, _), part in parts.items() if name == shard and number is not None]
    before = max((one for one in own if one.number < number), key=lambda one: one.number, default=None)
    after = min((one for one in own if one.number > number), key=lambda one: one.number, default=None)
    text = f"{count} rows say that they are of commit {number}, which the log does not have"
    start, end = before.end if before else "", after.start if after else ""
    return Finding(Flaw.ROWS_UNKNOWN, shard or "", start, end, text)


def readable_rows(destination: Destination, tell: Callable[[str], object]) -> Iterator[Table]:
    """All rows that can be read. ``tell`` is told of each file that cannot, or not to its end.

    A destination that has no files raises, as ``rows`` does.
    """
    if not isinstance(destination, RowFiles):
        yield from destination.rows()
        return
    for name, read in destination.files():
        try:
            yield from read()
        except Exception as error:  # of whatever library reads it
            tell(f"the file {name} cannot be read: {error}")


def _by_commit(table: Table) -> Iterable[tuple[str, int, Table]]:
    keys = table.select([SHARD, COMMIT]).group_by([SHARD, COMMIT]).aggregate([]).to_pylist()
    if len(keys) == 1:
        return [(keys[0][SHARD], keys[0][COMMIT], table)]
    return [(key[SHARD], key[COMMIT], table.filter(_is(SHARD, key[SHARD]) & _is(COMMIT, key[COMMIT]))) for key in keys]


def _is(name: str, value: Any) -> Any:
    field = compute().field(name)
    return field.is_null() if value is None else field == value


def _add(part: _Part, rows: Table) -> None:
    part.rows += rows.num_rows
    part.tables.append(rows)
    if part.rows >= part.expected:
        _compare(part)


def _compare(part: _Part) -> None:
    if part.is_equal is None:
        part.is_equal = len(part.commits) > 1 or _digest(part.tables) == part.commits[0].content
    part.tables.clear()


def _check_part(part: _Part, proof: Proof) -> None:
    commit = part.commits[0]
    if part.rows != part.expected:
        flaw = Flaw.ROWS_LOST if part.rows < part.expected else Flaw.ROWS_REPEATED
        text = f"commit {commit.number} has {part.expected} records, the destination {part.rows} rows of them"
        proof.findings.append(_found(flaw, commit, text))
        return
    _compare(part)
    if not part.is_equal:
        text = f"the {part.rows} rows of commit {commit.number} are not the records that were committed"
        proof.findings.append(_found(Flaw.ROWS_ALTERED, commit, text))


def _digest(tables: list[Table]) -> str | None:
    try:
        return records_digest(records_of(pyarrow().concat_tables(tables, promote_options="default")) if tables else [])
    except _UNLIKE_RECORDS:
        return None
