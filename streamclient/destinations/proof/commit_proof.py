"""The findings of a proof, and the check that the commits of each shard form one chain.

That check needs only the log.
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
    """A kind of error in a range of a shard."""

    UNREADABLE = "unreadable"
    """An entry of the log, or a file of rows, has changed since it was written."""
    HOLE = "hole"
    """No commit covers the range."""
    OVERLAP = "overlap"
    """More than one commit covers the range, or their order is wrong."""
    ALTERED = "altered"
    """A commit's values do not give its digest."""
    EPOCH = "epoch"
    """A commit of an earlier owner follows a commit of a later owner, or the log gives a commit two epochs."""
    FENCE = "fence"
    """The fence of the shard does not name the last commit of its log."""
    TREE = "tree"
    """A child shard began before a parent had ended."""
    CHECKPOINT = "checkpoint"
    """The checkpoint in the status table is not at the destination's position."""
    ROWS_LOST = "rows lost"
    ROWS_REPEATED = "rows repeated"
    ROWS_ALTERED = "rows altered"
    ROWS_UNKNOWN = "rows unknown"
    """Rows that belong to no commit of the log."""


@frozen
class Finding:
    """One error, and the range of a shard in which it is."""

    flaw: Flaw
    shard: str
    """The shard; empty if the unreadable entry or the unknown rows do not name it."""
    start: str
    """The position before the range."""
    end: str
    text: str

    def __str__(self) -> str:
        return (
            f"{self.flaw.value}: shard {self.shard or '?'} from {self.start or '?'} to {self.end or '?'}: {self.text}"
        )


@define
class Proof:
    """The extent and the findings of a proof."""

    commits: int = 0
    records: int = 0
    """The number of records according to the commits."""
    rows: int | None = None
    """The number of rows read; ``None`` if the rows were not read."""
    findings: list[Finding] = field(factory=list)
    losses: list[Commit] = field(factory=list)
    """Commits that follow an accepted loss, that is, records left the stream before they were committed."""
    lasts: dict[tuple[str, str], Commit] = field(factory=dict)
    """The last commit of each shard, by application and shard."""

    def note_damage(self, text: str) -> None:
        """Note an unreadable entry or file, whose content is therefore unknown."""
        self.findings.append(Finding(Flaw.UNREADABLE, "", "", "", text))

    @property
    def is_whole(self) -> bool:
        """Whether there are no findings."""
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
    """The commits of one shard in one application, in the order of the log, each with its entry's position."""

    commits: list[tuple[int, Commit]] = field(factory=list)
    carried: list[Commit] = field(factory=list)
    """Commits that a later entry repeats. All entries up to the highest of these commits may have been removed."""
    totals: dict[int, int] = field(factory=dict)
    """The number of records up to a repeated commit, by its number."""

    @property
    def last_carried(self) -> int:
        """The highest number of a repeated commit; 0 without such a commit."""
        return max((commit.number for commit in self.carried), default=0)

    @property
    def last(self) -> int:
        """The highest number of the chain's commits."""
        return max(self.last_carried, *(commit.number for _, commit in self.commits), 0)

    @property
    def places(self) -> set[str]:
        """The end positions of all commits of the chain."""
        return {
            end
            for commit in (*self.carried, *(commit for _, commit in self.commits))
            for end in (commit.start, commit.end)
        }

    @property
    def first(self) -> int:
        """The number of the first commit whose entry exists."""
        return min((commit.number for _, commit in self.commits), default=self.last_carried + 1)

    @property
    def cleared(self) -> int:
        """The number of the last commit whose entry was removed; 0 if none was."""
        return min(self.first - 1, self.last_carried)

    def records_up_to(self, number: int) -> int | None:
        """Return the number of records up to a commit, those of removed entries included; ``None`` if it is unknown."""
        counts = {commit.number: commit.count for _, commit in self.commits}
        for known, total in (self.totals or {0: 0}).items():
            less, more = range(number + 1, known + 1), range(known + 1, number + 1)
            if counts.keys() >= {*less, *more}:
                return total - sum(counts[number] for number in less) + sum(counts[number] for number in more)
        return None


Chains = dict[tuple[str, str], Chain]


def ends_of(entries: Iterable[LogEntry]) -> dict[tuple[str, str], int]:
    """Return the number of the last commit of each application and shard.

    Use this for a second look at a log to which writers add: earlier entries may have been removed meanwhile.
    """
    ends: dict[tuple[str, str], int] = {}
    for entry in entries:
        for commit in (*entry.carried, *entry.commits):
            key = commit.application, commit.shard
            ends[key] = max(ends.get(key, 0), commit.number)
    return ends


def read_chains(entries: Iterable[LogEntry], proof: Proof) -> Chains:
    """Return the commits of each application and shard; note errors of their chains in ``proof``."""
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
                text = f"commit {commit.number} was carried on, but the log ends at {last.number}"
                proof.findings.append(Finding(Flaw.HOLE, commit.shard, last.end, commit.end, text))
            last = commit
    return last


def _check_carried(chain: Chain, proof: Proof) -> dict[int, Commit]:
    """Check that each repeated commit equals the original commit; return the commits by their numbers."""
    known = {original.number: original for _, original in chain.commits}
    for commit in chain.carried:
        if not commit.is_intact or known.setdefault(commit.number, commit) != commit:
            text = f"{commit} was carried on, and differs from the original commit"
            proof.findings.append(found_in(Flaw.ALTERED, commit, text))
    return known


def _check_first(commit: Commit, carried: int, proof: Proof) -> None:
    if commit.number > 1 and carried < commit.number - 1:
        text = f"the log begins with commit {commit.number}, and no entry carries an earlier one on"
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
    """Return a finding for the range of ``commit``."""
    return Finding(flaw, commit.shard, commit.start, commit.end, text)
