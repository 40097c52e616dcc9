"""The findings of a proof, and the check that the commits of each shard form one chain.

This check needs only the destination's log, not its rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from itertools import starmap

from attrs import define, field, frozen

from streamclient.base.reasons import counted
from streamclient.destinations.commit import Commit, LogEntry
from streamclient.model import CheckpointPosition


class Flaw(Enum):
    """The kinds of errors that a proof can find in a destination."""

    UNREADABLE = "unreadable"
    """A log entry or a file of rows cannot be read, because it has changed after it was written."""
    HOLE = "hole"
    """No commit covers the range of the finding in its shard."""
    OVERLAP = "overlap"
    """Several commits cover the range of the finding in its shard, or commits are in a wrong order."""
    ALTERED = "altered"
    """A commit's digest does not fit the commit's values, or differs from the digest that the next commit names."""
    EPOCH = "epoch"
    """A commit of an earlier owner follows a commit of a later owner, or two parts of the log name different epochs for
    one commit."""
    FENCE = "fence"
    """The shard's last commit in the destination's fence differs from its last commit in the log."""
    TREE = "tree"
    """The first commit of a child shard comes before the last commit of one of its parents."""
    CHECKPOINT = "checkpoint"
    """The shard's checkpoint in the status table disagrees with the destination's commits."""
    ROWS_LOST = "rows lost"
    ROWS_REPEATED = "rows repeated"
    ROWS_ALTERED = "rows altered"
    ROWS_UNKNOWN = "rows unknown"
    """The destination has rows that do not belong to any commit in the log."""


@frozen
class Finding:
    """An error that a proof has found, and the range of a shard that it concerns."""

    flaw: Flaw
    shard: str
    """The id of the shard; empty if a log entry or a file is damaged, or if rows do not name a shard."""
    start: str
    """The checkpoint at which the range begins; empty if unknown. ``end`` is the checkpoint at which it ends."""
    end: str
    text: str

    def __str__(self) -> str:
        return (
            f"{self.flaw.value}: shard {self.shard or '?'} from {self.start or '?'} to {self.end or '?'}: {self.text}"
        )


@define
class Proof:
    """The result of a check of a destination: how much was checked, and the errors that were found."""

    commits: int = 0
    records: int = 0
    """The sum of ``Commit.count`` over the checked commits."""
    rows: int | None = None
    """The number of rows that were read; ``None`` for a check of the log alone."""
    findings: list[Finding] = field(factory=list)
    losses: list[Commit] = field(factory=list)
    """The commits with ``is_past_loss``: records after their ``start`` were lost, and an operator accepted the loss."""
    lasts: dict[tuple[str, str], Commit] = field(factory=dict)
    """The last commit of each shard in the log, by application and shard."""

    def note_damage(self, text: str) -> None:
        """Add a finding for a log entry or file that cannot be read; ``text`` describes the damage."""
        self.findings.append(Finding(Flaw.UNREADABLE, "", "", "", text))

    @property
    def is_whole(self) -> bool:
        """Whether the check has found no errors."""
        return not self.findings

    def __str__(self) -> str:
        read = "" if self.rows is None else f", {counted(self.rows, 'row')} read"
        lost = "".join(
            f", records after {commit.start} of shard {commit.shard} lost and given up" for commit in self.losses
        )
        found = (len(self.lasts), "shard"), (self.commits, "commit"), (self.records, "record")
        head = f"{', '.join(starmap(counted, found))}{read}{lost}: "
        if self.is_whole:
            return head + "each record once"
        return head + f"{counted(len(self.findings), 'finding')}\n" + "\n".join(map(str, self.findings))


# --- the chains of commits --------------------------------------------------------------------------------------------


@define
class Chain:
    """The commits of one shard and application, in the order of the log, each with the index of its log entry."""

    commits: list[tuple[int, Commit]] = field(factory=list)
    carried: list[Commit] = field(factory=list)
    """Commits that later log entries repeat. A commit is repeated in a new entry before its original entry and older
    entries are removed from the log."""
    totals: dict[int, int] = field(factory=dict)
    """The number of the shard's records up to the end of each commit in ``carried``, as far as it is known. The keys
    are the numbers of these commits (``Commit.number``)."""

    @property
    def last_carried(self) -> int:
        """The highest number of a commit that a later entry repeats; 0 if no commit is repeated."""
        return max((commit.number for commit in self.carried), default=0)

    @property
    def last(self) -> int:
        """The highest number of a commit in the chain, including repeated commits; 0 for an empty chain."""
        return max(self.last_carried, *(commit.number for _, commit in self.commits), 0)

    @property
    def places(self) -> set[str]:
        """The checkpoints at which commits of the chain begin or end."""
        return {
            end
            for commit in (*self.carried, *(commit for _, commit in self.commits))
            for end in (commit.start, commit.end)
        }

    @property
    def first(self) -> int:
        """The number of the first commit whose own entry still exists; ``last_carried`` + 1 if no such entry exists."""
        return min((commit.number for _, commit in self.commits), default=self.last_carried + 1)

    @property
    def cleared(self) -> int:
        """The number of the last commit whose entry was removed; 0 if no entry was removed."""
        return min(self.first - 1, self.last_carried)

    def records_up_to(self, number: int) -> int | None:
        """Return the total number of records in the shard's commits up to ``number``; ``None`` if it is unknown.

        The result includes the records of commits whose entries were removed.
        """
        counts = {commit.number: commit.count for _, commit in self.commits}
        for known, total in (self.totals or {0: 0}).items():
            less, more = range(number + 1, known + 1), range(known + 1, number + 1)
            if counts.keys() >= {*less, *more}:
                return total - sum(counts[number] for number in less) + sum(counts[number] for number in more)
        return None


Chains = dict[tuple[str, str], Chain]


def ends_of(entries: Iterable[LogEntry]) -> dict[tuple[str, str], int]:
    """Return the number of the last commit in ``entries`` for each pair of application and shard.

    The result is right even if a clean-up removes earlier entries during the reading.
    """
    ends: dict[tuple[str, str], int] = {}
    for entry in entries:
        for commit in (*entry.carried, *entry.commits):
            key = commit.application, commit.shard
            ends[key] = max(ends.get(key, 0), commit.number)
    return ends


def read_chains(entries: Iterable[LogEntry], proof: Proof) -> Chains:
    """Read the chain of each application and shard from ``entries``; count the commits and add errors to ``proof``."""
    chains: Chains = {}
    for place, entry in enumerate(entries):
        if entry.damage and not entry.disputed:
            proof.note_damage(entry.damage)
        proof.findings.extend(found_in(Flaw.EPOCH, commit, f"{commit}: {entry.damage}") for commit in entry.disputed)
        for commit in entry.commits:
            chains.setdefault((commit.application, commit.shard), Chain()).commits.append((place, commit))
        for commit in entry.carried:
            chain = chains.setdefault((commit.application, commit.shard), Chain())
            chain.carried.append(commit)
            if commit.digest in entry.totals:
                chain.totals[commit.number] = entry.totals[commit.digest]
    for key, chain in chains.items():
        last = _check_chain(chain, proof)
        if last is not None:
            proof.lasts[key] = last
    return chains


def _check_chain(chain: Chain, proof: Proof) -> Commit | None:
    known = _check_carried(chain, proof)
    last: Commit | None = known.get(chain.first - 1)
    for _, commit in chain.commits:
        proof.commits += 1
        proof.records += commit.count
        if commit.is_past_loss:
            proof.losses.append(commit)
        if not commit.is_intact:
            proof.findings.append(
                found_in(Flaw.ALTERED, commit, f"the digest of {commit} does not belong to its values")
            )
        if last is None:
            _check_first(commit, chain.last_carried, proof)
        else:
            _check_next(last, commit, proof)
        if last is None or commit.number > last.number:
            last = commit
    for commit in chain.carried:
        if last is None or commit.number > last.number:
            if last is not None and chain.commits:
                text = f"a later entry repeats commit {commit.number}, but the log ends at {last.number}"
                proof.findings.append(Finding(Flaw.HOLE, commit.shard, last.end, commit.end, text))
            last = commit
    return last


def _check_carried(chain: Chain, proof: Proof) -> dict[int, Commit]:
    """Check the commits that later log entries repeat. Return all commits of the chain, by their numbers.

    Each of these commits must be intact, and must equal the commit in its original entry, if that entry still exists.
    If not, add a finding to ``proof``.
    """
    known = {original.number: original for _, original in chain.commits}
    for commit in chain.carried:
        if not commit.is_intact or known.setdefault(commit.number, commit) != commit:
            text = f"a later entry repeats {commit}, which differs from the original commit"
            proof.findings.append(found_in(Flaw.ALTERED, commit, text))
    return known


def _check_first(commit: Commit, carried: int, proof: Proof) -> None:
    if commit.number > 1 and carried < commit.number - 1:
        text = f"the log begins with commit {commit.number}, and no entry repeats an earlier commit"
        proof.findings.append(Finding(Flaw.HOLE, commit.shard, CheckpointPosition.TRIM_HORIZON, commit.start, text))


def _check_next(last: Commit, commit: Commit, proof: Proof) -> None:
    if commit.number <= last.number:
        text = f"commit {commit.number} comes after commit {last.number}"
        proof.findings.append(found_in(Flaw.OVERLAP, commit, text))
    elif commit.number > last.number + 1:
        text = f"commit {commit.number} comes after commit {last.number}"
        proof.findings.append(Finding(Flaw.HOLE, commit.shard, last.end, commit.start, text))
    elif commit.previous_digest != last.digest or commit.start != last.end:
        text = f"{commit} does not follow {last}"
        flaw = Flaw.ALTERED if commit.start == last.end else Flaw.HOLE
        proof.findings.append(Finding(flaw, commit.shard, last.start, commit.end, text))
    if last.end == CheckpointPosition.SHARD_END and commit.number > last.number:
        proof.findings.append(found_in(Flaw.OVERLAP, commit, f"{commit} comes after the end of the shard"))
    if commit.epoch < last.epoch:
        proof.findings.append(found_in(Flaw.EPOCH, commit, f"{commit} comes after {last}"))


def found_in(flaw: Flaw, commit: Commit, text: str) -> Finding:
    """Make a finding about the range of ``commit``, with ``text`` as its message."""
    return Finding(flaw, commit.shard, commit.start, commit.end, text)
