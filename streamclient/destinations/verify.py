"""Proof that a destination holds each record once: from its log alone, and by reading its rows.

From the log: the commits of each shard form one chain, each beginning where the one before ended and naming its digest;
epochs never fall; nothing follows the end of a shard; children begin after their parents have ended. With the
data: each commit has exactly its rows, and their digest is the commit's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from streamclient.destinations.changes import COMMIT, SHARD, VERSION, records_of
from streamclient.destinations.commit import Commit, Destination, LogEntry, RowFiles
from streamclient.destinations.digest import records_digest
from streamclient.destinations.extra import compute, pyarrow
from streamclient.errors import CodecError, ConfigurationError, StreamClientException
from streamclient.model import CheckpointPosition

if TYPE_CHECKING:
    from pyarrow import Table

_MIRRORED = (
    "the destination is a mirror: a row of it is made of many commits, so its rows cannot be counted by them. Compare "
    "it with its table, by `streamclient mirror CONFIG --verify` or `Mirror.verify`; without rows, its log is proved"
)

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
    """A commit of an earlier owner follows one of a later owner, or the log gives it two epochs."""
    FENCE = "fence"
    """What refuses late writers of the shard does not name the commit with which its log ends."""
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
    checkpoints: Mapping[str, str] | Callable[[], Mapping[str, str]] | None = None,
    with_rows: bool = False,
) -> Proof:
    """Look for losses, repeats and damages.

    Args:
        destination: where to look. Its writers may go on meanwhile; what they commit is proved the next time.
        parents: the parents of each shard, as the stream lists them, those that are read into this destination.
        checkpoints: stored checkpoints by shard, of the application of ``destination``: a destination that has lost its
            latest commits can only be told by them. A call that reads them is made before and after the log is read, so
            that writers may go on meanwhile.
        with_rows: also read all rows, count them and compare their digests. Rows that other things than change records
            were made of cannot be compared.

    Raises:
        ConfigurationError: ``with_rows`` for a mirror, whose rows are no commit's.
    """
    if with_rows:
        refuse_mirror(destination)
    proof = Proof()
    read = checkpoints if callable(checkpoints) else lambda: checkpoints or {}
    earlier = read()
    chains = read_chains(destination.log(), proof)
    _check_fences(destination, proof)
    if parents:
        _check_tree(chains, parents, proof)
    _check_checkpoints(proof, chains, destination.application, earlier, read())
    if with_rows:
        _check_rows(destination, chains, proof)
    return proof


def refuse_mirror(destination: Destination) -> None:
    """Refuse a destination whose rows are no commit's.

    Raises:
        ConfigurationError: it is a mirror.
    """
    columns = destination.columns()
    if columns is not None and VERSION in columns.names:
        raise ConfigurationError(_MIRRORED)


@define
class _Chain:
    """The commits of one shard in one application, in the order of the log, each with the place of its entry."""

    commits: list[tuple[int, Commit]] = field(factory=list)
    carried: list[Commit] = field(factory=list)
    """Those that were carried on: entries up to the highest of them may have been cleared away."""
    totals: dict[int, int] = field(factory=dict)
    """Records up to a commit that was carried on, by its number."""

    @property
    def last_carried(self) -> int:
        return max((one.number for one in self.carried), default=0)

    @property
    def places(self) -> set[str]:
        """The ends of all its ranges."""
        return {end for one in (*self.carried, *(one for _, one in self.commits)) for end in (one.start, one.end)}

    @property
    def first(self) -> int:
        """The number of the first commit whose entry is there."""
        return min((one.number for _, one in self.commits), default=self.last_carried + 1)

    @property
    def cleared(self) -> int:
        """The number of the last commit whose entry is cleared away; 0 if none is."""
        return min(self.first - 1, self.last_carried)

    def records_up_to(self, number: int) -> int | None:
        """Records up to a commit, also of entries that are cleared away; ``None`` if nobody can tell any more."""
        counts = {one.number: one.count for _, one in self.commits}
        for known, total in (self.totals or {0: 0}).items():
            less, more = range(number + 1, known + 1), range(known + 1, number + 1)
            if counts.keys() >= {*less, *more}:
                return total - sum(counts[one] for one in less) + sum(counts[one] for one in more)
        return None


_Chains = dict[tuple[str, str], _Chain]


def read_chains(entries: Iterable[LogEntry], proof: Proof) -> _Chains:
    """The commits of each application and shard; what is wrong with their chains is noted."""
    chains: _Chains = {}
    for place, entry in enumerate(entries):
        if entry.damage and not entry.disputed:
            proof.note_damage(entry.damage)
        proof.findings.extend(_found(Flaw.EPOCH, one, f"{one}: {entry.damage}") for one in entry.disputed)
        for commit in entry.commits:
            chains.setdefault((commit.application, commit.shard), _Chain()).commits.append((place, commit))
        for commit in entry.carried:
            chain = chains.setdefault((commit.application, commit.shard), _Chain())
            chain.carried.append(commit)
            if commit.digest in entry.totals:
                chain.totals[commit.number] = entry.totals[commit.digest]
    for key, chain in chains.items():
        last = _check_chain(chain, proof)
        if last is not None:
            proof.lasts[key] = last
    return chains


def _check_chain(chain: _Chain, proof: Proof) -> Commit | None:
    known = _check_carried(chain, proof)
    last: Commit | None = known.get(chain.first - 1)
    for _, commit in chain.commits:
        proof.commits += 1
        proof.records += commit.count
        if commit.is_past_loss:
            proof.losses.append(commit)
        if not commit.is_intact:
            proof.findings.append(_found(Flaw.ALTERED, commit, f"the digest of {commit} does not belong to its values"))
        if last is None:
            _check_first(commit, chain.last_carried, proof)
        else:
            _check_next(last, commit, proof)
        if last is None or commit.number > last.number:
            last = commit
    for commit in chain.carried:
        if last is None or commit.number > last.number:
            if last is not None and chain.commits:
                text = f"commit {commit.number} was carried on, but the log ends at {last.number}"
                proof.findings.append(Finding(Flaw.HOLE, commit.shard, last.end, commit.end, text))
            last = commit
    return last


def _check_carried(chain: _Chain, proof: Proof) -> dict[int, Commit]:
    """What is carried on must be what was committed, each time; the commits by their numbers."""
    known = {one.number: one for _, one in chain.commits}
    for commit in chain.carried:
        if not commit.is_intact or known.setdefault(commit.number, commit) != commit:
            text = f"{commit} was carried on, and is not what was committed"
            proof.findings.append(_found(Flaw.ALTERED, commit, text))
    return known


def _check_fences(destination: Destination, proof: Proof) -> None:
    """The last commits that the destination goes by must be those of its log."""
    own = {shard: last for (application, shard), last in proof.lasts.items() if application == destination.application}
    newer: dict[str, Commit] = {}
    for shard, fence in _fences(destination, own, proof).items():
        last = own[shard]
        if fence is not None and fence.number > last.number:
            newer[shard] = fence
        elif fence != last:
            text = f"writers must follow {fence or 'nothing'}, but the log ends with {last}"
            proof.findings.append(_found(Flaw.FENCE, last, text))
    if newer:  # a writer has gone on since the log was read, or the log has lost its end
        entries = list(destination.log())
        for shard, fence in newer.items():
            if not any(fence in (*entry.carried, *entry.commits) for entry in entries):
                text = f"writers must follow {fence}, which the log does not have"
                proof.findings.append(Finding(Flaw.FENCE, shard, own[shard].end, fence.end, text))


def _fences(destination: Destination, lasts: Mapping[str, Commit], proof: Proof) -> dict[str, Commit | None]:
    try:
        return dict(destination.last_commits(list(lasts)))
    except StreamClientException:
        pass  # each shard says by itself whether it is the one
    found: dict[str, Commit | None] = {}
    for shard, last in lasts.items():
        try:
            found.update(destination.last_commits([shard]))
        except StreamClientException as error:
            proof.findings.append(_found(Flaw.FENCE, last, str(error)))
    return found


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
            until = "" if ends else ", which it has not to this day"
            text = f"{first} began before its parent {parent} had ended{until}"
            proof.findings.append(_found(Flaw.TREE, first, text))


def _check_checkpoints(
    proof: Proof, chains: _Chains, application: str, earlier: Mapping[str, str], later: Mapping[str, str]
) -> None:
    """What was stored before the log was read must be in it, and what was after that, not be behind it."""
    for shard in sorted({*earlier, *later}):
        before = earlier.get(shard, CheckpointPosition.TRIM_HORIZON)
        last = proof.lasts.get((application, shard))
        if last is None:
            if before != CheckpointPosition.TRIM_HORIZON:
                text = "the status table has a checkpoint, the destination no commit"
                start = CheckpointPosition.TRIM_HORIZON
                proof.findings.append(Finding(Flaw.CHECKPOINT, shard, start, before, text))
            continue
        places = chains[application, shard].places
        now = later.get(shard, before)
        # At the start of the last commit: the batch is committed, and its checkpoint comes next.
        wrong = before if before not in places else now if now in places - {last.start, last.end} else None
        if wrong is not None:
            text = f"the status table is at {wrong}, the destination at {last}"
            proof.findings.append(Finding(Flaw.CHECKPOINT, shard, last.end, wrong, text))


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


def _parts_of(chains: _Chains) -> dict[tuple[str, int], _Part]:
    parts: dict[tuple[str, int], _Part] = {}
    for chain in chains.values():
        for _, commit in chain.commits:
            part = parts.setdefault((commit.shard, commit.number), _Part([]))
            if commit not in part.commits:
                part.commits.append(commit)
    return parts


def _check_rows(destination: Destination, chains: _Chains, proof: Proof) -> None:
    parts = _parts_of(chains)
    owners: dict[str, list[_Chain]] = {}
    for (_, shard), chain in chains.items():
        owners.setdefault(shard, []).append(chain)
    cleared = {shard: max(chain.cleared for chain in own) for shard, own in owners.items()}
    older = dict.fromkeys(owners, 0)
    unknown: dict[tuple[str, int], int] = {}
    uncounted = proof.rows = 0
    for table in readable_rows(destination, proof.note_damage):
        proof.rows += table.num_rows
        if not {SHARD, COMMIT} <= set(table.column_names):
            uncounted += table.num_rows
            continue
        for shard, number, rows in _by_commit(table):
            found = parts.get((shard, number))
            if found is not None:
                found.rows += rows.num_rows
                found.tables.append(rows)
                _compare(found)
            elif isinstance(number, int) and number <= cleared.get(shard, 0):
                older[shard] += rows.num_rows
            else:
                unknown[shard, number] = unknown.get((shard, number), 0) + rows.num_rows
    if unknown:  # writers may have gone on since the log was read
        newer = {(one.shard, one.number) for entry in destination.log() for one in (*entry.carried, *entry.commits)}
        unknown = {of: count for of, count in unknown.items() if of not in newer}
    for (shard, number), count in sorted(unknown.items(), key=repr):
        proof.findings.append(_unknown(parts, shard, number, count))
    if uncounted:
        text = f"{uncounted} rows cannot be counted, as they lack the column {SHARD} or {COMMIT}"
        proof.findings.append(Finding(Flaw.ROWS_UNKNOWN, "", "", "", text))
        return
    for part in parts.values():
        _check_part(part, proof)
    for shard, own in owners.items():
        _check_older(shard, own, older[shard], proof)


def _check_older(shard: str, chains: Sequence[_Chain], rows: int, proof: Proof) -> None:
    """Rows of commits whose entries are cleared away can only be counted together."""
    records = [chain.records_up_to(chain.cleared) for chain in chains]
    wanted = sum(one or 0 for one in records)
    if None in records or rows == wanted:
        return
    ends = [one.start for chain in chains for _, one in chain.commits if one.number == chain.first]
    flaw = Flaw.ROWS_LOST if rows < wanted else Flaw.ROWS_REPEATED
    text = f"the commits whose entries are cleared away have {wanted} records, the destination {rows} rows of them"
    end = ends[0] if ends else max((one.number, one.end) for chain in chains for one in chain.carried)[1]
    proof.findings.append(Finding(flaw, shard, CheckpointPosition.TRIM_HORIZON, end, text))


def _unknown(parts: Mapping[tuple[str, int], _Part], shard: str, number: int, count: int) -> Finding:
    """Rows of no commit: between those with the nearest numbers."""
    own = [part.commits[0] for (name, _), part in parts.items() if name == shard and isinstance(number, int)]
    before = max((one for one in own if one.number < number), key=lambda one: one.number, default=None)
    after = min((one for one in own if one.number > number), key=lambda one: one.number, default=None)
    said = "no commit" if number is None else f"commit {number}, which the log does not have"
    text = f"{count} rows say that they are of {said}"
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


def _compare(part: _Part) -> None:
    if part.rows >= part.expected:
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
