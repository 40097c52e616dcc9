"""One commit: from the cuts of some shards to their checkpoints.

The order of the steps is what makes a crash repeat and never lose:

1. The committer cuts each due shard's waiting pages, from its stored checkpoint to the end of a read.
2. Each shard's records become columns and are fitted to the schema. A shard that does not fit leaves the batch.
3. Diverted records go to the reject sink.
4. The columns of all shards become one Arrow table and one DataFrame.
5. The sink writes it. Until it returns, nothing is checkpointed.
6. Each shard stores its end position, unless the sink refused it or its lease was lost meanwhile. A shard whose answer
   is missing or negative ends here: its next batch must start at what is really stored.
7. The committer frees the room, and wakes whoever waited for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from streamclient.errors import ApplicationException, ShutdownException, StreamClientError
from streamclient.spark.arrow import build_table, note_wide_integers, to_frame
from streamclient.spark.buffer import Cut
from streamclient.spark.columns import Fitted, GrowingSchema, RawColumns
from streamclient.spark.context import BatchContext, RejectedRecord, ShardRange, UnfitReport
from streamclient.spark.jobs import CANCELLED, CancellableJobs
from streamclient.spark.tenancy import Tenancy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)

Sink = Callable[["DataFrame", BatchContext], None]
"""Writes one batch, all of it before it returns, in such a way that a repeat of a range adds nothing."""

RejectSink = Callable[[Sequence[RejectedRecord], BatchContext], None]
"""Stores diverted records before it returns; after a crash the same ones may come again."""

Reporter = Callable[[UnfitReport], None]
"""Hears of each value that did not fit. Called by the committing thread."""

Outcome = dict[Tenancy, StreamClientError | None]
"""Per shard: ``None`` if its checkpoint is stored, else why it ends."""

_REPORT_KINDS_MAX = 1_000
"""Distinct complaints that are logged once each; beyond, a table misuses its columns and one more line says nothing."""


@frozen
class Piece:
    """One shard's part of a batch."""

    tenancy: Tenancy
    cut: Cut


@frozen
class _FittedPiece:
    piece: Piece
    fitted: Fitted
    range: ShardRange


@define
class BatchWriter:
    """Commits batches; used by the committing thread only, but for ``cancel``."""

    session: Callable[[], SparkSession]
    schema: Callable[[], GrowingSchema]
    sink: Sink
    reject_sink: RejectSink | None = None
    reporter: Reporter | None = None
    _reported: set[tuple[str, str, str]] = field(factory=set)
    _jobs: CancellableJobs = field(factory=CancellableJobs)

    def commit(self, pieces: Sequence[Piece]) -> Outcome:
        """Commit a batch. Never raises: failures are in the answer, by shard."""
        self._jobs.begin()
        outcome: Outcome = {}
        fitted: list[_FittedPiece] = []
        for piece in pieces:
            try:
                fitted.append(self._fit(piece))
            except Exception as error:
                outcome[piece.tenancy] = _failure(piece, error)
        if fitted:
            outcome.update(self._write(fitted))
        return outcome

    def _write(self, fitted: Sequence[_FittedPiece]) -> Outcome:
        try:
            refused = self._write_frame(fitted)
        except Exception as error:
            return {one.piece.tenancy: _failure(one.piece, error) for one in fitted}
        return {one.piece.tenancy: refused.get(one.range.shard_id) or _checkpoint(one.piece) for one in fitted}

    def _fit(self, piece: Piece) -> _FittedPiece:
        info = piece.tenancy.shard_info
        records = piece.cut.records
        fitted = self.schema().fit(RawColumns.collect(info.shard_id, records))
        for report in fitted.reports:
            self._report(report)
        return _FittedPiece(
            piece,
            fitted,
            ShardRange(
                shard_id=info.shard_id,
                stream_id=info.stream_id,
                lease_identifier=info.lease_identifier,
                start_position=piece.cut.start_position,
                end_position=piece.cut.end_position,
                record_count=len(fitted.raw.records),
                first_sequence=records[0].sequence_info,
                last_sequence=records[-1].sequence_info,
                epoch=info.epoch,
            ),
        )

    def _write_frame(self, fitted: Sequence[_FittedPiece]) -> Mapping[str, StreamClientError]:
        """Write a batch; returns what the sink refused, by shard."""
        schema = self.schema()
        raws = [one.fitted.raw for one in fitted]
        note_wide_integers(schema, raws)
        columns = schema.frame_columns()
        tenancies = [one.piece.tenancy for one in fitted]
        if all(one.is_in_vain for one in tenancies):
            raise ShutdownException(CANCELLED)
        ranges = tuple(sorted((one.range for one in fitted), key=lambda one: one.shard_id))
        refused: dict[str, StreamClientError] = {}
        context = BatchContext(ranges, columns, schema.prefix, lambda: _lost(tenancies), refused.__setitem__)
        rejected = [record for one in fitted for record in one.fitted.rejected]
        if rejected and self.reject_sink is not None:
            self.reject_sink(rejected, context)
        session = self.session()
        with self._jobs.of(session.sparkContext):
            self.sink(to_frame(session, build_table(raws, columns, schema.prefix)), context)
        return refused

    def cancel(self) -> None:
        """End the batch under way, if there is one: its Spark jobs fail. Any thread."""
        self._jobs.cancel()

    def _report(self, report: UnfitReport) -> None:
        kind = (report.column, report.given, report.expected)
        if kind not in self._reported and len(self._reported) < _REPORT_KINDS_MAX:
            self._reported.add(kind)
            _log.warning("%s (logged once for these types)", report)
        if self.reporter is not None:
            self.reporter(report)


def _lost(tenancies: Sequence[Tenancy]) -> frozenset[str]:
    return frozenset(one.shard_info.shard_id for one in tenancies if one.is_in_vain)


def _checkpoint(piece: Piece) -> StreamClientError | None:
    tenancy = piece.tenancy
    if tenancy.is_in_vain:
        return None
    try:
        tenancy.checkpointer.checkpoint(piece.cut.end_position)
    except Exception as error:
        return _failure(piece, error)
    tenancy.stored_position = piece.cut.end_position
    return None


def _failure(piece: Piece, error: Exception) -> StreamClientError:
    """What the processor will raise. Errors of this package keep their class, as the worker acts on it."""
    if isinstance(error, StreamClientError):
        return error
    shard = piece.tenancy.shard_info.shard_id
    count = sum(len(page.records) for page in piece.cut.pages)
    failure = ApplicationException(
        f"a batch with {count} records of shard {shard} was not written, and will be read again from its last "
        f"checkpoint: {type(error).__name__}: {error}"
    )
    failure.__cause__ = error
    return failure
