"""Where batches go: a destination, which stores rows and commits in one step, or a sink of the user's.

What a commit's digest is over are the changes that were read, not the rows that a transform makes of them. So whoever
repeats a batch makes the same commit, and only one of both is stored, with its rows: a transform that gives other rows
each time (a random number, the present time) is stored once all the same. It should give the same rows from the same
changes all the same, or nobody can say later why they are as they are. Which shards share a frame may differ between
two runs of a batch, so the rows of a change may depend on the changes of its shard in the batch, and on no others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from attrs import define, field

from streamclient.base import checks, logs
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
"""How often rows are made anew because another writer's column came first; each try sees the columns of the one before,
so only a writer that brings one each time could exhaust them."""


@define
class SourceFrames:
    """The changes of batches as rows and frames, whose columns only grow. Used by the committing thread."""

    session: Callable[[], SparkSession]
    declared: Mapping[str, ColumnType]
    key: tuple[str, ...] = ()
    """Key columns by the table's definition, until records tell them."""
    columns: Schema | None = None
    """All that were seen: a column keeps its type from batch to batch."""

    def rows(self, parts: Sequence[Part]) -> Table:
        """The changes of all parts."""
        rows = build_rows([(part.commit, part.changes) for part in parts], self.columns, self.declared)
        self.columns = grown(self.columns, rows.schema)
        self.key = next((part.changes.key for part in parts if part.changes.key), self.key)
        whole = pyarrow().concat_tables([self.columns.empty_table(), rows], promote_options="default")
        own = [name for name in whole.column_names if name not in RESERVED]
        return whole.select([*own, *ADDED])

    def adopt(self, made: Schema, stored: Schema) -> bool:
        """Take over types of the destination that made rows did not fit; whether there are any.

        Only of columns that nobody declared and that a transform has passed through: a column of the same name that it
        has made itself says nothing of the source's.
        """
        if self.columns is None:
            return False
        types = {one.name: one.type for one in self.columns}
        wrong = {
            one.name
            for one in made
            if one.name in stored.names
            and types.get(one.name) == one.type != stored.field(one.name).type
            and column_type(stored.field(one.name).type) is not None
            and original_name(one.name) not in self.declared
            and one.name not in RESERVED
        }
        self.columns = pyarrow().schema([stored.field(one.name) if one.name in wrong else one for one in self.columns])
        return bool(wrong)


@define
class SinkOutput:
    """A sink of the user's: checkpoints are stored in one step, and a repeat of a batch may end elsewhere."""

    frames: SourceFrames
    sink: Sink
    application: str = "default"
    is_two_phase: bool = False
    needs_spark: bool = True
    _lasts: dict[str, Commit] = field(factory=dict)
    """By shard, while this factory reads it on: a later processor's commits follow those of an earlier one."""

    def open(self) -> None:
        """See ``Output``."""

    def begin(self, given: InitializationInput) -> Beginning:
        """See ``Output``."""
        last, stored = self._lasts.get(given.shard_info.shard_id), _stored_position(given)
        is_past_loss = given.lost_behind is not None
        return Beginning(stored, last if last and last.end == stored else None, is_past_loss=is_past_loss)

    def write(self, parts: Sequence[Part], jobs: CancellableJobs) -> Mapping[str, StreamClientError]:
        """See ``Output``."""
        rows = self.frames.rows(parts)
        refused: dict[str, StreamClientError] = {}
        context = make_context(parts, frame_columns(rows.schema, self.frames.key), refused.__setitem__)
        sink: Callable[..., object] = self.sink  # whatever it returns
        with jobs.of(self.frames.session()) as session:
            checks.done("the sink", sink(to_frame(session, rows), context))
        for shard, commit in ((part.commit.shard, part.commit) for part in parts):
            if shard not in refused:
                self._lasts.pop(shard, None)  # so that those of shards that are gone come first
                self._lasts[shard] = commit
        while len(self._lasts) > MOST_SHARDS:
            del self._lasts[next(iter(self._lasts))]
        return refused

    def close(self) -> None:
        """See ``Output``."""


@define
class DestinationOutput:
    """A destination: each batch is stored once, with its commits."""

    frames: SourceFrames
    destination: Destination
    transform: Transform | None = None
    starts_anew: bool = False
    """Whether shards that were processed before may have no commit there."""
    is_own: bool = False
    """Whether it was opened here, and is closed here."""
    is_two_phase: bool = True
    _lock: threading.Lock = field(factory=threading.Lock)
    """One handle is for one thread at a time."""

    @property
    def application(self) -> str:
        """See ``Output``."""
        return self.destination.application

    @property
    def needs_spark(self) -> bool:
        """See ``Output``."""
        return self.transform is not None

    def open(self) -> None:
        """See ``Output``."""
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
        if last is None and not self.starts_anew and _processed_records(given):
            raise StreamClientException(
                f"shard {info.shard_id} would be read on from {readable_position(stored)}, behind "
                f"{_processed_records(given)} processed records, but the destination has no commit of it: it is "
                "another one, or has lost all of them, as after a power loss or with a disk that is not mounted; give "
                "it back what it had, or, if it shall hold only what follows, say starts_anew=True to the factory"
            )
        return Beginning(stored, last, pending, is_past_loss=given.lost_behind is not None)

    def write(self, parts: Sequence[Part], jobs: CancellableJobs) -> Mapping[str, StreamClientError]:
        """See ``Output``."""
        commits = [part.commit for part in parts]
        for _ in range(_UNFIT_TRIES - 1):
            rows = self._rows(parts, jobs)
            try:
                return self._store(rows, commits)
            except UnfitValueError as error:
                stored = self._columns()
                if self.transform is not None and (stored is None or not self.frames.adopt(rows.schema, stored)):
                    raise
                _log.info("rows are made anew, as the destination has other columns: %s", error)
        return self._store(self._rows(parts, jobs), commits)

    def close(self) -> None:
        """See ``Output``."""
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
        """What a commit without changes stores, as at the end of a shard. A transform is not asked.

        Before the first changes its frame would have none of their columns, and it would fail for good. What a
        destination needs of a table that it makes are the columns by which rows are found and divided.
        """
        columns, types = self._columns(), added_types()
        if columns is None:
            columns = pyarrow().schema([(name, types[name]) for name in (SHARD, TIMESTAMP)])
        return columns.empty_table()

    def _store(self, rows: Table, commits: Sequence[Commit]) -> Mapping[str, StreamClientError]:
        """Commit; returns which shards' commits are not stored, if others' are."""
        try:
            with self._lock:
                self.destination.commit(rows, commits)
        except (FencedCommit, UnfitValueError, ConfigurationError):
            raise  # nothing was stored
        except Exception as error:
            # Whatever it is, the commit may be in: by this attempt, or by an earlier owner that did not live to say so.
            missing = self._missing(commits)
            if len(missing) == len(commits):
                raise
            _log.info("%s of %s commits are stored in spite of %r", len(commits) - len(missing), len(commits), error)
            failure = StreamClientException(f"a commit for several shards was stored for some of them only: {error}")
            return dict.fromkeys(missing, failure)
        return {}

    def _missing(self, commits: Sequence[Commit]) -> list[str]:
        """The shards whose commit is not the last one of the destination, or all if it does not answer."""
        try:
            with self._lock:
                lasts = self.destination.last_commits([one.shard for one in commits])
        except Exception:
            _log.warning("the destination could not be asked which commits it has", exc_info=True)
            return [one.shard for one in commits]
        return [one.shard for one in commits if (last := lasts[one.shard]) is None or last.digest != one.digest]


def _stored_position(given: InitializationInput) -> str:
    """Where batches go on: also behind a loss, or the next one would pass for the first one of the shard."""
    return given.initial_checkpoint if given.lost_behind is None else given.lost_behind


def _processed_records(given: InitializationInput) -> int:
    """How many records before the place where reading begins were stored somewhere, as far as that is known.

    None if it begins at the oldest one: whatever is left is read. A checkpoint that no Python worker has stored tells
    nothing of records; nor does one that was only set to where reading shall begin.
    """
    is_oldest = given.initial_checkpoint == CheckpointPosition.TRIM_HORIZON
    return 0 if is_oldest or given.progress is None else given.progress.records


def _prepared_commit(pending: PendingCheckpoint) -> Commit | None:
    """What was prepared, if it was for a destination."""
    try:
        return Commit.from_json(pending.state)
    except CodecError:
        where = readable_position(pending.value)
        _log.warning("what was prepared at %s is no commit, and is left alone", where)
        return None


def _is_same(last: Commit, prepared: Commit | None) -> bool:
    """Whether a stored commit is what was prepared: by its place in the chain and its end.

    Its content may be more: records leave the stream, and who prepared it anew after that did not see them.
    """
    return prepared is not None and (last.number, last.previous_digest, last.end) == (
        prepared.number,
        prepared.previous_digest,
        prepared.end,
    )
