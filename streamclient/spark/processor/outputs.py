"""The two outputs of batches: a destination, which stores rows and commits in one step, or a user's sink.

A commit's digest covers the changes that were read, not the rows that a transform makes of them. So every repeat of a
batch makes the same commit, and the destination stores the commit once, with the rows of one attempt. This holds even
if a transform gives different rows each time, for example with random numbers. But a transform should give the same
rows for the same changes. Otherwise the rows cannot be explained later. A repeated batch may also contain other shards.
So the rows that a transform makes of a change may depend only on changes of the same shard.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from attrs import define, field

from streamclient.base import checks, logs
from streamclient.base.reasons import counted
from streamclient.destinations.commit import Commit, Destination, FencedCommit
from streamclient.destinations.rows.arrow_schemas import check_table_types
from streamclient.destinations.rows.change_rows import ADDED, RESERVED, SHARD, added_types
from streamclient.destinations.rows.column_layout import column_type
from streamclient.destinations.rows.column_names import original_name
from streamclient.errors import (
    CodecError,
    ConfigurationError,
    ShutdownException,
    StreamClientError,
    StreamClientException,
    UnfitValueError,
)
from streamclient.interfaces import InitializationInput
from streamclient.model import CheckpointPosition, PendingCheckpoint
from streamclient.records import ColumnType, readable_position
from streamclient.spark.processor.arrow import build_rows, frame_columns, grown, key_first, to_frame, to_table
from streamclient.spark.processor.batch import Beginning, Part, Sink, Transform, make_context
from streamclient.spark.processor.jobs import CANCELLED, CancellableJobs
from streamclient.spark.processor.shard_share import MOST_SHARDS
from streamclient.spark.spark_packages import pyarrow

if TYPE_CHECKING:
    from pyarrow import Schema, Table
    from pyspark.sql import SparkSession

_log = logs.logger(__name__)

_UNFIT_TRIES = 3
"""The largest number of attempts to store rows that fit the destination's columns. An attempt fails if another writer
has added a column since the rows were made."""


@define
class SourceFrames:
    """Makes the rows of Spark frames from changes, with all columns of the batches so far. Only one thread uses it."""

    session: Callable[[], SparkSession]
    declared: Mapping[str, ColumnType]
    key: tuple[str, ...] = ()
    """The names of the key columns, from the table's definition if there is one, otherwise from the records."""
    columns: Schema | None = None
    """All columns of the batches so far; ``None`` before the first batch. A column keeps its type in later batches."""

    def rows(self, parts: Sequence[Part]) -> Table:
        """Return the changes of all ``parts`` as rows. The rows have all columns of this batch and earlier batches."""
        rows = build_rows([(part.commit, part.changes) for part in parts], self.columns, self.declared)
        self.columns = grown(self.columns, rows.schema)
        self.key = next((part.changes.key for part in parts if part.changes.key), self.key)
        whole = pyarrow().concat_tables([self.columns.empty_table(), rows], promote_options="default")
        own = [name for name in whole.column_names if name not in RESERVED]
        return whole.select([*own, *ADDED])

    def no_rows(self, parts: Sequence[Part]) -> Table:
        """Return the table for ``parts``, which have no changes: key, declared columns, columns of earlier batches."""
        made = build_rows([(part.commit, part.changes) for part in parts], self.columns, self.declared).schema
        own = [column.name for column in grown(self.columns, made) if column.name not in RESERVED]
        return key_first(grown(self.columns, made).empty_table().select([*own, *ADDED]), self.key)

    def adopt(self, made: Schema, stored: Schema) -> bool:
        """Give source columns the types that they have in the destination; return whether a type has changed.

        ``made`` is the schema of the rows that did not fit, and ``stored`` is the schema of the destination. A column
        that the user declared keeps its type. Any other source column changes its type only if ``made`` has a column of
        the same name and the same type. If the types differ, a transform may have made a different column of that name.
        """
        if self.columns is None:
            return False
        types = {column.name: column.type for column in self.columns}
        wrong = {
            column.name
            for column in made
            if column.name in stored.names
            and types.get(column.name) == column.type != stored.field(column.name).type
            and column_type(stored.field(column.name).type) is not None
            and original_name(column.name) not in self.declared
            and column.name not in RESERVED
        }
        self.columns = pyarrow().schema(
            [stored.field(column.name) if column.name in wrong else column for column in self.columns]
        )
        return bool(wrong)


@define
class SinkOutput:
    """A user's sink as the output of batches. It prepares no checkpoints, so a repeated batch may have another end."""

    frames: SourceFrames
    sink: Sink
    application: str = "default"
    is_two_phase: bool = False
    needs_spark: bool = True
    _lasts: dict[str, Commit] = field(factory=dict)
    """The last commit of each shard that the sink has written. The next commit of the shard follows it, even if another
    processor makes the next commit."""

    def open(self) -> None:
        """Do nothing, because a sink cannot be checked before its first batch."""

    def begin(self, given: InitializationInput) -> Beginning:
        """Return the stored checkpoint as the start of the shard's first batch."""
        last, stored = self._lasts.get(given.shard_info.shard_id), _stored_position(given)
        is_past_loss = given.lost_after is not None
        return Beginning(stored, last if last and last.end == stored else None, is_past_loss=is_past_loss)

    def write(self, parts: Sequence[Part], jobs: CancellableJobs) -> Mapping[str, StreamClientError]:
        """Call the sink with the rows of all ``parts``; return the errors of the shards that the sink refused."""
        rows = self.frames.rows(parts)
        refused: dict[str, StreamClientError] = {}
        context = make_context(parts, frame_columns(rows.schema, self.frames.key), refused.__setitem__)
        # The type ``Sink`` says that a sink returns ``None``, but a user's function may return anything.
        sink: Callable[..., object] = self.sink
        with jobs.of(self.frames.session()) as session:
            checks.done("the sink", sink(to_frame(session, rows), context))
        for shard, commit in ((part.commit.shard, part.commit) for part in parts):
            if shard not in refused:
                # Move the shard to the end, so that the shards without recent writes come first.
                self._lasts.pop(shard, None)
                self._lasts[shard] = commit
        while len(self._lasts) > MOST_SHARDS:
            del self._lasts[next(iter(self._lasts))]
        return refused

    def close(self) -> None:
        """Do nothing, because a sink has nothing to close."""


@define
class DestinationOutput:
    """A destination as the output of batches. It stores each batch exactly once, with its commits."""

    frames: SourceFrames
    destination: Destination
    transform: Transform | None = None
    starts_anew: bool = False
    """Whether the destination may lack commits for records that workers have already processed."""
    is_own: bool = False
    """Whether this object has opened the destination and must close it."""
    is_two_phase: bool = True
    _lock: threading.Lock = field(factory=threading.Lock)
    """The lock that a thread holds while it calls the destination, which serves one thread at a time."""

    @property
    def application(self) -> str:
        """The name of the fleet in the commits that this object writes to the destination."""
        return self.destination.application

    @property
    def needs_spark(self) -> bool:
        """Whether the output has a transform, which needs a Spark session."""
        return self.transform is not None

    def open(self) -> None:
        """Check by ``Destination.probe`` that the destination can store each row exactly once."""
        with self._lock:
            self.destination.probe()

    def begin(self, given: InitializationInput) -> Beginning:
        """Return the start of the shard's first batch, checked against the shard's last commit in the destination.

        Raises:
            FencedCommit: a later owner of the shard has committed to the destination.
            StreamClientException: the shard's last commit does not end at its checkpoint, or a commit is missing.
        """
        info, pending = given.shard_info, given.pending_checkpoint
        with self._lock:
            last = self.destination.last_commits([info.shard_id])[info.shard_id]
        if last is not None and last.epoch > info.epoch:
            raise FencedCommit(
                f"shard {info.shard_id} was committed by epoch {last.epoch}, this worker has epoch {info.epoch}: it "
                "has lost the lease",
                [info.shard_id],
            )
        if pending is not None and last is not None and _is_same(last, _prepared_commit(pending)):
            given.checkpointer.checkpoint(pending.value)
            return Beginning(pending.value, last)
        stored = _stored_position(given)
        if last is not None and last.end != stored:
            raise StreamClientException(
                f"shard {info.shard_id} would be read on from {readable_position(stored)}, but the destination's last "
                f"commit, number {last.number} of epoch {last.epoch}, ends at {readable_position(last.end)}: the "
                "checkpoint was moved, or the destination has lost or restored commits; set the shard's checkpoint to "
                "that end, or write to another destination"
            )
        if last is None and not self.starts_anew:
            self._require_commits(given, stored)
        return Beginning(stored, last, pending, is_past_loss=given.lost_after is not None)

    def _require_commits(self, given: InitializationInput, stored: str) -> None:
        """Refuse a shard that has no commit in this destination if the destination should have commits.

        The destination should have a commit of the shard if workers have already processed records of the shard. If
        they have processed records of other shards only, the destination should not be empty.

        Raises:
            StreamClientException: the shard is refused. The destination has lost commits, or is another destination.
        """
        shard_id, own = given.shard_info.shard_id, _processed_records(given)
        if own:
            lack = f"after {own} processed records, but the destination has no commit of this shard"
        elif given.fleet_has_processed and self._is_empty():
            # The destination's table may exist on a disk that is not mounted. A new table would then be in the way of
            # that disk.
            lack = "and records of other shards were processed, but the destination has neither a table nor commits"
        else:
            return
        raise StreamClientException(
            f"shard {shard_id} would be read on from {readable_position(stored)}, {lack}: this is another destination, "
            "or it has lost its commits, for example by a power loss or an unmounted disk; restore them, or, if the "
            "destination shall hold only later records, give the factory starts_anew=True"
        )

    def _is_empty(self) -> bool:
        if self._columns() is not None:
            return False
        with self._lock:
            return not any(entry.commits or entry.carried or entry.damage for entry in self.destination.log())

    def write(self, parts: Sequence[Part], jobs: CancellableJobs) -> Mapping[str, StreamClientError]:
        """Store the rows and commits of all ``parts``; return the errors of shards whose commits are not stored."""
        commits = [part.commit for part in parts]
        for _ in range(_UNFIT_TRIES - 1):
            rows = self._rows(parts, jobs)
            try:
                return self._store(rows, commits)
            except UnfitValueError as error:
                stored = self._columns()
                if self.transform is not None and (stored is None or not self.frames.adopt(rows.schema, stored)):
                    raise
                _log.info("the rows of a batch are made once more for the destination's columns: %s", error)
        return self._store(self._rows(parts, jobs), commits)

    def close(self) -> None:
        """Close the destination if this object has opened it."""
        if self.is_own:
            with self._lock:
                self.destination.close()

    def _columns(self) -> Schema | None:
        with self._lock:
            return self.destination.columns()

    def _rows(self, parts: Sequence[Part], jobs: CancellableJobs) -> Table:
        if self.transform is not None:
            rows = self._transformed(parts, self.transform, jobs)
            if all(part.piece.share.is_in_vain for part in parts):
                raise ShutdownException(CANCELLED)
            return rows
        rows = build_rows([(part.commit, part.changes) for part in parts], self._columns(), self.frames.declared)
        return key_first(rows, self.frames.key)

    def _transformed(self, parts: Sequence[Part], transform: Transform, jobs: CancellableJobs) -> Table:
        if not any(part.commit.count for part in parts):
            return self._no_rows(parts, transform, jobs)
        return self._called(parts, transform, jobs, self.frames.rows(parts))

    def _called(self, parts: Sequence[Part], transform: Transform, jobs: CancellableJobs, rows: Table) -> Table:
        context = make_context(parts, frame_columns(rows.schema, self.frames.key))
        with jobs.of(self.frames.session()) as session:
            return to_table(checks.done("the transform", transform(to_frame(session, rows), context)))

    def _no_rows(self, parts: Sequence[Part], transform: Transform, jobs: CancellableJobs) -> Table:
        """Return the empty table of rows for a commit without changes, for example at the end of a shard.

        If the destination does not exist yet, the commit creates it. Its columns must fit the later rows, so the
        transform is called with a frame without rows, and the table has the columns of its result. Before the first
        changes, the frame may lack columns of the source. If the transform fails, the table has only the column for the
        shard: with each further column, the transform might make rows of another type.
        """
        columns = self._columns()
        if columns is not None:
            return columns.empty_table()
        try:
            made = self._called(parts, transform, jobs, self.frames.no_rows(parts))
            return check_table_types(made.schema).empty_table()
        except Exception as error:
            _log.info(
                "the destination begins with the column %s, as the transform fails without rows: %s", SHARD, error
            )
            return pyarrow().schema([(SHARD, added_types()[SHARD])]).empty_table()

    def _store(self, rows: Table, commits: Sequence[Commit]) -> Mapping[str, StreamClientError]:
        """Store rows and commits. If only some commits are stored, return an error for each of the other shards."""
        try:
            with self._lock:
                self.destination.commit(rows, commits)
        except (FencedCommit, UnfitValueError, ConfigurationError):
            raise  # the destination has stored nothing
        except Exception as error:
            # In spite of the error, commits may be stored: by this attempt, or by an earlier owner that has died.
            missing = self._missing(commits)
            if len(missing) == len(commits):
                raise
            _log.info(
                "%s of %s stored in spite of %r", len(commits) - len(missing), counted(len(commits), "commit"), error
            )
            failure = StreamClientException(f"a commit for several shards was stored for some of them only: {error}")
            return dict.fromkeys(missing, failure)
        return {}

    def _missing(self, commits: Sequence[Commit]) -> list[str]:
        """Return the shards for which the destination's last commit is not the commit in ``commits``.

        Return all shards if the destination does not answer.
        """
        try:
            with self._lock:
                lasts = self.destination.last_commits([commit.shard for commit in commits])
        except Exception:
            _log.warning("the last commits could not be read from the destination", exc_info=True)
            return [commit.shard for commit in commits]
        return [
            commit.shard for commit in commits if (last := lasts[commit.shard]) is None or last.digest != commit.digest
        ]


def _stored_position(given: InitializationInput) -> str:
    """Return the position at which the shard's next batch starts.

    This is the shard's checkpoint. ``given`` normally has it as ``initial_checkpoint``. If records after the checkpoint
    were lost, ``given`` has it as ``lost_after``.
    """
    return given.initial_checkpoint if given.lost_after is None else given.lost_after


def _processed_records(given: InitializationInput) -> int:
    """Return the number of the shard's records that workers have processed before its checkpoint, as far as known.

    The number is 0 if the shard is read from its oldest record, because no record is skipped. It is also 0 if the
    checkpoint was not stored by a Python worker, or was only set as a starting position.
    """
    is_oldest = given.initial_checkpoint == CheckpointPosition.TRIM_HORIZON
    return 0 if is_oldest or given.progress is None else given.progress.records


def _prepared_commit(pending: PendingCheckpoint) -> Commit | None:
    """Return the commit in a prepared checkpoint; ``None`` if the checkpoint was not prepared for a destination."""
    try:
        return Commit.from_json(pending.state)
    except CodecError:
        where = readable_position(pending.value)
        _log.warning("the state that was prepared at %s is not a commit, and is ignored", where)
        return None


def _is_same(last: Commit, prepared: Commit | None) -> bool:
    """Return whether the stored commit ``last`` has the number, the previous commit and the end of ``prepared``.

    The stored commit may have more records than ``prepared``, because records may have left the stream before a later
    owner prepared the batch.
    """
    return prepared is not None and (last.number, last.previous_digest, last.end) == (
        prepared.number,
        prepared.previous_digest,
        prepared.end,
    )
