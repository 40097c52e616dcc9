"""A stream with the copy of its table before it, so that one worker copies the rows and then follows their changes.

The table is cut at keys into pieces. Each piece is a shard, and its rows are the records. The stream's first shards are
children of all pieces, so no change is read before every row is copied. Any number of processes share the pieces, as
they share shards: the lease of a piece is the claim on it, and the checkpoint of that lease is the key at which the
copy of the piece goes on.

The claim matters. The destination is a table, which accepts a row from a writer that is late. If the late writer copied
a row whose later deletion was already followed, that row would stay for ever. Changes are read from a position before
the first row was read. So a row that changes during the copy is written twice, the second time in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from attrs import evolve, field, frozen
from tablestore import Condition, RowExistenceExpectation
from tablestore import Row as SdkRow

from streamclient.base.position import Position
from streamclient.copying.source_table import COPY, CopyPlan, SourceTable, size_of
from streamclient.destinations.folding.row_changes import TableRule
from streamclient.errors import DependencyException
from streamclient.model import Shard
from streamclient.tablestore.ranges import key_from, key_text, record_of
from streamclient.tablestore.stream_api import RecordPage, StreamDescription, StreamSummary
from streamclient.wire.service_errors import CONDITION_CHECK_FAIL
from streamclient.worker.lease.lease_rows import key_of

PLAN_STATUS_TYPE = "FullCopy"
"""The ``StatusType`` of the row that keeps the plan. Lease workers, Java's too, leave rows of other types alone."""

MOST_PIECES = 32
"""The largest number of pieces of a table. A worker reads all of its pieces side by side, and has a page of each in
memory."""

_ABSENT = Condition(RowExistenceExpectation.EXPECT_NOT_EXIST)


@frozen
class _FirstShard(Shard):
    """A shard without a listed parent. All pieces come before it."""

    pieces: frozenset[str] = frozenset()

    @property
    def parent_shard_ids(self) -> frozenset[str]:
        """The pieces, and the parents that have left the listing."""
        return super().parent_shard_ids | self.pieces


@frozen
class CopiedStream:
    """The operations of a stream and of the pieces before it."""

    source: SourceTable
    plan: CopyPlan
    pieces: Mapping[str, tuple[str, str]]
    """The names of the pieces, and the keys between which each lies. There are no pieces if an earlier version has
    copied the table."""
    _rule: TableRule = field(init=False)

    @_rule.default
    def _rule_of_the_table(self) -> TableRule:
        return self.source.rule()

    @classmethod
    def of(cls, source: SourceTable, status_table: str, stream_id: str, piece_mebibytes: int) -> CopiedStream:
        """Read the plan from the status table, or make one there.

        Raises:
            DependencyException: the service refused, or did not answer.
            StreamClientException: the stored plan is damaged.
        """
        key, client = key_of(stream_id, source.name, PLAN_STATUS_TYPE), source.client

        def read() -> dict[str, Any] | None:
            _, row, _ = client.get_row(status_table, key, max_version=1)
            return None if row is None else {name: value for name, value, _ in row.attribute_columns}

        row = source.repeated("GetRow", read)
        if row is None:
            columns: dict[str, Any] = {"Plan": source.new_plan(piece_mebibytes, MOST_PIECES).to_text()}
            put = partial(client.put_row, status_table, SdkRow(key, list(columns.items())), _ABSENT)
            try:
                source.repeated("PutRow", put, write=True)
            except DependencyException as error:
                if error.code != CONDITION_CHECK_FAIL:
                    raise
                # Another process was quicker, or an answer was lost.
            row = source.repeated("GetRow", read) or columns
        if "Plan" in row:
            plan = CopyPlan.from_text(row["Plan"])
            return cls(source, plan, plan.pieces)
        # An earlier version kept the key up to which it had copied the table, in one piece.
        plan = CopyPlan(row["StartMicros"], stream_id=stream_id)
        return cls(source, plan, {} if row["Done"] else {f"{COPY}/0": (row["Next"], "")})

    def list_stream(self, table_name: str | None = None) -> Sequence[StreamSummary]:
        """Return the streams of the table, or of the instance."""
        return self.source.api.list_stream(table_name)

    def describe_stream(self, stream_id: str) -> StreamDescription:
        """Return the stream with the pieces before its first shards.

        An empty listing stays empty, because it is damaged.
        """
        described = self.source.api.describe_stream(stream_id)
        listed = {shard.shard_id for shard in described.shards}
        if not self.pieces or not listed:
            return described
        pieces = frozenset(self.pieces)
        following = (
            shard
            if shard.parent_shard_ids & listed
            else _FirstShard(shard.shard_id, shard.parent_id, shard.parent_sibling_id, pieces)
            for shard in described.shards
        )
        return evolve(described, shards=(*map(Shard, self.pieces), *following))

    def get_shard_iterator(self, stream_id: str, shard_id: str, timestamp_micros: int | None = None) -> str:
        """Return the iterator at a time for a shard of the stream.

        For a piece, return its beginning, whatever the time.
        """
        if shard_id in self.pieces:
            return f"{shard_id}:{self.pieces[shard_id][0]}"
        return self.source.api.get_shard_iterator(stream_id, shard_id, timestamp_micros)

    def get_stream_record(self, shard_iterator: str, limit: int | None = None) -> RecordPage:
        """Return a page of rows or of changes."""
        name, _, start = shard_iterator.partition(":")
        if name not in self.pieces:
            return self.source.api.get_stream_record(shard_iterator, limit)
        pages = self.source.scan(self._rule).pages(key_from(start), key_from(self.pieces[name][1]), limit=limit)
        following, rows = next(pages)
        is_end = following is None
        return RecordPage(
            [record_of(row) for row in rows],
            Position.SHARD_END if is_end else Position(f"{name}:{key_text(following)}"),
            may_more_record=not is_end,
            body_bytes=size_of(cell.value for row in rows for cell in row.cells),
        )
