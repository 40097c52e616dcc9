"""The proof that a destination has each record exactly once: from its log alone, and by reading its rows.

The log shows that the commits of each shard form one chain: each commit begins where the previous commit ended, and
names the digest of that commit. It also shows that epochs never fall, that nothing follows the end of a shard, and that
children begin after their parents have ended. The rows show that each commit has exactly its rows, and that their
digest is the commit's.
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
    "it with its table, by `streamclient mirror CONFIG --verify` or `Mirror.verify`; without rows, its log is proved"
)


def verify(
    destination: Destination,
    *,
    parents: Mapping[str, Collection[str]] | None = None,
    checkpoints: Mapping[str, str] | Callable[[], Mapping[str, str]] | None = None,
    with_rows: bool = False,
) -> Proof:
    """Look for lost, repeated and damaged records.

    Args:
        destination: the destination to check. Its writers may go on meanwhile; a later proof covers their new commits.
        parents: the parents of each shard, as the stream lists them. Only parents that are read into this destination
            count.
        checkpoints: stored checkpoints by shard, of the application of ``destination``. Only they reveal that a
            destination has lost its latest commits. A function that returns them is called before and after the log is
            read, so that writers may go on meanwhile.
        with_rows: also read all rows, count them and compare their digests. Rows that were not made from change records
            alone cannot be compared.

    Raises:
        ConfigurationError: ``with_rows`` for a mirror, whose rows belong to no commit.
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
    """Refuse a destination whose rows belong to no commit.

    Raises:
        ConfigurationError: the destination is a mirror.
    """
    columns = destination.columns()
    if columns is not None and VERSION in columns.names:
        raise ConfigurationError(_MIRRORED)


def _check_fences(destination: Destination, proof: Proof) -> None:
    """Check that the destination's fence and its log have the same last commits."""
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
    if newer:  # a writer has committed since the log was read, or the log has lost its end or a whole shard
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
        pass  # the check for each shard finds out which
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
            continue  # the beginning of the log was removed
        place, first = chain.commits[0]
        for parent in sorted(parents.get(shard, ())):
            above = chains.get((application, parent), Chain())
            ends = [at for at, commit in above.commits if commit.end == CheckpointPosition.SHARD_END]
            if ends and ends[0] <= place:
                continue
            last = proof.lasts.get((application, parent))
            if not ends and last is not None and last.end == CheckpointPosition.SHARD_END:
                continue  # the end of the chain was repeated in a later entry
            until = "" if ends else ", and the parent has not ended yet"
            text = f"{first} began before its parent {parent} had ended{until}"
            proof.findings.append(found_in(Flaw.TREE, first, text))


def _check_checkpoints(
    proof: Proof, chains: Chains, application: str, earlier: Mapping[str, str], later: Mapping[str, str]
) -> None:
    """Check that the log has the position of each earlier checkpoint, and that no checkpoint went back since."""
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
        # The checkpoint is at the start of the last commit: the batch is committed, and its checkpoint comes next.
        wrong = before if before not in places else now if now in places - {last.start, last.end} else None
        if wrong is not None:
            text = f"the status table is at {wrong}, and the destination at {last}"
            proof.findings.append(Finding(Flaw.CHECKPOINT, shard, last.end, wrong, text))
