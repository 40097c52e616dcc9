"""The comparison of a destination's rows with its commits, by the number and the digest of each commit's rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import define, field

from streamclient.base.reasons import counted
from streamclient.destinations.commit import Commit, Destination, RowFiles
from streamclient.destinations.destination_packages import compute, pyarrow
from streamclient.destinations.proof.commit_proof import Chain, Chains, Finding, Flaw, Proof, ends_of, found_in
from streamclient.destinations.rows.change_rows import COMMIT, SHARD, records_of
from streamclient.destinations.rows.digest import records_digest
from streamclient.errors import CodecError
from streamclient.model import CheckpointPosition

if TYPE_CHECKING:
    from pyarrow import Table

_UNLIKE_RECORDS = (CodecError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""The errors that ``records_of`` may raise for altered rows, whose values may be missing or have any type."""


@define
class _Part:
    """The rows of one commit that the check has read up to now."""

    commits: list[Commit]
    """The commit. If several applications write the shard into this table, each application may have a commit with the
    same number."""
    tables: list[Table] = field(factory=list)
    """The rows. To save memory, they are dropped when all rows of the commit were read and compared."""
    rows: int = 0
    is_equal: bool | None = None

    @property
    def expected(self) -> int:
        return sum(commit.count for commit in self.commits)


def _parts_of(chains: Chains) -> dict[tuple[str, int], _Part]:
    parts: dict[tuple[str, int], _Part] = {}
    for chain in chains.values():
        for _, commit in chain.commits:
            part = parts.setdefault((commit.shard, commit.number), _Part([]))
            if commit not in part.commits:
                part.commits.append(commit)
    return parts


def check_rows(destination: Destination, chains: Chains, proof: Proof) -> None:
    """Read all rows of the destination, and compare them with the commits in ``chains``.

    Findings about commits with wrong rows, and about rows without a commit, are added to ``proof``.
    """
    parts = _parts_of(chains)
    owners: dict[str, list[Chain]] = {}
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
            elif isinstance(number, int) and 0 < number <= cleared.get(shard, 0):
                older[shard] += rows.num_rows
            else:
                unknown[shard, number] = unknown.get((shard, number), 0) + rows.num_rows
    if unknown:  # writers may have committed after the log was read
        ends = _ends(destination)
        known = {shard: max(chain.last for chain in own) for shard, own in owners.items()}
        unknown = {
            (shard, number): count
            for (shard, number), count in unknown.items()
            if not (isinstance(number, int) and known.get(shard, 0) < number <= ends.get(shard, 0))
        }
    for (shard, number), count in sorted(unknown.items(), key=repr):
        proof.findings.append(_unknown(parts, shard, number, count))
    if uncounted:
        text = f"{counted(uncounted, 'row')} cannot be counted, as they lack the column {SHARD} or {COMMIT}"
        proof.findings.append(Finding(Flaw.ROWS_UNKNOWN, "", "", "", text))
        return
    for part in parts.values():
        _check_part(part, proof)
    for shard, own in owners.items():
        _check_older(shard, own, older[shard], proof)


def _ends(destination: Destination) -> dict[str, int]:
    """Read the log again. Return for each shard the highest number of a commit of any application."""
    ends: dict[str, int] = {}
    for (_, shard), number in ends_of(destination.log()).items():
        ends[shard] = max(ends.get(shard, 0), number)
    return ends


def _check_older(shard: str, chains: Sequence[Chain], rows: int, proof: Proof) -> None:
    """Check ``rows``, the number of the shard's rows that belong to commits without a log entry.

    A clean-up has removed the log entries of these commits.
    """
    records = [chain.records_up_to(chain.cleared) for chain in chains]
    wanted = sum(count or 0 for count in records)
    if None in records or rows == wanted:
        return
    ends = [commit.start for chain in chains for _, commit in chain.commits if commit.number == chain.first]
    flaw = Flaw.ROWS_LOST if rows < wanted else Flaw.ROWS_REPEATED
    found = counted(rows, "row")
    text = f"the commits with removed entries have {counted(wanted, 'record')}, but the destination has {found} of them"
    end = ends[0] if ends else max((commit.number, commit.end) for chain in chains for commit in chain.carried)[1]
    proof.findings.append(Finding(flaw, shard, CheckpointPosition.TRIM_HORIZON, end, text))


def _unknown(parts: Mapping[tuple[str, int], _Part], shard: str, number: int, count: int) -> Finding:
    """Make the finding about ``count`` rows that name commit ``number``, which the log does not have.

    The finding's range lies between the commits with the nearest lower and higher numbers.
    """
    own = [part.commits[0] for (name, _), part in parts.items() if name == shard and isinstance(number, int)]
    before = max((commit for commit in own if commit.number < number), key=lambda commit: commit.number, default=None)
    after = min((commit for commit in own if commit.number > number), key=lambda commit: commit.number, default=None)
    said = "no commit" if number is None else f"commit {number}, which the log does not have"
    text = f"{counted(count, 'row')} naming {said}"
    start, end = before.end if before else "", after.start if after else ""
    return Finding(Flaw.ROWS_UNKNOWN, shard or "", start, end, text)


def readable_rows(destination: Destination, tell: Callable[[str], object]) -> Iterator[Table]:
    """Yield all rows that can be read; call ``tell`` with a message for each file that cannot be read completely.

    If the destination does not list files, an error of ``Destination.rows`` is raised unchanged.
    """
    if not isinstance(destination, RowFiles):
        yield from destination.rows()
        return
    for name, read in destination.files():
        try:
            yield from read()
        except Exception as error:  # an error of any library that reads files
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
        found = counted(part.rows, "row")
        text = f"commit {commit.number} has {counted(part.expected, 'record')}, but the destination has {found} of it"
        proof.findings.append(found_in(flaw, commit, text))
        return
    _compare(part)
    if not part.is_equal:
        text = f"the rows of commit {commit.number} are not the records that were committed"
        proof.findings.append(found_in(Flaw.ROWS_ALTERED, commit, text))


def _digest(tables: list[Table]) -> str | None:
    try:
        return records_digest(records_of(pyarrow().concat_tables(tables, promote_options="default")) if tables else [])
    except _UNLIKE_RECORDS:
        return None
