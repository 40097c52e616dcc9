"""The proof that a destination stores each record exactly once, by its log, and optionally by its rows.

The log shows whether the commits of each shard form one chain: each commit begins where the previous commit ended, and
names the digest of that commit. The log also shows whether epochs never decrease, whether no commit follows the end of
a shard, and whether child shards begin after the end of their parents. The rows show whether each commit has the number
of rows and the digest that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from streamclient.destinations.commit import Commit, Destination, Fences
from streamclient.destinations.proof.commit_proof import (
    Chain,
    Chains,
    Finding,
    Flaw,
    Proof,
    ends_of,
    found_in,
    read_chains,
)
from streamclient.destinations.proof.row_proof import check_rows
from streamclient.destinations.rows.change_rows import VERSION
from streamclient.errors import ConfigurationError, StreamClientException
from streamclient.model import CheckpointPosition

__all__ = ["Finding", "Flaw", "Proof", "verify"]

_MIRRORED = (
    "the destination is a mirror: many commits make one of its rows, so its rows cannot be counted by commit. Compare "
    "it with its table, by `streamclient mirror CONFIG --verify` or `Mirror.verify`; without rows, its log is checked"
)


def verify(
    destination: Destination,
    *,
    parents: Mapping[str, Collection[str]] | None = None,
    checkpoints: Mapping[str, str] | Callable[[], Mapping[str, str]] | None = None,
    with_rows: bool = False,
) -> Proof:
    """Check a destination for lost, repeated and altered records; return the proof with its findings.

    Args:
        destination: the destination to check. Its writers may continue meanwhile, but this proof may lack their new
            commits.
        parents: the parents of each shard, as the stream lists them. Name only parents that are read into this
            destination.
        checkpoints: the checkpoints in the status table, by shard, of the fleet ``destination.application``. Without
            them, a loss of the latest commits stays undetected. If writers continue meanwhile, pass a function that
            reads the checkpoints. It is called before and after the log is read.
        with_rows: whether to read all rows, count them and compare their digests. Only rows that ``change_rows`` has
            made can be compared.

    Raises:
        ConfigurationError: ``with_rows`` is set for a mirror, whose rows do not belong to single commits.
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
        check_rows(destination, chains, proof)
    return proof


def refuse_mirror(destination: Destination) -> None:
    """Refuse a mirror, because each of its rows may result from many commits.

    Raises:
        ConfigurationError: the destination is a mirror.
    """
    columns = destination.columns()
    if columns is not None and VERSION in columns.names:
        raise ConfigurationError(_MIRRORED)


def _check_fences(destination: Destination, proof: Proof) -> None:
    """Check that each shard has the same last commit in the destination's fence as in its log."""
    own = {shard: last for (application, shard), last in proof.lasts.items() if application == destination.application}
    listed = destination.fenced_shards() if isinstance(destination, Fences) else ()
    newer: dict[str, Commit] = {}
    for shard, fence in _fences(destination, sorted({*own, *listed}), own, proof).items():
        last = own.get(shard)
        if fence is not None and (last is None or fence.number > last.number):
            newer[shard] = fence
        elif last is not None and fence != last:
            text = f"writers must follow {fence or 'nothing'}, but the log ends with {last}"
            proof.findings.append(found_in(Flaw.FENCE, last, text))
    if newer:  # a writer has committed after the log was read, or the log has lost its end or a whole shard
        ends = ends_of(destination.log())
        for shard, fence in newer.items():
            if ends.get((destination.application, shard), 0) < fence.number:
                text = f"writers must follow {fence}, which the log does not have"
                proof.findings.append(Finding(Flaw.FENCE, shard, _end(own.get(shard)), fence.end, text))


def _fences(
    destination: Destination, shards: Sequence[str], own: Mapping[str, Commit], proof: Proof
) -> dict[str, Commit | None]:
    try:
        return dict(destination.last_commits(shards))
    except StreamClientException:
        pass  # the loop below finds out for which shards the call fails
    found: dict[str, Commit | None] = {}
    for shard in shards:
        try:
            found.update(destination.last_commits([shard]))
        except StreamClientException as error:
            last = own.get(shard)
            start, end = (last.start, last.end) if last else (CheckpointPosition.TRIM_HORIZON, "")
            proof.findings.append(Finding(Flaw.FENCE, shard, start, end, str(error)))
    return found


def _end(last: Commit | None) -> str:
    return CheckpointPosition.TRIM_HORIZON if last is None else last.end


def _check_tree(chains: Chains, parents: Mapping[str, Collection[str]], proof: Proof) -> None:
    for (application, shard), chain in chains.items():
        if not chain.commits or chain.commits[0][1].number > 1:
            continue  # the shard's first log entries were removed
        place, first = chain.commits[0]
        for parent in sorted(parents.get(shard, ())):
            above = chains.get((application, parent), Chain())
            ends = [at for at, commit in above.commits if commit.end == CheckpointPosition.SHARD_END]
            if ends and ends[0] <= place:
                continue
            last = proof.lasts.get((application, parent))
            if not ends and last is not None and last.end == CheckpointPosition.SHARD_END:
                continue  # the parent's last commit is only in a later entry, which repeats it
            until = "" if ends else ", and the parent has not ended yet"
            text = f"{first} began before its parent {parent} had ended{until}"
            proof.findings.append(found_in(Flaw.TREE, first, text))


def _check_checkpoints(
    proof: Proof, chains: Chains, application: str, earlier: Mapping[str, str], later: Mapping[str, str]
) -> None:
    """Check that a commit in the log begins or ends at each checkpoint, and that no checkpoint has moved back.

    ``earlier`` and ``later`` are the checkpoints of the status table before and after the log was read.
    """
    for shard in sorted({*earlier, *later}):
        before = earlier.get(shard, CheckpointPosition.TRIM_HORIZON)
        last = proof.lasts.get((application, shard))
        if last is None:
            if before != CheckpointPosition.TRIM_HORIZON:
                text = "the status table has a checkpoint, and the destination has no commit"
                start = CheckpointPosition.TRIM_HORIZON
                proof.findings.append(Finding(Flaw.CHECKPOINT, shard, start, before, text))
            continue
        places = chains[application, shard].places
        now = later.get(shard, before)
        # A checkpoint at the start of the last commit is right, too: a worker commits to the destination first, and
        # stores its checkpoint later.
        wrong = before if before not in places else now if now in places - {last.start, last.end} else None
        if wrong is not None:
            text = f"the checkpoint in the status table is {wrong}, and the destination is at {last}"
            proof.findings.append(Finding(Flaw.CHECKPOINT, shard, last.end, wrong, text))
