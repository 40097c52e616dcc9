"""The copy of a table into a mirror, in pieces that any number of processes share.

The destination's log stores the progress of the copy. The first commit in the log stores the plan of the copy
(``CopyPlan``): the start of the copy, and the keys that divide the table into pieces. Each other commit belongs to a
piece, and begins at the key at which the previous commit of the piece ended. So any process can continue a copy. If two
processes copy the same rows, the destination refuses one of them, so each row is stored once.

If the mirror keeps a history, a process stores each commit in the history first, and then in the destination. If
the process ends between the two steps, the next process reads the rows from the history and stores them in the
destination.

The copy needs no leases, because the destination refuses a second writer. The table of a replication does not refuse a
second writer (see ``copied_stream``).

The mirror reads changes from a position before the copy began. If the copy takes longer than the stream's retention,
the service drops changes without a notice. The mirror detects this and fails.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import islice

from attrs import define, evolve, field

from streamclient.base.times import MICROS_PER_HOUR, now_micros
from streamclient.copying.source_table import COPY, CopyPlan, SourceTable
from streamclient.destinations.commit import Commit, Destination, MergingDestination
from streamclient.destinations.destination_packages import compute, pyarrow
from streamclient.destinations.folding.fold import copied, empty_rows, stored_keys
from streamclient.destinations.folding.row_changes import CLOCKS_MARGIN_MICROS, TableRule
from streamclient.destinations.rows.change_rows import COMMIT, change_rows, records_of
from streamclient.destinations.rows.digest import records_digest
from streamclient.errors import StreamClientException, TrimmedDataException
from streamclient.model import CheckpointPosition
from streamclient.records import SequenceInfo, StreamRecord
from streamclient.tablestore.ranges import Bound, key_from, key_text, record_of

COMMIT_PAGES = 5
"""The largest number of pages in one commit. A page has at most 5,000 rows and 4 MB."""


@define(eq=False)
class MirrorCopy:
    """Copies the rows of a table into a mirror. Other processes may copy other pieces of the table at the same time."""

    source: SourceTable
    destination: MergingDestination
    rule: TableRule
    stop: threading.Event
    piece_mebibytes: int = 100
    history: Destination | None = None
    rows: int = 0
    """The number of rows that this object has copied."""
    plan: CopyPlan = field(init=False, default=CopyPlan(0))

    def prepare(self) -> None:
        """Read the plan of the copy (``CopyPlan``) from the destination.

        If no plan is stored, store a new one and so create the destination's table.

        Raises:
            ConfigurationError: the destination is the mirror of another table.
            StreamClientException: the table's stream was replaced after the plan was stored.
        """
        stored = self._last(COPY)
        if stored is None:
            commit = self._commit(None, COPY, self.source.new_plan(self.piece_mebibytes).to_text(), [])
            try:
                self.destination.commit(empty_rows(self.rule), [commit])
            except StreamClientException:
                if self._last(COPY) is None:
                    raise
            stored = self._last(COPY) or commit
        self.plan = CopyPlan.from_text(stored.end)
        self.source.stream_of(self.plan)

    def begin_history(self) -> None:
        """Commit the plan of the copy to the history.

        The commit creates the history's table, and shows which mirror owns it.
        """
        plan = self._last(COPY)
        if self.history is None or plan is None:
            return
        columns = self.history.columns()
        rows = change_rows((), shard=COPY, number=plan.number, columns=columns, declared=self.rule.declared)
        # ``change_rows`` learns the key columns from changes, and gets no changes here. Put the key columns first.
        order = {name: index for index, name in enumerate(stored_keys(self.rule))}
        rows = rows.select(sorted(rows.column_names, key=lambda name: order.get(name, len(order))))
        self.history.commit(rows, [plan])

    @property
    def left(self) -> list[str]:
        """The names of the pieces that are not copied completely."""
        lasts = self.destination.last_commits(list(self.plan.pieces))
        return [name for name, last in lasts.items() if last is None or last.end != CheckpointPosition.SHARD_END]

    def run(self, first: int = 0) -> None:
        """Copy all pieces, unless ``stop`` is set earlier. Begin with piece number ``first``, and wrap around."""
        names = self.left
        names = names[first % len(names) :] + names[: first % len(names)] if names else names
        while names and not self.stop.is_set():
            advanced = [self._advance(name) for name in names]
            if not any(advanced):
                # Other processes copy all remaining pieces. Wait, and take over the pieces of a process that ends.
                self.stop.wait(1.0)
            left = set(self.left)
            names = [name for name in names if name in left]

    def _advance(self, name: str) -> bool:
        """Copy the piece ``name`` to its end, or until another process copies it.

        Return whether this process has stored a commit of the piece.
        """
        start, end = (key_from(text) for text in self.plan.pieces[name])
        is_advanced = False
        while not self.stop.is_set():
            last = self._last(name)
            if last is not None and last.end == CheckpointPosition.SHARD_END:
                return is_advanced
            step = self._next(name, last, start if last is None else key_from(last.end), end)
            if step is None:
                return is_advanced
            commit, records = step
            try:
                columns = self.destination.columns() or empty_rows(self.rule).schema
                self.destination.commit(copied(records, now_micros(), columns, self.rule), [commit])
            except StreamClientException:
                if self._last(name) == last:
                    raise
                return is_advanced
            is_advanced = True
            self.rows += len(records)
        return is_advanced

    def _next(
        self, name: str, last: Commit | None, start: Bound, end: Bound
    ) -> tuple[Commit, list[StreamRecord]] | None:
        """Return the next commit of a piece, and the rows of this commit as records.

        If the mirror keeps a history, store both in the history first. Return ``None`` if another process copies the
        piece.
        """
        remembered = self._remembered(name, last)
        if remembered is not None:
            return remembered
        reached, records = self._read(start, end)
        commit = self._commit(last, name, reached, records)
        if self.history is not None:
            columns, declared = self.history.columns(), self.rule.declared
            rows = change_rows(records, shard=name, number=commit.number, columns=columns, declared=declared)
            try:
                self.history.commit(rows, [commit])
            except StreamClientException:
                if self._remembered(name, last) is None and self._last(name) == last:
                    raise
                return None
        return commit, records

    def _remembered(self, name: str, last: Commit | None) -> tuple[Commit, list[StreamRecord]] | None:
        """Return the next commit of a piece, and its rows, if the history has both but the destination does not.

        Otherwise return ``None``.
        """
        commit = None if self.history is None else self.history.last_commits([name])[name]
        if self.history is None or commit is None or (last is not None and commit.number <= last.number):
            return None
        pa, pc = pyarrow(), compute()
        tables = [table.filter(pc.field(COMMIT) == commit.number) for table in self.history.rows([name])]
        records = records_of(pa.concat_tables(tables, promote_options="default")) if tables else []
        if records_digest(records) != commit.content:
            raise StreamClientException(f"the history has other rows than {commit} says: begin a new mirror")
        return commit, records

    def _read(self, start: Bound, end: Bound) -> tuple[str, list[StreamRecord]]:
        pages = [*islice(self.source.scan(self.rule).pages(start, end), COMMIT_PAGES)]
        following, _ = pages[-1]
        records = [record_of(row) for _, rows in pages for row in rows]
        # In the history, each copied row has the time of the copy's start, which is before the time of all changes.
        begun = self.plan.start_micros
        reached = CheckpointPosition.SHARD_END if following is None else key_text(following)
        return reached, [evolve(each, sequence_info=SequenceInfo(0, begun, at)) for at, each in enumerate(records)]

    def _last(self, shard: str) -> Commit | None:
        return self.destination.last_commits([shard])[shard]

    def _commit(self, last: Commit | None, shard: str, end: str, records: Sequence[StreamRecord]) -> Commit:
        return Commit.after(
            last,
            application=self.destination.application,
            shard=shard,
            epoch=0,
            start=CheckpointPosition.TRIM_HORIZON if last is None else last.end,
            end=end,
            count=len(records),
            content=records_digest(records),
        )


def require_changes_since(plan: CopyPlan, now: int, hours: int) -> None:
    """Refuse to follow a stream that may have lost changes since the copy began.

    Raises:
        TrimmedDataException: the copy began longer ago than the stream's retention, which is ``hours``.
    """
    if now - plan.start_micros > hours * MICROS_PER_HOUR - CLOCKS_MARGIN_MICROS:
        raise TrimmedDataException(
            f"the copy began {(now - plan.start_micros) / MICROS_PER_HOUR:.1f} h ago, and the stream keeps changes for "
            f"{hours} h: the stream may lack changes made since then; begin a new mirror, with a stream that keeps "
            "changes longer, or with more processes that copy"
        )
