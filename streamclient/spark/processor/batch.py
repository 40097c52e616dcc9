"""One commit: from the cuts of some shards to their checkpoints.

The order of the steps is what makes a crash repeat and never lose:

1. The committer cuts each due shard's waiting pages, from its stored checkpoint to the end of a read; or where an
   earlier owner had cut them, if that one prepared a batch and nobody completed it.
2. The records of each shard become columns and a commit, which says where they begin and end and what they are.
3. For a destination, each shard prepares its checkpoint with that commit: whoever owns the shard after a crash finds
   out which batch it was, and finishes that very one.
4. The columns of all shards become one Arrow table, and for a transform or a sink a DataFrame.
5. The rows, or what the transform made of them, are stored with the commits of all shards in one step; or the sink
   writes them. Until that returns, nothing is checkpointed. After an error the destination is asked what it has.
6. Each shard stores its end position, unless it was refused or its lease was lost meanwhile. A shard whose answer
   is missing or negative ends here: its next batch must start at what is really stored.
7. The committer frees the room, and wakes whoever waited for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from attrs import define, frozen

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
"""Writes one batch, all of it before it returns, in such a way that a repeat of a range adds nothing."""

Transform = Callable[["DataFrame", BatchContext], "DataFrame"]
"""Makes the rows to store from the changes of one batch."""

Outcome = dict[ShardShare, StreamClientError | None]
"""Of each shard of the batch why it ends; ``None`` if its checkpoint is stored."""

_UNDECLARED = (
    " (a frame has the columns that changes had since this process began, and those that are declared: declare what "
    "the transform or sink relies on, by table= or schema=)"
)
"""What to do where Spark knows no such column; its own text is long, and need not be read to its end."""

_ANSWERS_MAX = 16
"""Checkpoints that are under way at a time: each waits for the status table, which takes many at once."""


@frozen
class Piece:
    """One shard's part of a batch."""

    share: ShardShare
    cut: ShardBatch


@frozen(eq=False)
class Part:
    """A piece, and what is stored of it."""

    piece: Piece
    changes: ChangeColumns
    commit: Commit

    @property
    def range(self) -> ShardRange:
        """What a sink is told about it."""
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
    """Where a processor goes on."""

    position: str
    last: Commit | None
    """The last commit before it."""
    prepared: PendingCheckpoint | None = None
    """The batch that comes first, as it was prepared."""
    is_past_loss: bool = False
    """Whether records behind the position are lost, and that is accepted."""


class Output(Protocol):
    """Where batches go. The committing thread writes, and any thread begins."""

    @property
    def application(self) -> str:
        """The fleet, as commits name it."""

    @property
    def is_two_phase(self) -> bool:
        """Whether batches are prepared, so that a repeat is the same one."""

    @property
    def needs_spark(self) -> bool:
        """Whether there is anything for Spark to do."""

    def open(self) -> None:
        """Check the place; more than once is no more than once."""

    def begin(self, given: InitializationInput) -> Beginning:
        """Where the shard goes on; completes what an earlier owner stored and did not checkpoint."""

    def write(self, parts: Sequence[Part], jobs: CancellableJobs) -> Mapping[str, StreamClientError]:
        """Store a batch; returns what was refused, by shard.

        Raises:
            FencedCommit: nothing was stored; those that it names are to be left out, all if it names none of them.
        """

    def close(self) -> None:
        """Let go of everything."""


@define
class BatchWriter:
    """Commits batches; used by the committing thread only."""

    output: Output

    def commit(self, pieces: Sequence[Piece], jobs: CancellableJobs) -> Outcome:
        """Commit a batch. Never raises: the answer has each shard, and its failure if it is not stored."""
        outcome: Outcome = {}
        parts: list[Part] = []
        for piece in sorted(pieces, key=lambda one: one.share.shard_info.shard_id):
            try:
                parts.append(self._part(piece))
            except Exception as error:
                outcome[piece.share] = _failure(piece, error)
        if self.output.is_two_phase:
            parts = _each(_prepare, parts, outcome)
        stored = {part.piece.share for part in _each(_checkpoint, self._write(parts, jobs, outcome), outcome)}
        for piece in pieces:
            if piece.share not in stored:
                lost = f"a batch of shard {piece.share.shard_info.shard_id} was dropped, as its lease is lost"
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
        """Store a batch; returns the parts that are stored."""
        parts = _held(parts)
        try:
            refused = self.output.write(parts, jobs) if parts else {}
        except FencedCommit as error:
            fenced = [part for part in parts if part.commit.shard in error.shards] or parts
            _fail(fenced, error, outcome)
            # Nothing of the batch was stored; those whose owner this still is may be sent again, without the others.
            return self._write([part for part in parts if part not in fenced], jobs, outcome)
        except BaseException as error:  # also a user's SystemExit: it would end the thread, and all shards would wait
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
    """What a transform or a sink is told about a batch."""
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
    """Do something for each part, many at a time, as each waits for an answer; returns those that succeeded."""

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
    """What the processor will raise. Errors of this package keep their class, as the worker acts on it."""
    if isinstance(error, StreamClientError):
        return error
    advice = _UNDECLARED if "[UNRESOLVED_COLUMN" in str(error) else ""
    failure = ApplicationException(
        f"a batch with {piece.cut.record_count} records of shard {piece.share.shard_info.shard_id} was not written, "
        f"and will be read again from its last checkpoint{advice}: {type(error).__name__}: {error}"
    )
    failure.__cause__ = error
    return failure
