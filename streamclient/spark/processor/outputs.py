"""The outputs of batches: a destination, which stores rows and commits in one step, or a sink of the user's.

A commit's digest covers the changes read, not the rows derived from them. So every repeat of a batch makes the same
commit, and only one of the repeats is stored, with its rows. A transform that gives other rows each time (a random
number, the present time) is therefore stored once, too. It should still give the same rows from the same changes;
otherwise the rows cannot be explained later. Which shards share a frame may differ between two runs of a batch, so the
rows of a change may depend only on the changes of its shard in the batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from attrs import define, field

from streamclient.base import checks, logs
from streamclient.base.reasons import counted
from streamclient.destinations.commit import Commit, Destination, FencedCommit
from streamclient.destinations.rows.change_rows import ADDED, RESERVED, SHARD, TIMESTAMP, added_types
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
from streamclient.spark.processor.arrow import build_rows, frame_columns, grown, to_frame, to_table
from streamclient.spark.processor.batch import Beginning, Part, Sink, Transform, make_context
from streamclient.spark.processor.jobs import CANCELLED, CancellableJobs
from streamclient.spark.processor.shard_share import MOST_SHARDS
from streamclient.spark.spark_packages import pyarrow

if TYPE_CHECKING:
    from pyarrow import Schema, Table
    from pyspark.sql import SparkSession

_log = logs.logger(__name__)

_UNFIT_TRIES = 3
"""The largest number of times that rows are made anew because another writer's column came first. Each try sees the
columns of the try before, so only a writer that adds a column each time could exhaust the tries."""


@define
class SourceFrames:
    """The changes of batches as rows and frames, whose columns only grow. Used by the committing thread."""

    session: Callable[[], SparkSession]
    declared: Mapping[str, ColumnType]
    key: tuple[str, ...] = ()
    """The key columns by the table's definition, or, without a definition, by the records."""
    columns: Schema | None = None
    """All columns that were seen so far. A column keeps its type from batch to batch."""

    def rows(self, parts: Sequence[Part]) -> Table:
        """Return the changes of all parts as rows."""
        rows = build_rows([(part.commit, part.changes) for part in parts], self.columns, self.declared)
        self.columns = grown(self.columns, rows.schema)
        self.key = next((part.changes.key for part in parts if part.changes.key), self.key)
        whole = pyarrow().concat_tables([self.columns.empty_table(), rows], promote_options="default")
        own = [name for name in whole.column_names if name not in RESERVED]
        return whole.select([*own, *ADDED])

    def adopt(self, made: Schema, stored: Schema) -> bool:
        """Take over the destination's types that the rows in ``made`` did not fit; return whether a type has changed.

        The change concerns only columns that were not declared and that a transform has passed through. A column that
        the transform itself has made under the same name does not determine the source column's type.
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
    """A sink of the user's. Checkpoints are stored in one step, and a repeat of a batch may end elsewhere."""

    frames: SourceFrames
    sink: Sink
    application: str = "default"
    is_two_phase: bool = False
    needs_spark: bool = True
    _lasts: dict[str, Commit] = field(factory=dict)
    """The last commit of each shard while this factory reads the shard: the commits of a later processor continue those
    of an earlier one."""

    def open(self) -> None:
        """See ``Output.open``."""

    def begin(self, given: InitializationInput) -> Beginning:
        """See ``Output.begin``."""
        last, stored = self._lasts.get(given.shard_info.shard_id), _stored_position(given)
        is_past_loss = given.lost_behind is not None
        return Beginning(stored, last if last and last.end == stored else None, is_past_loss=is_past_loss)

    def write(self, parts: Sequence[Part], jobs: CancellableJobs) -> Mapping[str, StreamClientError]:
        """See ``Output.write``."""
        rows = self.frames.rows(parts)
        refused: dict[str, StreamClientError] = {}
        context = make_context(parts, frame_columns(rows.schema, self.frames.key), refused.__setitem__)
        sink: Callable[..., object] = self.sink  # a sink may return anything
        with jobs.of(self.frames.session()) as session:
            checks.done("the sink", sink(to_frame(session, rows), context))
        for shard, commit in ((part.commit.shard, part.commit) for part in parts):
            if shard not in refused:
                self._lasts.pop(shard, None)  # reinserted at the end, so that the shards longest unused come first
                self._lasts[shard] = commit
        while len(self._lasts) > MOST_SHARDS:
            del self._lasts[next(iter(self._lasts))]
        return refused

    def close(self) -> None:
        """See ``Output.close``."""


@define
class DestinationOutput:
    """A destination: each batch is stored once, with its commits."""

    frames: SourceFrames
    destination: Destination
    transform: Transform | None = None
    starts_anew: bool = False
    """Whether shards that were processed before may lack a commit in the destination."""
    is_own: bool = False
    """Whether this object opened the destination, and so has to close it."""
    is_two_phase: bool = True
    _lock: threading.Lock = field(factory=threading.Lock)
    """Held for each call of the destination, because a handle serves one thread at a time."""

    @property
    def application(self) -> str:
        """See ``Output.application``."""
        return self.destination.application

    @property
    def needs_spark(self) -> bool:
        """See ``Output.needs_spark``."""
        return self.transform is not None

    def open(self) -> None:
        """See ``Output.open``."""
        with self._lock:
            self.destination.probe()

    def begin(self, given: InitializationInput) -> Beginning:
        """See ``Output``.

        Raises:
            FencedCommit: a later owner of the shard has stored there.
            StreamClientException: the destination ends elsewhere than the checkpoint.
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
        return Beginning(stored, last, pending, is_past_loss=given.lost_behind is not None)

    def _require_commits(self, given: InitializationInput, stored: str) -> None:
        """Refuse a shard that has no commit in this destination, although it must have one.

        That is so if records of the shard were processed, or if records of other shards were and the destination is
        empty.

        Raises:
            StreamClientException: the destination has lost commits, or is another destination.
        """
        shard_id, own = given.shard_info.shard_id, _processed_records(given)
        if own:
            lack = f"after {own} processed records, but the destination has no commit of it"
        elif given.fleet_has_processed and self._is_empty():
            # A table that is made for this shard would be in the way of the table that comes back.
            lack = "and records of other shards were processed, but the destination has neither a table nor commits"
        else:
            return
        raise StreamClientException(
            f"shard {shard_id} would be read on from {readable_position(stored)}, {lack}: it is another destination, "
            "or has lost its commits, as after a power loss or with a disk that is not mounted; restore them, or, if "
            "it shall hold only later records, give the factory starts_anew=True"
        )

    def _is_empty(self) -> bool:
        if self._columns() is not None:
            return False
        with self._lock:
            return not any(entry.commits or entry.carried or entry.damage for entry in self.destination.log())

    def write(self, parts: Sequence[Part], jobs: CancellableJobs) -> Mapping[str, StreamClientError]:
        """See ``Output.write``."""
        commits = [part.commit for part in parts]
        for _ in range(_UNFIT_TRIES - 1):
            rows = self._rows(parts, jobs)
            try:
                return self._store(rows, commits)
            except UnfitValueError as error:
                stored = self._columns()
                if self.transform is not None and (stored is None or not self.frames.adopt(rows.schema, stored)):
                    raise
                _log.info("rows are made anew, because the destination has other columns: %s", error)
        return self._store(self._rows(parts, jobs), commits)

    def close(self) -> None:
        """See ``Output.close``."""
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
        return build_rows([(part.commit, part.changes) for part in parts], self._columns(), self.frames.declared)

    def _transformed(self, parts: Sequence[Part], transform: Transform, jobs: CancellableJobs) -> Table:
        if not any(part.commit.count for part in parts):
            return self._no_rows()
        rows = self.frames.rows(parts)
        context = make_context(parts, frame_columns(rows.schema, self.frames.key))
        with jobs.of(self.frames.session()) as session:
            return to_table(checks.done("the transform", transform(to_frame(session, rows), context)))

    def _no_rows(self) -> Table:
        """Return the rows of a commit without changes, as at the end of a shard, without calling the transform.

        Before the first changes, the transform's frame would lack their columns, and the transform would always fail.
        The rows have the columns that a destination needs to create its table: columns that identify and partition
        rows.
        """
        columns, types = self._columns(), added_types()
        if columns is None:
            columns = pyarrow().schema([(name, types[name]) for name in (SHARD, TIMESTAMP)])
        return columns.empty_table()

    def _store(self, rows: Table, commits: Sequence[Commit]) -> Mapping[str, StreamClientError]:
        """Commit the rows. If only some commits are stored, return the shards of the others."""
        try:
            with self._lock:
                self.destination.commit(rows, commits)
        except (FencedCommit, UnfitValueError, ConfigurationError):
            raise  # nothing was stored
        except Exception as error:
            # After any error the commit may be stored: by this try, or by an earlier owner that died before it could
            # report it.
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
        """Return the shards whose commit is not the destination's last; all shards if the destination is silent."""
        try:
            with self._lock:
                lasts = self.destination.last_commits([commit.shard for commit in commits])
        except Exception:
            _log.warning("the destination did not answer which commits it has", exc_info=True)
            return [commit.shard for commit in commits]
        return [
            commit.shard for commit in commits if (last := lasts[commit.shard]) is None or last.digest != commit.digest
        ]


def _stored_position(given: InitializationInput) -> str:
    """Return the position at which the next batch starts. After a loss, it is the position before the lost records.

    The initial checkpoint is then the oldest record, and the batch would be taken for the first one of the shard.
    """
    return given.initial_checkpoint if given.lost_behind is None else given.lost_behind


def _processed_records(given: InitializationInput) -> int:
    """Return the known number of records before the start of reading that were stored anywhere.

    It is 0 if reading begins at the oldest record: all records left are read. A checkpoint that no Python worker has
    stored says nothing about records, and neither does a checkpoint that was only set as a starting position.
    """
    is_oldest = given.initial_checkpoint == CheckpointPosition.TRIM_HORIZON
    return 0 if is_oldest or given.progress is None else given.progress.records


def _prepared_commit(pending: PendingCheckpoint) -> Commit | None:
    """Return the commit that was prepared; ``None`` if the batch was not prepared for a destination."""
    try:
        return Commit.from_json(pending.state)
    except CodecError:
        where = readable_position(pending.value)
        _log.warning("the state that was prepared at %s is not a commit, and is ignored", where)
        return None


def _is_same(last: Commit, prepared: Commit | None) -> bool:
    """Return whether a stored commit is the prepared one: both have the same place in the chain and the same end.

    The stored commit may cover more records. In that case some records left the stream, and a later preparation did not
    see them.
    """
    return prepared is not None and (last.number, last.previous_digest, last.end) == (
        prepared.number,
        prepared.previous_digest,
        prepared.end,
    )
