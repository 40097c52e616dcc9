"""The steps that commit one batch, from the records in the shards' buffers to the shards' stored checkpoints.

After a crash in any of these steps, records may be repeated, but none is lost:

1. For each shard that is due, the committer removes waiting pages from the buffer, beginning at the stored checkpoint.
   If an earlier owner prepared a batch and did not complete it, the batch ends at the prepared position.
2. The records of each shard are turned into columns, and into a commit with start, end and digest.
3. For a destination, the writer stores this commit in the status table, as the shard's prepared checkpoint. After a
   crash, the shard's next owner finds the commit there, and completes exactly this batch (see ``outputs``).
4. The columns of all shards are put into one Arrow table. For a transform or a sink, the table becomes a DataFrame.
5. A destination stores the rows and the commits of all shards in one step. A sink writes the rows. No shard is
   checkpointed before this step. After an error, the writer asks the destination for its last commits.
6. The writer stores each shard's end position as its checkpoint, unless the shard was refused or its lease was lost. If
   that fails, the shard's processor ends, because its next batch must start at the position that is really stored.
7. The committer releases the memory of the batch, and wakes the threads that wait for memory.
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
"""A user's function that writes one batch completely before it returns. If it is called again for the same records,
it must not store them twice."""

Transform = Callable[["DataFrame", BatchContext], "DataFrame"]
"""A user's function that turns the changes of one batch into the rows to store."""

Outcome = dict[ShardShare, StreamClientError | None]
"""The result of a batch for each shard: the error with which the shard's processor ends, or ``None`` if the shard's
checkpoint is stored."""

_UNDECLARED = (
    " (a frame has the columns that changes had since this process began, and the declared columns: declare the "
    "columns that the transform or sink needs, by table= or schema=)"
)
"""The advice in the error message when Spark finds no column of a given name. The advice precedes Spark's own text,
because that text is long."""

_ANSWERS_MAX = 16
"""The largest number of threads that store the checkpoints of a batch. Each thread waits for the status table."""


@frozen
class Piece:
    """The records of one shard in a batch, before they are turned into columns."""

    share: ShardShare
    cut: ShardBatch


@frozen(eq=False)
class Part:
    """The records of one shard in a batch, as columns, and their commit."""

    piece: Piece
    changes: ChangeColumns
    commit: Commit

    @property
    def range(self) -> ShardRange:
        """The shard's range of records, as a sink or a transform sees it in its ``BatchContext``."""
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
    """The position at which a processor's first batch starts, and facts about earlier batches of the shard."""

    position: str
    last: Commit | None
    """The shard's last commit before this batch; ``None`` if the batch is the first of the shard's chain."""
    prepared: PendingCheckpoint | None = None
    """The batch that an earlier owner prepared and did not complete, or ``None``. The first batch must equal it."""
    is_past_loss: bool = False
    """Whether records after ``position`` have left the stream unread, and a setting or an operator accepted this."""


class Output(Protocol):
    """A receiver of batches: a destination or a sink. One thread calls ``write``; any thread may call ``begin``."""

    @property
    def application(self) -> str:
        """The name that ``Commit.application`` has in all commits of this output."""

    @property
    def is_two_phase(self) -> bool:
        """Whether checkpoints are prepared before ``write``, so that a repeated batch has the same records."""

    @property
    def needs_spark(self) -> bool:
        """Whether a Spark session must exist before ``write``."""

    def open(self) -> None:
        """Check that the output can be written to. May be called more than once."""

    def begin(self, given: InitializationInput) -> Beginning:
        """Return where the shard's first batch starts.

        If an earlier owner stored a batch but not its checkpoint, store that checkpoint first.
        """

    def write(self, parts: Sequence[Part], jobs: CancellableJobs) -> Mapping[str, StreamClientError]:
        """Store a batch; return the errors of the shards that were refused.

        Raises:
            FencedCommit: nothing was stored, because the shards that the error names have later owners. If the error
                names no shard of the batch, treat all shards as fenced.
        """

    def close(self) -> None:
        """Close the destination if this output has opened it."""


@define
class BatchWriter:
    """Commits batches to one output. Only the committing thread uses it."""

    output: Output

    def commit(self, pieces: Sequence[Piece], jobs: CancellableJobs) -> Outcome:
        """Commit a batch; return the error of each shard, or ``None`` for a shard whose checkpoint is stored.

        An error of the output or of the user's code is returned, and not raised.
        """
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
        """Write the parts whose leases are held; return the stored ones. Put errors of other parts into ``outcome``."""
        parts = _held(parts)
        try:
            refused = self.output.write(parts, jobs) if parts else {}
        except FencedCommit as error:
            fenced = [part for part in parts if part.commit.shard in error.shards] or parts
            _fail(fenced, error, outcome)
            # The output has stored nothing. Write the other shards of the batch without the fenced shards.
            return self._write([part for part in parts if part not in fenced], jobs, outcome)
        except BaseException as error:  # catch SystemExit, too, which would end this thread and stop all shards
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
    """Return the context that a transform or a sink gets with the frame of a batch."""
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
    """Call ``step`` for all parts, several at a time; return the parts without an error.

    Put the errors of the other parts into ``outcome``.
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
    """Return ``error`` if it is an error of this package; otherwise wrap it in one that names the shard."""
    if isinstance(error, StreamClientError):
        return error
    advice = _UNDECLARED if "[UNRESOLVED_COLUMN" in str(error) else ""
    failure = ApplicationException(
        f"a batch with {counted(piece.cut.record_count, 'record')} of shard {piece.share.shard_info.shard_id} was not "
        f"written, and will be read again from the shard's last checkpoint{advice}: {type(error).__name__}: {error}"
    )
    failure.__cause__ = error
    return failure
