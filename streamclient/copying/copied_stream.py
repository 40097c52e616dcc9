"""A stream that begins with a copy of its table, so that a worker copies the rows and then follows their changes.

The table is divided by keys into pieces. The worker sees each piece as a shard, and the rows of the piece as records.
The stream's first shards are children of all pieces, so the worker reads no change before all rows are copied. Workers
share pieces by leases, like shards. The checkpoint in a piece's lease is the key at which the copy of the piece goes
on.

The pieces need leases, because the destination is a table and does not refuse a late writer. Suppose that a row was
deleted, and the deletion was written to the destination. If a late writer then copied the row, the row would stay in
the destination for ever.

The worker reads changes from a position before the copy began. So a row that changes during the copy is written at
least twice: by the copy, and later by its changes in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from attrs import evolve, field, frozen
from tablestore import INF_MAX, INF_MIN, Condition, RowExistenceExpectation
from tablestore import Row as SdkRow

from streamclient.base.position import Position
from streamclient.copying.replication_end import wanted_count
from streamclient.copying.source_table import COPY, CopyPlan, SourceTable, size_of
from streamclient.destinations.folding.row_changes import TableRule
from streamclient.errors import DependencyException
from streamclient.model import Shard
from streamclient.tablestore.ranges import key_from, key_text, record_of, scan
from streamclient.tablestore.stream_api import RecordPage, StreamDescription, StreamSummary
from streamclient.wire.service_errors import CONDITION_CHECK_FAIL
from streamclient.worker.lease.lease_rows import KEY_SCHEMA, STATUS_TYPE, STATUS_VALUE, STREAM_ID, key_of

PLAN_STATUS_TYPE = "FullCopy"
"""The ``StatusType`` of the row in the status table that stores the plan of the copy (``CopyPlan``). Workers ignore
rows of this type, also workers of the Java client."""

MOST_PIECES = 32
"""The largest number of pieces of a table. A worker copies all of its pieces at the same time, and holds one page of
each piece in memory."""

_PLAN_COLUMNS = ["Plan", "StartMicros"]
"""The column of every plan, and a column of the row that earlier versions of this package stored instead."""

_ABSENT = Condition(RowExistenceExpectation.EXPECT_NOT_EXIST)


@frozen
class _FirstShard(Shard):
    """A shard whose parents the service does not list. It is shown as a child of all pieces of the copied table."""

    pieces: frozenset[str] = frozenset()

    @property
    def parent_shard_ids(self) -> frozenset[str]:
        """The ids of all pieces and of the shard's own parents."""
        return super().parent_shard_ids | self.pieces


@frozen
class CopiedStream:
    """The stream operations that a worker calls. They show the table's pieces as shards beside the stream's shards."""

    source: SourceTable
    plan: CopyPlan
    pieces: Mapping[str, tuple[str, str]]
    """The key at which each piece begins and the key at which it ends, by the name of the piece. Empty if an earlier
    version of this package has copied the whole table."""
    is_new: bool = False
    """Whether ``of`` has stored the plan, so that the copy begins with this run."""
    end_micros: int | None = None
    """The time up to which changes are shown; ``None`` shows all changes."""
    _ends: set[str] = field(init=False, factory=set)
    """The iterators that are known to be at a shard's first record after the end time."""
    _rule: TableRule = field(init=False)

    @_rule.default
    def _rule_of_the_table(self) -> TableRule:
        return self.source.rule()

    @classmethod
    def of(
        cls,
        source: SourceTable,
        status_table: str,
        stream_id: str,
        piece_mebibytes: int,
        end_micros: int | None = None,
    ) -> CopiedStream:
        """Return the copied stream of ``source``. Its plan of the copy is read from the status table.

        The plan of the copy (``CopyPlan``) holds the start of the copy and the keys that divide the table into pieces.
        If the status table has no plan yet, store a new one, with pieces of at least ``piece_mebibytes`` MiB.

        Raises:
            DependencyException: the service refused a call, or did not answer.
            StreamClientException: the stored plan of the copy is damaged, or the table's stream was replaced after a
                plan was stored.
        """
        key, client = key_of(stream_id, source.name, PLAN_STATUS_TYPE), source.client

        def read() -> dict[str, Any] | None:
            _, row, _ = client.get_row(status_table, key, max_version=1)
            return None if row is None else {name: value for name, value, _ in row.attribute_columns}

        row, is_new = source.repeated("GetRow", read), False
        if row is None:
            _require_first_stream(source, status_table, stream_id)
            columns: dict[str, Any] = {"Plan": source.new_plan(piece_mebibytes, MOST_PIECES).to_text()}
            put = partial(client.put_row, status_table, SdkRow(key, list(columns.items())), _ABSENT)
            try:
                source.repeated("PutRow", put, write=True)
                is_new = True
            except DependencyException as error:
                if error.code != CONDITION_CHECK_FAIL:
                    raise
                # Another process has stored a plan, or this process has stored it and the service's response was lost.
            row = source.repeated("GetRow", read) or columns
        if "Plan" in row:
            plan = CopyPlan.from_text(row["Plan"])
            return cls(source, plan, plan.pieces, is_new, end_micros)
        # An earlier version of this package stored no plan. It copied the table as one piece, up to the key in "Next".
        plan = CopyPlan(row["StartMicros"], stream_id=stream_id)
        pieces = {} if row["Done"] else {f"{COPY}/0": (row["Next"], "")}
        return cls(source, plan, pieces, end_micros=end_micros)

    def list_stream(self, table_name: str | None = None) -> Sequence[StreamSummary]:
        """Return the stream of the table ``table_name``, or by default all streams of the instance."""
        return self.source.api.list_stream(table_name)

    def describe_stream(self, stream_id: str) -> StreamDescription:
        """Return the stream's description with the table's pieces added as shards.

        Each piece is shown as a parent of the stream's first shards.
        If the service wrongly lists no shards, the description has no pieces either.
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
        """Return the iterator of a shard's first record from ``timestamp_micros`` on.

        For a piece, return the iterator of its first row.
        """
        if shard_id in self.pieces:
            return f"{shard_id}:{self.pieces[shard_id][0]}"
        return self.source.api.get_shard_iterator(stream_id, shard_id, timestamp_micros)

    def get_stream_record(self, shard_iterator: str, limit: int | None = None) -> RecordPage:
        """Return the page at ``shard_iterator``. It has rows of a piece as records, or changes up to the end time."""
        name, _, start = shard_iterator.partition(":")
        if name not in self.pieces:
            return self._changes(shard_iterator, limit)
        pages = self.source.scan(self._rule).pages(key_from(start), key_from(self.pieces[name][1]), limit=limit)
        following, rows = next(pages)
        is_end = following is None
        return RecordPage(
            [record_of(row) for row in rows],
            Position.SHARD_END if is_end else Position(f"{name}:{key_text(following)}"),
            may_more_record=not is_end,
            body_bytes=size_of(cell.value for row in rows for cell in row.cells),
        )

    def _changes(self, shard_iterator: str, limit: int | None) -> RecordPage:
        """Return the page at ``shard_iterator`` up to the end time.

        At a record after the end time, return an empty page with the same iterator, as at the end of an open shard. So
        a reader stores no position after this record, and takes the shard for caught up. A page with records on both
        sides of the end time is read again with fewer records, so that the next position is at the end time.
        """
        if shard_iterator not in self._ends:
            page = self.source.api.get_stream_record(shard_iterator, limit)
            if self.end_micros is None or (count := wanted_count(page.records, self.end_micros)) == len(page.records):
                return page
            if count:
                return self.source.api.get_stream_record(shard_iterator, count)
            self._ends.add(shard_iterator)
        return RecordPage((), Position(shard_iterator), may_more_record=False)


def _require_first_stream(source: SourceTable, status_table: str, stream_id: str) -> None:
    """Check that the status table has no plan for another stream of this table.

    The key of a plan contains the id of its stream, so a plan for a former stream is not found by its key.

    Raises:
        DependencyException: the service refused a call, or did not answer.
        StreamClientException: there is such a plan. A new copy would leave rows in the destination that were deleted
            from the table between the two streams.
    """
    first, last = ([(name, bound) for name, _ in KEY_SCHEMA] for bound in (INF_MIN, INF_MAX))
    read = partial(source.repeated, "GetRange")
    # The service leaves out rows that have none of these columns. Leases have none of them.
    for row in scan(source.client, status_table, first, last, columns=_PLAN_COLUMNS, call=read):
        key = {name: value for name, value, *_ in row.primary_key}
        is_own = key[STREAM_ID] == stream_id  # another process has stored it meanwhile
        if (key[STATUS_TYPE], key[STATUS_VALUE]) == (PLAN_STATUS_TYPE, source.name) and not is_own:
            remedy = "begin again, with another status table and an empty destination"
            copy = f"the replication in status table {status_table!r}"
            raise source.replaced_stream(copy, key[STREAM_ID], stream_id, remedy)
