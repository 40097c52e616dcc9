"""One commit: from the cuts of some shards to their checkpoints.

The order of the steps makes a crash repeat records but never lose any:

1. The committer cuts each due shard's waiting pages, from its stored checkpoint to the end of a read. If an earlier
   owner prepared a batch that was never completed, it cuts where that owner did.
2. The records of each shard become columns and a commit, with their start, end and digest.
3. For a destination, each shard prepares its checkpoint with that commit. The owner of the shard after a crash can then
   tell which batch it was, and finishes exactly that one (``outputs``).
4. The columns of all shards become one Arrow table, and for a transform or a sink a DataFrame.
5. The rows, or the transform's result, are stored with the commits of all shards in one step; or the sink writes them.
   Until that returns, nothing is checkpointed. After an error the destination is asked for its last commits.
6. Each shard stores its end position, unless it was refused or its lease was lost meanwhile. A shard whose answer
   is missing or negative ends here: its next batch must start at the position that is really stored.
7. The committer frees the room, and wakes the threads that wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from attrs import define, frozen

from streamclient.base.reasons import counted
from streamclient.destinations.commit import Commit, FencedCommit
from streamclient.destinations.rows.column_layout import ChangeColumns
from streamclient.destinations.rows.digest import records_digest
from streamclient.destinations.rows.page_columns import columns_of_pages
from streamclient.errors import ApplicationException, ShutdownException, StreamClientError
from streamclient.interfaces import InitializationInput
from streamclient.model import PendingCheckpoint
from streamclient.spark.processor.buffer import ShardBatch
from streamclient.spark.processor.context import BatchContext, FrameColumn, ShardRange
from streamclient.spark.processor.jobs import CancellableJobs
from streamclient.spark.processor.shard_share import ShardShare

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Sink = Callable[["DataFrame", BatchContext], None]
"""A function that writes one batch completely before it returns. If it writes a range again, the repeat must add
nothing."""

Transform = Callable[["DataFrame", BatchContext], "DataFrame"]
"""A function that makes the rows to store from the changes of one batch."""

Outcome = dict[ShardShare, StreamClientError | None]
"""For each shard of the batch, the reason why the shard ends; ``None`` if its checkpoint is stored."""

_UNDECLARED = (
    " (a frame has the columns that changes had since this process began, and those that are declared: declare the "
    "columns that the transform or sink needs, by table= or schema=)"
)
"""The remedy for a column that is unknown to Spark. Spark's own text is long, and users should not have to read to its
end."""

_ANSWERS_MAX = 16
"""The largest number of checkpoints that are stored at the same time. Each waits for the status table, which takes many
at once."""


@frozen
class Piece:
    """One shard's part of a batch."""

    share: ShardShare
    cut: ShardBatch


@frozen(eq=False)
class Part:
    """A shard's part of a batch, with the commit and the columns that are stored for it."""

    piece: Piece
    changes: ChangeColumns
    commit: Commit

    @property
    def range(self) -> ShardRange:
        """The range of records that a sink receives as information."""
        info, cut = self.piece.share.shard_info, self.piece.cut
        return ShardRange(
            shard_id=info.shard_id,
            stream_id=info.stream_id,
            lease_identifier=info.lease_identifier,
            start_position=cut.start_position,
            end_position=cut.end_position,
            record_count=cut.record_count,
            first_sequence=cut.first,
            last_sequence=cut.last,
            epoch=info.epoch,
        )


@frozen
class Beginning:
    """The start of a processor's first batch."""

    position: str
    last: Commit | None
    """The shard's last commit before the first batch."""
    prepared: PendingCheckpoint | None = None
    """The first batch, if an earlier owner prepared it."""
    is_past_loss: bool = False
    """Whether records after the position are lost, and the loss is accepted."""


class Output(Protocol):
    """The receiver of batches. The committing thread calls ``write``; any thread may call ``begin``."""

    @property
    def application(self) -> str:
        """The name of the fleet in commits."""

    @property
    def is_two_phase(self) -> bool:
        """Whether batches are prepared, so that a repeat is identical."""

    @property
    def needs_spark(self) -> bool:
        """Whether the output needs Spark."""

    def open(self) -> None:
        """Check that the output can be written; may be called more than once."""

    def begin(self, given: InitializationInput) -> Beginning:
        """Return where the shard continues; complete a batch that an earlier owner stored and did not checkpoint."""

    def write(self, parts: Sequence[Part], jobs: CancellableJobs) -> Mapping[str, StreamClientError]:
        """Store a batch; return the errors of the shards that were refused.

        Raises:
            FencedCommit: nothing was stored. Leave out the shards that it names, or all shards if it names none of
                them.
        """

    def close(self) -> None:
        """Release all resources."""


@define
class BatchWriter:
    """Commits batches. Only the committing thread uses it."""

    output: Output

    def commit(self, pieces: Sequence[Piece], jobs: CancellableJobs) -> Outcome:
        """Commit a batch. Never raises: the result names each shard, with its error if its part is not stored."""
        outcome: Outcome = {}
        parts: list[Part] = []
        for piece in sorted(pieces, key=lambda piece: piece.share.shard_info.shard_id):
            try:
                parts.append(self._part(piece))
            except Exception as error:
                outcome[piece.share] = _failure(piece, error)
        if self.output.is_two_phase:
            parts = _each(_prepare, parts, outcome)
        stored = {part.piece.share for part in _each(_checkpoint, self._write(parts, jobs, outcome), outcome)}
        for piece in pieces:
            if piece.share not in stored:
                lost = f"a batch of shard {piece.share.shard_info.shard_id} was dropped, because its lease is lost"
                outcome.setdefault(piece.share, ShutdownException(lost))
        return outcome | dict.fromkeys(stored)

    def _part(self, piece: Piece) -> Part:
        share, cut = piece.share, piece.cut
        changes = columns_of_pages([page.columns for page in cut.pages if page.columns is not None])
        commit = Commit.after(
            share.last,
            application=self.output.application,
            shard=share.shard_info.shard_id,
            epoch=share.shard_info.epoch,
            start=cut.start_position,
            end=cut.end_position,
            count=changes.count,
            content=records_digest(changes),
            is_past_loss=share.is_past_loss,
        )
        return Part(piece, changes, commit)

    def _write(self, parts: Sequence[Part], jobs: CancellableJobs, outcome: Outcome) -> list[Part]:
        """Store a batch; return the parts that are stored."""
        parts = _held(parts)
        try:
            refused = self.output.write(parts, jobs) if parts else {}
        except FencedCommit as error:
            fenced = [part for part in parts if part.commit.shard in error.shards] or parts
            _fail(fenced, error, outcome)
            # Nothing of the batch was stored; the shards that this worker still owns may be sent again, without the
            # others.
            return self._write([part for part in parts if part not in fenced], jobs, outcome)
        except BaseException as error:  # a user's SystemExit too: it would end the thread, and all shards would wait
            _fail(parts, error, outcome)
            return []
        for part in parts:
            if part.commit.shard in refused:
                outcome[part.piece.share] = refused[part.commit.shard]
        return [part for part in parts if part.commit.shard not in refused]


def make_context(
    parts: Sequence[Part],
    columns: tuple[FrameColumn, ...],
    refuse: Callable[[str, StreamClientError], None] | None = None,
) -> BatchContext:
    """Return the context of a batch, for a transform or a sink."""
    ranges, commits = tuple(part.range for part in parts), tuple(part.commit for part in parts)

    def lost() -> frozenset[str]:
        held = _held(parts)
        return frozenset(part.commit.shard for part in parts if part not in held)

    if refuse is None:
        return BatchContext(ranges, columns, commits, lost)
    return BatchContext(ranges, columns, commits, lost, refuse)


def _held(parts: Sequence[Part]) -> list[Part]:
    return [part for part in parts if not part.piece.share.is_in_vain]


def _each(step: Callable[[Part], None], parts: Sequence[Part], outcome: Outcome) -> list[Part]:
    """Run a step for each part; return the parts that succeeded.

    Several run at a time, because each waits for an answer.
    """

    def safely(part: Part) -> StreamClientError | None:
        try:
            step(part)
        except Exception as error:
            return _failure(part.piece, error)
        return None

    if len(parts) < 2:
        errors = list(map(safely, parts))
    else:
        with ThreadPoolExecutor(min(_ANSWERS_MAX, len(parts)), "streamclient-spark-checkpoints") as pool:
            errors = list(pool.map(safely, parts))
    failed = {part: error for part, error in zip(parts, errors, strict=True) if error is not None}
    outcome.update({part.piece.share: error for part, error in failed.items()})
    return [part for part in parts if part not in failed]


def _prepare(part: Part) -> None:
    share = part.piece.share
    if not share.is_in_vain:
        share.checkpointer.prepare_checkpoint(part.commit.end, part.commit.to_json().encode())


def _checkpoint(part: Part) -> None:
    share, end = part.piece.share, part.commit.end
    share.last, share.is_past_loss = part.commit, False
    if not share.is_in_vain:
        share.checkpointer.checkpoint(end)
        share.stored_position = end


def _fail(parts: Iterable[Part], error: BaseException, outcome: Outcome) -> None:
    outcome.update({part.piece.share: _failure(part.piece, error) for part in parts})


def _failure(piece: Piece, error: BaseException) -> StreamClientError:
    """Return the error for the processor to raise. Errors of this package keep their class for the worker."""
    if isinstance(error, StreamClientError):
        return error
    advice = _UNDECLARED if "[UNRESOLVED_COLUMN" in str(error) else ""
    failure = ApplicationException(
        f"a batch with {counted(piece.cut.record_count, 'record')} of shard {piece.share.shard_info.shard_id} was not "
        f"written, and will be read again from its last checkpoint{advice}: {type(error).__name__}: {error}"
    )
    failure.__cause__ = error
    return failure
