"""Repeating exactly the batch that a sink prepared: the page is cut behind its last record."""

from __future__ import annotations

from attrs import evolve, frozen

from streamclient.core.position import Position
from streamclient.model import PendingCheckpoint
from streamclient.stream.api import RecordPage


@frozen
class PendingCut:
    """Where the batches after a start have to end: so many records on, at the prepared position."""

    records_left: int
    end: Position

    @classmethod
    def of(cls, pending: PendingCheckpoint | None) -> PendingCut | None:
        """The cut that a prepared checkpoint asks for; none if no record lies before it."""
        return None if pending is None or pending.records <= 0 else cls(pending.records, Position(pending.value))

    def apply(self, page: RecordPage) -> tuple[RecordPage, PendingCut | None]:
        """The page, cut if it reaches the place, and what is left of the cut behind it.

        The stream may have cut its pages otherwise before, and may hold more records by now: the place is found by
        counting, and reading goes on at the prepared position.
        """
        count = len(page.records)
        if count < self.records_left:
            return page, evolve(self, records_left=self.records_left - count)
        share = self.records_left / count
        cut = evolve(
            page,
            records=page.records[: self.records_left],
            next_position=self.end,
            may_more_record=None if self.end.is_shard_end else True,
            body_bytes=int(page.body_bytes * share),
        )
        return cut, None
